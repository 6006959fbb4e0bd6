"""What every systemd unit of ours has in common: what it may not do, and how words are written into it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from anynpu.errors import ConfigError

TOKEN = "%d/token"
"""The credential `token` as a unit names it: %d is the folder of its credentials."""

HARDENING = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "CapabilityBoundingSet=",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
)
"""What no program of ours needs, whatever it does."""


def command_line(words: Sequence[str]) -> str:
    """Returns the words of ExecStart=, quoted where needed; `TOKEN` stays as it is."""
    quoted = []
    for word in words:
        text = plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
        quoted.append(word if word == TOKEN else f'"{text}"' if shlex.quote(word) != word else text)
    return " ".join(quoted)


def path_word(text: str) -> str:
    """Returns a path of BindReadOnlyPaths= and its like, which end at a blank and are cut at a colon."""
    return "".join([f"\\{letter}" if letter in "\\\"': " else letter for letter in plain(text)])


def plain(text: str) -> str:
    """Returns text for a setting that takes the rest of its line as it is, except that % begins a specifier."""
    if not text.isprintable():
        raise ConfigError(f"{text!r}: a unit cannot hold this name", "use a name without control characters")
    return text.replace("%", "%%")
