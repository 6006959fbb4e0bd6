"""The chips: one TOML file each."""
