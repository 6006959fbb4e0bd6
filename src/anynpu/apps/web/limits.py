"""What one client may cost: bytes, connections and seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one HTTP server; what goes beyond is answered 408, 413, 414 or 431, or closed."""

    body_bytes: int = 32 * 1024 * 1024
    bodies_bytes: int = 512 * 1024 * 1024
    """Of all bodies that are being received at one time; beyond it 503."""
    header_bytes: int = 32 * 1024
    headers: int = 100
    url_bytes: int = 8 * 1024
    connections: int = 4096
    """Beyond these the connections that have been idle longest are closed: a new client always gets in."""
    address_connections: int = 0
    """Of one address, which may be a proxy or a whole office; 0 for any number."""
    address_rate: float = 0.0
    """New connections of one address a second, of which ten seconds' worth may come at once; 0 for any number."""
    address_local: bool = True
    """The limits of an address hold for this computer's own too."""
    header_s: float = 10.0
    """From the opening of a connection, or the first byte of a request, to the end of its headers."""
    body_s: float = 30.0
    """From the end of the headers to the end of the body."""
    idle_s: float = 75.0
    """Between two requests on one connection."""
    write_s: float = 30.0
    """For a client to take an answer that does not fit into the socket's buffer."""
    grace_s: float = 30.0
    """For requests in flight when the server is told to stop."""
