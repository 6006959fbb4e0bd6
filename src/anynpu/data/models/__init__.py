"""Task cards that ship with anynpu: one TOML file each."""
