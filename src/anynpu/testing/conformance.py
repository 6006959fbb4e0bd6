"""The contract of plug-ins: a new chip is one TOML, one module, one green kit.

    from anynpu.testing import conformance, models

    def test_toychip(tmp_path):
        platform = plugins.platform("toychip")
        conformance.check_platform(platform)
        model = models.onnx_artifact(models.dense_net(), tmp_path / "model")
        data = models.data_artifact(model, tmp_path / "data")
        made = conformance.check_target(ToyTarget(), model, platform, tmp_path / "kit", data=data)
        conformance.check_session(ToySession, made, tmp_path / "session", reference=model)

Each check raises AssertionError with one sentence that says what is wrong, and the rule that it breaks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anynpu import plugins, schema
from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError
from anynpu.measure.samples import SampleSet
from anynpu.pipeline.planner import chain
from anynpu.platform import Platform
from anynpu.targets.base import Target
from anynpu.tensors import DTYPES
from anynpu.testing import session_rules, target_rules
from anynpu.testing.rules import require, run_rules

__all__ = ["check_platform", "check_session", "check_target"]


def check_target(
    target: Target,
    model: Artifact,
    platform: Platform,
    folder: Path,
    options: Any = None,
    data: Artifact | None = None,
) -> Artifact:
    """Applies every rule for targets and returns what the target made; `folder` is new and takes the scratch files.

    `model` is in the format that the target accepts; `options` are the defaults unless given; `data` is a set of
    calibration samples (see `models.data_artifact`), for a target that needs some.
    """
    case = target_case(target, model, platform, folder, options, data)
    run_rules(target_rules.RULES, case, f"target {getattr(target, 'name', target)}")
    return case.first.artifact


def target_case(
    target: Target,
    model: Artifact,
    platform: Platform,
    folder: Path,
    options: Any = None,
    data: Artifact | None = None,
) -> target_rules.TargetCase:
    """Returns what each rule of `target_rules.RULES` takes, for test suites that show them one by one."""
    folder.mkdir(parents=True)
    chosen = target.Options() if options is None and isinstance(getattr(target, "Options", None), type) else options
    return target_rules.TargetCase(target, model, platform, chosen, data, folder.absolute())


def check_session(
    session_class: Any,
    artifact: Artifact,
    folder: Path,
    reference: Artifact | None = None,
    samples: SampleSet | None = None,
    min_sqnr_db: float = 10.0,
) -> None:
    """Applies every rule for sessions; with `reference`, the float model, the results must agree with it too."""
    folder.mkdir(parents=True)
    case = session_rules.SessionCase(session_class, artifact, folder.absolute(), reference, samples, min_sqnr_db)
    run_rules(session_rules.RULES, case, f"session {getattr(session_class, 'name', session_class)}")


def check_platform(platform: Platform) -> None:
    """Checks that a chip says what it is and where that is known from, and that compilers lead to it."""
    run_rules(PLATFORM_RULES, platform, f"platform {platform.name}")


def names_are_lower_case_and_its_own(platform: Platform) -> None:
    """A chip's name and aliases are lower-case, without blanks, and those of no other chip."""
    for name in (platform.name, *platform.aliases):
        require(name == "".join(name.lower().split()) and bool(name), f"'{name}' is not lower-case without blanks")
    for other in plugins.names("platforms"):
        if other != platform.name:
            known = {other, *plugins.platform(other).aliases}
            shared = known & {platform.name, *platform.aliases}
            require(not shared, f"{', '.join(sorted(shared))} is a name of {other} too")


def facts_have_a_source(platform: Platform) -> None:
    """A chip has a title, a vendor and a source for its facts, and each quirk a text, a source and when it was seen."""
    for name in ("title", "vendor", "target", "source"):
        require(bool(getattr(platform, name)), f"{name} is empty")
    for quirk in platform.quirks:
        require(bool(quirk.text and quirk.source and quirk.seen), f"a quirk lacks text, source or seen: {quirk}")


def figures_make_sense(platform: Platform) -> None:
    """A chip takes known data types, at least one, and its memories are larger than nothing."""
    require(bool(platform.dtypes), "dtypes is empty")
    unknown = sorted(set(platform.dtypes) - set(DTYPES))
    require(not unknown, f"dtypes: no such data type: {', '.join(unknown)}")
    for name, size in schema.to_dict(platform.memory).items():
        require(size > 0, f"memory.{name} is {size}")


def compilers_lead_there(platform: Platform) -> None:
    """A chain of registered compilers leads from ONNX to the chip, and the last of them reads its facts."""
    try:
        last = chain(platform)[-1]
        platform.facts_as(last.Facts)
    except AnyNpuError as error:
        raise AssertionError(error.message) from error


PLATFORM_RULES = (names_are_lower_case_and_its_own, facts_have_a_source, figures_make_sense, compilers_lead_there)
