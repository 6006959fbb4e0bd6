"""Every registered chip keeps every rule of the kit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anynpu import plugins
from anynpu.platform import Memory, Quirk
from anynpu.testing import conformance


@pytest.mark.parametrize("name", plugins.names("platforms"))
def test_platform(name):
    conformance.check_platform(plugins.platform(name))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "Ethos U55"}, "lower-case"),
        ({"aliases": ("cpu",)}, "is a name of cpu too"),
        ({"source": ""}, "source is empty"),
        ({"quirks": (Quirk("slow", "", "2026-01-01"),)}, "a quirk lacks"),
        ({"dtypes": ("int7",)}, "no such data type: int7"),
        ({"dtypes": ()}, "dtypes is empty"),
        ({"memory": Memory(sram_kib=0)}, "memory.sram_kib is 0"),
        ({"target": "vella"}, "no such compiler: vella"),
        ({"facts": {"accelerator": "ethos-u55-128"}}, "config: is missing"),
    ],
)
def test_a_bad_platform_is_caught(change, sentence):
    with pytest.raises(AssertionError, match=sentence):
        conformance.check_platform(replace(plugins.platform("ethos-u55-128"), **change))
