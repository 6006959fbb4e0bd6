"""A hardened systemd unit and a compose file that start the server the way its command line would."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anynpu.apps.systemd import HARDENING, TOKEN, command_line, path_word, plain
from anynpu.errors import ConfigError

DEVICES = ("/dev/aipu", "/dev/rknpu", "/dev/dri", "/dev/accel", "/dev/apusys")
"""NPUs that a unit may open where they are there; all else of /dev is closed."""


@dataclass(frozen=True)
class Deployment:
    """What is written into a file: the program, its arguments, and the files it reads."""

    program: Path
    arguments: tuple[str, ...]
    reads: tuple[Path, ...]
    port: int
    socket: Path | None = None
    token_file: Path | None = None


def systemd_unit(deployment: Deployment) -> str:
    """Returns a unit of Type=notify: started once the models answer, restarted if the event loop stops turning."""
    credential = deployment.token_file is not None
    arguments = list(deployment.arguments)
    if credential:
        arguments += ["--token-file", TOKEN]
    lines = [
        "[Unit]",
        "Description=anynpu serve: models behind HTTP",
        "After=network.target",
        "StartLimitIntervalSec=60",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=notify",
        f"ExecStart={command_line([str(deployment.program), 'serve', *arguments])}",
        "ExecReload=kill -HUP $MAINPID",
        "Restart=on-failure",
        "RestartSec=2",
        "TimeoutStartSec=120",
        "TimeoutStopSec=60",
        "WatchdogSec=30",
        *((f"LoadCredential=token:{plain(str(deployment.token_file))}",) if credential else ()),
        "DynamicUser=yes",
        "SupplementaryGroups=video render",
        "CacheDirectory=anynpu",
        "Environment=ANYNPU_CACHE_DIR=/var/cache/anynpu",
        *(("RuntimeDirectory=anynpu",) if deployment.socket is not None else ()),
        *(f"BindReadOnlyPaths={path_word(str(path))}" for path in deployment.reads),
        *_HARDENING,
        *(f"DeviceAllow={device} rw" for device in DEVICES),
        "LimitNOFILE=16384",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


_HARDENING = (
    *HARDENING,
    "ProtectHome=tmpfs",
    "ProtectProc=invisible",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "AmbientCapabilities=",
    "SystemCallFilter=~@privileged",
    "DevicePolicy=closed",
)


def compose_file(deployment: Deployment, image: str = "anynpu") -> str:
    """Returns a compose file: one read-only container without privileges, reached from this computer only."""
    volumes = [f"{path}:{path}:ro" for path in deployment.reads]
    arguments = list(deployment.arguments)
    if deployment.token_file is not None:
        arguments += ["--token-file", "/run/secrets/token"]
    probe = "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/ready', timeout=3)"
    lines = [
        "services:",
        "  anynpu:",
        f"    image: {_yaml(image)}",
        f"    command: [{', '.join(map(_yaml, ['anynpu', 'serve', *arguments]))}]",
        "    environment:",
        '      ANYNPU_CACHE_DIR: "/tmp/anynpu"',
        "    ports:",
        f"      - {_yaml(f'127.0.0.1:{deployment.port}:8000')}",
        "    volumes:",
        *(f"      - {_yaml(volume)}" for volume in volumes),
        *(("    secrets:", "      - token") if deployment.token_file is not None else ()),
        "    # For an NPU name its device here, such as /dev/aipu:",
        "    # devices:",
        '    #   - "/dev/aipu:/dev/aipu"',
        "    read_only: true",
        "    tmpfs:",
        '      - "/tmp"',
        "    cap_drop:",
        '      - "ALL"',
        "    security_opt:",
        '      - "no-new-privileges:true"',
        "    restart: unless-stopped",
        "    stop_grace_period: 60s",
        "    healthcheck:",
        f"      test: [{', '.join(map(_yaml, ['CMD', 'python3', '-c', probe]))}]",
        "      interval: 10s",
        "      start_period: 60s",
    ]
    if deployment.token_file is not None:
        lines += ["secrets:", "  token:", f"    file: {_yaml(str(deployment.token_file))}"]
    return "\n".join(lines) + "\n"


def _yaml(text: str) -> str:
    """Returns a YAML string; every one is quoted, and a dollar sign stays one in compose."""
    if not text.isprintable():
        raise ConfigError(f"{text!r}: a compose file cannot hold this name")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$") + '"'
