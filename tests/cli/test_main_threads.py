"""A verb whose work children do starts no threads of its own for numpy, and leaves them theirs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SEEN = """
import os
from anynpu.cli.main import Verbs

group = Verbs("anynpu")
group.get_command(None, {verb!r})
import numpy
threads = len(os.listdir("/proc/self/task"))
print(threads, os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc: Linux alone has it")
@pytest.mark.parametrize("given", [None, "2"])
def test_a_build_starts_no_threads_for_numpy(given):
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    environment |= {} if given is None else {"OPENBLAS_NUM_THREADS": given}
    done = subprocess.run(
        [sys.executable, "-c", SEEN.format(verb="build")], env=environment, capture_output=True, text=True, check=True
    )
    threads, left = done.stdout.split()
    assert left == str(given) and (given is not None or threads == "1")
