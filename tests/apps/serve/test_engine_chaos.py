"""A short campaign of chaos.py, which runs for ten minutes by itself: until everything has happened once."""

from __future__ import annotations

import shutil

import pytest
from chaos import KINDS, Outcome, Pace, campaign

from anynpu.testing import noe

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")
PATIENT = Pace(period_s=1.0, gap_s=(0.05, 0.3), slack_s=120, deadline_s=300)
LIMIT_S = 240


def is_seen(outcome: Outcome) -> bool:
    """Whether every kind of fault struck, a lie left before it was found, and plenty went well."""
    return set(outcome.faults) == set(KINDS) and outcome.wrong > 0 and outcome.outcomes["right"] > 20


@pytest.mark.parametrize("through_http", (False, True), ids=("engine", "http"))
def test_a_device_that_is_broken_at_random_never_lies(tmp_path, through_http):
    library = noe.build_fake(tmp_path)
    outcome = campaign(lambda now: is_seen(now) or now.seconds > LIMIT_S, 8, library, PATIENT, through_http)
    assert outcome.violations == [], outcome.report()
    assert is_seen(outcome), outcome.report()
