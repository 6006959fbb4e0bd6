"""Runs a command on a pseudo-terminal and writes what it showed as an SVG: the picture of the README.

python scripts/picture.py docs/demo.svg anynpu demo --overwrite
"""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 118


def screen(argv: list[str]) -> str:
    """Returns everything the command wrote to its terminal."""
    os.environ.update(COLUMNS=str(WIDTH), LINES="50", TERM="xterm-256color")
    os.environ.pop("CI", None)
    chunks: list[bytes] = []

    def read(fd: int) -> bytes:
        chunks.append(os.read(fd, 65536))
        return chunks[-1]

    status = pty.spawn(argv, read)
    if status:
        raise SystemExit(f"{' '.join(argv)} ended with status {os.waitstatus_to_exitcode(status)}")
    return b"".join(chunks).decode()


def lasting(text: str) -> list[str]:
    """Returns the lines that stay: a live bar redraws itself with cursor movements, which are dropped."""
    lines = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]", "", line) for line in lines]
    return [line for line in plain if not re.search(r"[⠁-⣿]", line) and line.strip("\x1b[0m ")]


def main() -> None:
    target, argv = Path(sys.argv[1]), sys.argv[2:]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ " + " ".join([Path(argv[0]).name, *argv[1:]]), style="bold"))
    for line in lasting(screen(argv)):
        console.print(Text.from_ansi(line))
    picture = console.export_svg(title="anynpu")
    # No fonts from the network: a viewer's own monospace font does.
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
