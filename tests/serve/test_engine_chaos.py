"""A short campaign of tests/robustness/serve_chaos.py, which runs for ten minutes by itself."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from anynpu.testing import noe

sys.path.append(str(Path(__file__).parents[1] / "robustness"))
from serve_chaos import campaign

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")


def test_a_device_that_is_broken_at_random_never_lies(tmp_path):
    outcome = campaign(8, 8, noe.build_fake(tmp_path), period_s=1.0, gap_s=(0.2, 0.8), slack_s=60)
    report = outcome.report()
    assert outcome.violations == [], report
    assert set(outcome.faults) == {"kill", "hang", "corrupt"} and outcome.outcomes["right"] > 20, report
    assert 0 < outcome.wrong <= outcome.suspect, report
