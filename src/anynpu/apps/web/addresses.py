"""How many connections one address may hold, and how quickly it may open them."""

from __future__ import annotations

import functools
import ipaddress
from collections import Counter

from anynpu.apps.web.limits import Limits

UNIX = "unix"
"""The address of a client on a Unix socket, which has none."""


class Addresses:
    """Counts the connections of every address. IPv6 addresses count by their /64, which one customer has whole."""

    def __init__(self, limits: Limits) -> None:
        self._most_open, self._per_s = limits.address_connections, limits.address_rate
        self._counts, self._local = bool(self._most_open or self._per_s), limits.address_local
        self._open: Counter[str] = Counter()
        self._spent: dict[str, float] = {}
        """Connections that were opened lately: it sinks by the rate, and may rise to ten seconds of it."""
        self._at = 0.0
        self.turned_away = 0

    def take(self, address: str) -> bool:
        """Counts one more connection, and returns whether it is within the limits."""
        if not self._is_counted(address):
            return True
        key = network(address)
        self._open[key] += 1
        within = not self._most_open or self._open[key] <= self._most_open
        if self._per_s:
            spent = self._spent[key] = self._spent.get(key, 0.0) + 1
            within = within and spent <= max(1.0, 10 * self._per_s)
        self.turned_away += not within
        return within

    def give_back(self, address: str) -> None:
        if self._is_counted(address):
            key = network(address)
            self._open[key] -= 1
            if self._open[key] <= 0:
                del self._open[key]

    def _is_counted(self, address: str) -> bool:
        return self._counts and address != UNIX and (self._local or not is_local(address))

    def tick(self, now: float) -> None:
        """Lets time pass: called about once a second."""
        fallen, self._at = (now - self._at) * self._per_s, now
        if self._spent:
            self._spent = {key: spent - fallen for key, spent in self._spent.items() if spent > fallen}


@functools.lru_cache(4096)
def is_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


@functools.lru_cache(4096)
def network(address: str) -> str:
    """Returns what is counted together with an address."""
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
