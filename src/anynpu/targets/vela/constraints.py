"""Which operators Vela would refuse, from its own constraint table, before anything is compiled."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from anynpu.errors import Finding, ToolMissing
from anynpu.targets.flatbuffer import TfliteOperator
from anynpu.targets.vela import permute_rules, resize_rules, shape_rules
from anynpu.targets.vela.command import INSTALL
from anynpu.targets.vela.rules import RULES, key

MODULES = (permute_rules, resize_rules, shape_rules)
"""Importing them registers their rules."""

SPELLED = {"ARGMAX": "ARG_MAX"}
"""Where the table's name of an operator is not the TFLite schema's."""

LONGEST_STEP = {"EthosU55": 3, "EthosU65": 3, "EthosU85": 1 << 16}
"""How far a window moves at once. Vela makes an operation of each window that moves farther, or fails where the image
has pads."""


@functools.cache
def table(family: str) -> Mapping[str, tuple[str, ...]]:
    """Returns Vela's sentences for every operator kind that the family ("EthosU55", ...) supports."""
    try:
        from ethosu import regor
    except ImportError:
        raise ToolMissing("ethos-u-vela is not installed", INSTALL) from None
    constraints = regor.tflite_operator_constraints(family)
    return {SPELLED.get(kind, kind): tuple(sentences) for kind, sentences in constraints.items()}


def family(accelerator: str) -> str:
    """Returns Vela's name of the family of an accelerator: "ethos-u55-128" is "EthosU55"."""
    return "EthosU" + accelerator.removeprefix("ethos-u").split("-")[0]


def refused(model: Sequence[TfliteOperator], accelerator: str) -> tuple[Finding, ...]:
    """Returns the first reason for every operator that would run on the CPU."""
    sentences = table(family(accelerator))
    reasons = []
    for op in model:
        where = f"{op.kind} {op.name}"
        if op.kind not in sentences:
            kind = f"custom operator {op.custom_code}" if op.custom_code else op.kind
            words = f"{kind} is not among the operators that the NPU supports"
            reasons.append(Finding("vela-operator", words, where))
            continue
        for sentence in sentences[op.kind]:
            holds = RULES.get(key(sentence))
            if holds is not None and not holds(op):
                reasons.append(Finding("vela-constraint", key(sentence), where))
                break
    return tuple(reasons)


def unresized(model: Sequence[TfliteOperator], accelerator: str) -> frozenset[str]:
    """Returns the results of the resizes that the NPU does not have, or not as TFLite has them, in whatever type."""
    sentences = table(family(accelerator))
    names = set()
    for op in model:
        rules = [RULES.get(key(sentence)) for sentence in sentences.get(op.kind, ())]
        own = [rule for rule in rules if rule is not None and rule.__module__ == resize_rules.__name__]
        if op.kind.startswith("RESIZE_") and not all(rule(op) for rule in own):
            names.add(op.outputs[0].name)
    return frozenset(names) | {op.outputs[0].name for op in miscompiled(model, accelerator)}


def miscompiled(model: Sequence[TfliteOperator], accelerator: str) -> tuple[TfliteOperator, ...]:
    """Returns the operators that the NPU computes, but not as TFLite does."""
    if family(accelerator) != "EthosU85":
        return ()
    return tuple(op for op in model if resize_rules.samples_elsewhere(op))
