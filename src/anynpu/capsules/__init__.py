"""Vendors' toolchains in environments of their own: their facts, and how they are installed, found and verified."""
