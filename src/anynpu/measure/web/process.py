"""The server's own process, where it runs on this machine: processor time and memory.

The kernel says which process holds the socket that listens on a port; its workers are the processes it started and
every other that holds the same socket. Without the right to look (another user's process), nothing is known.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anynpu.errors import ConfigError
from anynpu.measure.host import ROOT, read_text
from anynpu.measure.web.address import Address, is_local
from anynpu.measure.workers import below, memory, stat_fields

LISTENING = "0A"
ELSEWHERE = "it runs on another machine"


@dataclass(frozen=True)
class Usage:
    """Processor seconds of a server until now, and its memory."""

    cpu_s: float
    rss_bytes: int
    processes: tuple[int, ...]


@dataclass(frozen=True)
class ServerProcess:
    """A server's processes on this machine; `program` is what the first of them is called."""

    pids: tuple[int, ...]
    program: str
    root: Path = ROOT

    def usage(self) -> Usage | None:
        """Returns what the processes and those they started have used, or None once they are gone."""
        fields = {pid: words for pid in self.pids if len(words := stat_fields(self.root, str(pid))) > 14}
        fields = {pid: words for pid, words in fields.items() if words[0] != "Z"}  # ended, and nobody asked how
        if not fields:
            return None
        fields |= below(self.root, set(fields))
        tick = os.sysconf("SC_CLK_TCK")
        # utime, stime, and those of children that have ended and been waited for
        seconds = sum(int(each[at]) for each in fields.values() for at in (11, 12, 13, 14)) / tick
        resident = sum(memory(self.root, "VmRSS", pid) or 0 for pid in fields)
        return Usage(seconds, resident, tuple(fields))


def find_server(address: Address, pid: int | None = None, root: Path = ROOT) -> tuple[ServerProcess | None, str]:
    """Returns the processes of the server, or None and why they are not known."""
    if pid is not None:
        if len(stat_fields(root, str(pid))) <= 14:
            raise ConfigError(f"--pid {pid}: no such process on this machine")
        return ServerProcess((pid,), _program(root, pid), root), ""
    if not is_local(address):
        return None, ELSEWHERE
    wanted = set(address.resolved())
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        for line in (read_text(root / "proc/net" / name) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == LISTENING and _covers(words[1], address.port, wanted):
                inodes.add(words[9])
    links, holders = {f"socket:[{inode}]" for inode in inodes}, []
    for folder in (root / "proc").iterdir() if links else ():
        if folder.name.isdecimal():
            with suppress(OSError):
                if any(_link(entry) in links for entry in (folder / "fd").iterdir()):
                    holders.append(int(folder.name))
    if not holders:
        return None, "its process was not found (another user's, or in a container); name it with --pid"
    holders.sort()
    started = below(root, set(holders))
    owners = tuple(holder for holder in holders if holder not in started)
    return ServerProcess(owners, _program(root, owners[0]), root), ""


def _program(root: Path, pid: int) -> str:
    words = (read_text(root / "proc" / str(pid) / "cmdline") or "").split("\0")
    return " ".join(Path(word).name if at == 0 else word for at, word in enumerate(words[:3]) if word)[:100]


def _covers(place: str, port: int, wanted: Iterable[str]) -> bool:
    """Says whether a socket of /proc/net/tcp (address in the machine's byte order, port) takes such connections."""
    digits, _, number = place.partition(":")
    if int(number, 16) != port:
        return False
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    bound = ipaddress.ip_address(b"".join(words))
    mapped = getattr(bound, "ipv4_mapped", None)
    return int(bound) == 0 or str(mapped or bound) in wanted


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""
