"""Hardened systemd units for the agent and the collector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anynpu.apps.hardening import HARDENING
from anynpu.errors import ConfigError

_HARDENING = (
    *HARDENING,
    "ProtectHome=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
)


def unit(verb: str, program: Path, arguments: Sequence[str], token_file: Path | None) -> str:
    """Returns a unit that starts `anynpu watch agent` or `anynpu watch detect` with its state in /var/lib."""
    words = [str(program), "watch", verb, *arguments]
    token = ["--token-file", "%d/token"] if token_file is not None else []
    what = "measures this machine" if verb == "agent" else "collects and watches a fleet"
    lines = [
        "[Unit]",
        f"Description=anynpu watch {verb}: {what}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        f"Type={'notify' if verb == 'detect' else 'exec'}",
        f"ExecStart={' '.join([_word(word) for word in words] + token)}",
        "Restart=always",
        "RestartSec=5",
        *((f"LoadCredential=token:{_plain(str(token_file))}",) if token_file is not None else ()),
        "DynamicUser=yes",
        f"StateDirectory=anynpu-watch-{verb}",
        f"Environment=XDG_STATE_HOME=/var/lib/anynpu-watch-{verb} HOME=/var/lib/anynpu-watch-{verb}",
        *(("Nice=5", "MemoryMax=256M") if verb == "agent" else ("TimeoutStopSec=60", "LimitNOFILE=16384")),
        *_HARDENING,
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    if not text.isprintable() or '"' in text:
        raise ConfigError(f"{text!r}: a unit cannot hold this name")
    return text.replace("\\", "\\\\").replace("%", "%%")


def _word(text: str) -> str:
    plain = _plain(text).replace("$", "$$")
    return f'"{plain}"' if any(letter in plain for letter in " ;'") else plain
