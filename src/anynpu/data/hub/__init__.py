"""Models of the CIX AI Model Hub: one TOML file each, with where they lie, what they take and what they give."""
