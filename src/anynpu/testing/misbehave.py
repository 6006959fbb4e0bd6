"""What a fake of a vendor's tool does instead of its work; it needs the standard library alone, as the fakes do."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any


def misbehave(plan: Mapping[str, Any]) -> None:
    """Says the lines that the plan has under `says`; then hangs or crashes, if that is switched on."""
    sys.stdout.writelines(f"{line}\n" for line in plan.get("says", ()))
    sys.stdout.flush()
    if plan.get("hang"):
        time.sleep(600)
    if plan.get("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
