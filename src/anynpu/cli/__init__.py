"""The command line: one file a verb group, each imported only when its verb is called."""

from anynpu.cli.main import main

__all__ = ["main"]
