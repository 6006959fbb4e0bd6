"""Hardened systemd units for the agent and the collector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anynpu.apps.systemd import HARDENING, TOKEN, command_line, plain

_HARDENING = (
    *HARDENING,
    "ProtectHome=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
)


def unit(verb: str, program: Path, arguments: Sequence[str], token_file: Path | None) -> str:
    """Returns a unit that starts `anynpu watch agent` or `anynpu watch detect` with its state in /var/lib."""
    words = [str(program), "watch", verb, *arguments]
    token = ["--token-file", TOKEN] if token_file is not None else []
    what = "measures this machine" if verb == "agent" else "collects and watches a fleet"
    lines = [
        "[Unit]",
        f"Description=anynpu watch {verb}: {what}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        f"Type={'notify' if verb == 'detect' else 'exec'}",
        f"ExecStart={command_line([*words, *token])}",
        "Restart=always",
        "RestartSec=5",
        *((f"LoadCredential=token:{plain(str(token_file))}",) if token_file is not None else ()),
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
