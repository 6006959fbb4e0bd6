"""Every registered compiler keeps every rule of the kit."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from anynpu import plugins
from anynpu.testing.target_rules import RULES


@pytest.mark.parametrize("name", plugins.names("targets"))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_target(name, rule, case_of):
    rule(case_of(name))


@pytest.fixture(scope="module")
def variant(case_of, tmp_path_factory):
    """Gives the case of a compiler with other activations than its default."""

    @functools.cache
    def case(name, activations):
        usual = case_of(name)
        options = usual.target.Options(activations=activations)
        return replace(usual, options=options, folder=tmp_path_factory.mktemp(f"{name}-{activations}"))

    return case


VARIANTS = [("cpu", "float32"), ("cpu", "int16"), ("cpu", "uint8"), ("tflite", "float32")]


@pytest.mark.parametrize(("name", "activations"), VARIANTS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_target_with_other_activations(name, activations, rule, variant):
    rule(variant(name, activations))
