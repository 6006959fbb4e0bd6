"""Vectors with payloads in a store: Qdrant Edge embedded, or a Qdrant server."""
