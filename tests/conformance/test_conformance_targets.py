"""Every registered compiler keeps every rule of the kit."""

from __future__ import annotations

import pytest

from anynpu import plugins
from anynpu.testing.target_rules import RULES


@pytest.mark.parametrize("name", plugins.names("targets"))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_target(name, rule, case_of):
    rule(case_of(name))
