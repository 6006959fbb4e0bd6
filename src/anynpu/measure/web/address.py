"""Where a server is: the parts of its URL, and whether it is on this machine."""

from __future__ import annotations

import socket
import ssl
import urllib.parse
from dataclasses import dataclass, replace

from anynpu.errors import ConfigError, DeviceError, on_one_line

SCHEMES = ("http://", "https://")


@dataclass(frozen=True)
class Address:
    """http://HOST[:PORT][/PATH]; an empty path leaves the route to what the server offers."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Returns the parts of a URL; credentials, fragments and blanks are refused."""
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError:  # a port that is not a number, half of an IPv6 address
            parts, port = urllib.parse.SplitResult("", "", "", "", ""), None
        plain = not any(character <= " " or character == "\x7f" for character in url)
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not plain:
            raise ConfigError(f"{on_one_line(url)}: http://HOST[:PORT][/ROUTE] was expected")
        if parts.username is not None or parts.fragment:
            raise ConfigError(
                f"{on_one_line(url)}: a name, password or fragment does not belong here", "use --token for a token"
            )
        path = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~-._") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path)

    def at(self, path: str) -> Address:
        return replace(self, path=path)

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.scheme == "https" else None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    def resolved(self) -> tuple[str, ...]:
        """Returns the IP addresses of the host, or raises DeviceError for a name that nobody knows."""
        try:
            entries = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise DeviceError(f"{self.host}: {why}", call="connect", cause="the name of the host is wrong") from None
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def is_url(text: str) -> bool:
    """Says whether an argument names a server rather than a file."""
    return text.lower().startswith(SCHEMES)


def is_local(address: Address) -> bool:
    """Says whether the server's address is one of this machine: only then can a socket be bound to it."""
    for ip in address.resolved():
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((ip, 0))
            except OSError:
                continue
            return True
    return False
