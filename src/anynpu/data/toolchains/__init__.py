"""Vendors' compilers: one TOML file each with what they need, what they say when they fail, and how to get them."""
