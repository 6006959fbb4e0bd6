"""Where vectors are kept: a folder here, or a Qdrant server at a URL."""

from __future__ import annotations

from anynpu.vectors.base import Store


def open_store(where: str, *, token: str = "") -> Store:
    """Returns the store at a URL (a Qdrant server or cluster) or in a folder (Qdrant Edge in a process of its own)."""
    if where.startswith(("http://", "https://")):
        from anynpu.vectors.server import ServerStore

        return ServerStore.at(where, token)
    from anynpu.vectors.edge.client import EdgeStore

    return EdgeStore.at(where)
