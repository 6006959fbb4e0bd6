"""Zhouyi NPUs: the .cix model files and the library that runs them."""
