"""Qdrant Edge, embedded: the engine holds Python's lock in every call, so it lives in a process of its own."""
