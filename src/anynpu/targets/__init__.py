"""Compilers: each takes an artifact of one format to an artifact of the next."""
