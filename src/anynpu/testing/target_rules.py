"""The contract of a target, one rule a function; the docstring is the rule."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from anynpu import schema, tool
from anynpu.artifact import Artifact, Manifest, Step, seal
from anynpu.errors import AnyNpuError, ConfigError, Finding
from anynpu.platform import Platform
from anynpu.targets.base import Target, Work
from anynpu.testing.child import whereabouts
from anynpu.testing.models import NOW
from anynpu.testing.rules import damaged, difference, require, snapshot


@dataclass(frozen=True)
class Compiled:
    """What one compile made, and what it left or changed where it should not."""

    manifest: Manifest
    out: Path
    strays: list[str]
    touched: list[str]

    @cached_property
    def artifact(self) -> Artifact:
        return seal(self.out, self.manifest, Step("conformance"), NOW)


@dataclass(frozen=True)
class TargetCase:
    """A target with something to compile and an empty folder to do it in."""

    target: Target
    model: Artifact
    platform: Platform
    options: Any
    data: Artifact | None
    folder: Path

    @property
    def final(self) -> bool:
        """Whether this target is the chip's own compiler, the last of the chain."""
        return self.platform.target == self.target.name

    @property
    def samples(self) -> Artifact | None:
        return self.data if self.target.needs_data(self.options) else None

    @cached_property
    def first(self) -> Compiled:
        return self.compile("first")

    @cached_property
    def second(self) -> Compiled:
        return self.compile("second")

    def compile(self, name: str) -> Compiled:
        """Compiles in a new scratch folder, watching that folder, the working folder and the inputs."""
        room = self.folder / name
        out, log = room / "scratch" / "artifact", room / "log.txt"
        out.mkdir(parents=True)
        with self.watched(room) as touched:
            manifest = self.target.compile(
                self.model, self.samples, self.platform, self.options, out, Work(log, lambda done, total: None)
            )
        inside = out.relative_to(room).as_posix()
        known = {"cwd", "scratch", inside, "log.txt"}
        strays = [p for p in snapshot(room) if p not in known and not p.startswith(inside + "/")]
        return Compiled(manifest, out, strays, touched)

    @contextlib.contextmanager
    def watched(self, room: Path) -> Iterator[list[str]]:
        """Works in an empty folder and yields a list that holds, afterwards, the input files that have changed."""
        (room / "cwd").mkdir(parents=True)
        inputs = [a.path for a in (self.model, self.data) if a is not None]
        before = [snapshot(path) for path in inputs]
        touched: list[str] = []
        with contextlib.chdir(room / "cwd"):
            yield touched
        for path, was in zip(inputs, before, strict=True):
            touched += [f"{path.name}/{name}" for name in difference(was, snapshot(path))]


def members_are_there(case: TargetCase) -> None:
    """A target has a name, two formats, Options, Facts and four methods, and is made without arguments."""
    for name in ("name", "accepts", "produces"):
        value = getattr(case.target, name, None)
        require(isinstance(value, str) and bool(value), f"{name} is {value!r}, not a text")
    for name in ("tools", "needs_data", "check", "compile"):
        require(callable(getattr(case.target, name, None)), f"it has no method {name}")
    for name in ("Options", "Facts"):
        value = getattr(case.target, name, None)
        require(isinstance(value, type) and dataclasses.is_dataclass(value), f"{name} is not a dataclass")
    try:
        type(case.target)()
    except TypeError as error:
        raise AssertionError(f"it cannot be made without arguments: {error}") from error


def options_are_frozen_and_explained(case: TargetCase) -> None:
    """Options is a frozen dataclass in which every field has a default and a help text, and survives JSON."""
    cls = case.target.Options
    require(_frozen(cls), "Options is not frozen")
    for field in dataclasses.fields(cls):
        plain = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        require(not plain, f"option {field.name} has no default")
        text = field.metadata.get("help")
        require(isinstance(text, str) and bool(text), f"option {field.name} has no help text: declare it with option()")
    again = schema.from_dict(cls, schema.to_dict(case.options), "Options")
    require(again == case.options, f"the options change on their way through JSON: {again} is not {case.options}")


def facts_are_frozen_and_fit(case: TargetCase) -> None:
    """Facts is a frozen dataclass that reads the facts of the chip."""
    require(_frozen(case.target.Facts), "Facts is not frozen")
    if case.final:
        try:
            case.platform.facts_as(case.target.Facts)
        except ConfigError as error:
            raise AssertionError(f"Facts does not read the chip's facts: {error.message}") from error


def _frozen(cls: type[Any]) -> bool:
    return bool(getattr(cls, "__dataclass_params__").frozen)  # noqa: B009  # not in the type stubs


def tools_are_told_without_importing(case: TargetCase) -> None:
    """tools() gives each tool with its version, or raises ToolMissing with a hint, and imports nothing heavy."""
    room = case.folder / "tools"
    room.mkdir()
    where = whereabouts(type(case.target))
    # With the whole environment it is a fresh process, which has imported nothing yet.
    log = room / "log.txt"
    answer = tool.call("anynpu.testing.child:probe_tools", where, scratch=room, log=log, whole_environment=True)
    require(not answer["imported"], f"listing it imports {', '.join(answer['imported'])}")
    require(not answer["by_tools"], f"tools() imports {', '.join(answer['by_tools'])}")
    if "error" in answer:
        require(answer["error"] == "ToolMissing", f"tools() raises {answer['error']}, not ToolMissing")
        require(bool(answer["hint"]), "tools() raises ToolMissing without saying how to get the tool")
        return
    for name, version in answer["tools"].items():
        require(isinstance(version, str) and bool(version), f"tools() gives {version!r} as the version of {name}")


def needs_data_answers(case: TargetCase) -> None:
    """needs_data() says True or False, and with True compile() raises ConfigError where there is no data."""
    answer = case.target.needs_data(case.options)
    require(isinstance(answer, bool), f"needs_data() gives {answer!r}")
    if answer:
        require(case.data is not None, "the kit needs calibration data for this target: give data=")
        bare = dataclasses.replace(case, data=None)
        try:
            bare.compile("without-data")
        except ConfigError:
            return
        except Exception as error:  # any other class breaks the rule
            raise AssertionError(f"without data compile() raises {_told(error)}, not ConfigError") from error
        raise AssertionError("without data compile() succeeds, though needs_data() says True")


def check_gives_findings_and_writes_nothing(case: TargetCase) -> None:
    """check() returns a tuple of findings, each with a rule and a message, and writes nothing anywhere."""
    room = case.folder / "check"
    with case.watched(room) as touched:
        findings = case.target.check(case.model, case.platform, case.options)
    require(isinstance(findings, tuple), f"check() gives {type(findings).__name__}, not a tuple")
    for finding in findings:
        require(isinstance(finding, Finding), f"check() gives {finding!r}, not a Finding")
        require(bool(finding.rule and finding.message), f"a finding has no rule or no message: {finding!r}")
    require(not touched, f"check() changes its input: {', '.join(touched)}")
    strays = [name for name in snapshot(room) if name != "cwd"]
    require(not strays, f"check() writes into the working folder: {', '.join(strays)}")


def compile_writes_inside_out_only(case: TargetCase) -> None:
    """compile() leaves files inside `out` only and its inputs unchanged."""
    require(not case.first.strays, f"compile() leaves files outside `out`: {', '.join(case.first.strays)}")
    require(not case.first.touched, f"compile() changes its input: {', '.join(case.first.touched)}")


def manifest_says_what_was_made(case: TargetCase) -> None:
    """The manifest has the format that the target produces and names a main file that is there."""
    manifest = case.first.manifest
    require(isinstance(manifest, Manifest), f"compile() gives {type(manifest).__name__}, not a Manifest")
    require(
        manifest.format == case.target.produces,
        f"the format is {manifest.format}, the target produces {case.target.produces}",
    )
    require((case.first.out / manifest.main).is_file(), f"there is no main file {manifest.main}")
    sealed = (manifest.files, manifest.step, manifest.made)
    require(sealed == ((), None, None), "files, step and made are filled in; sealing does that")
    try:
        schema.canonical_json(manifest)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the manifest does not go into JSON: {error}") from error


def tensors_and_fingerprint_are_kept(case: TargetCase) -> None:
    """Tensors keep names, order and size, integers that stand for reals say how, and the fingerprint stays."""
    manifest, source = case.first.manifest, case.model.manifest
    require(manifest.fingerprint == source.fingerprint, "the fingerprint of the model is dropped or changed")
    for what, result, expected in (
        ("inputs", manifest.inputs, source.inputs),
        ("outputs", manifest.outputs, source.outputs),
    ):
        names = [s.name for s in result], [s.name for s in expected]
        require(names[0] == names[1], f"{what} are {names[0]}, the model has {names[1]}")
        for new, old in zip(result, expected, strict=True):
            if new.shape != old.shape:
                stated = bool(new.layout and old.layout) and sorted(new.layout) == sorted(old.layout)
                turned = stated and new.shape == tuple(old.shape[old.layout.index(axis)] for axis in new.layout)
                require(
                    turned,
                    f"tensor {new.name} has shape {list(new.shape)}, the model {list(old.shape)}; no layout says so",
                )
            was_real = old.dtype.startswith("float") or old.quantization is not None
            if was_real and not new.dtype.startswith("float"):
                require(new.quantization is not None, f"tensor {new.name} holds {new.dtype} without saying its scale")


def compile_is_deterministic(case: TargetCase) -> None:
    """Compiling twice, in two folders, gives equal digests."""
    a, b = case.first.artifact, case.second.artifact
    changed = sorted({f.path for f in a.manifest.files} ^ {f.path for f in b.manifest.files})
    changed += [x.path for x in a.manifest.files for y in b.manifest.files if x.path == y.path and x.sha256 != y.sha256]
    require(not changed, f"two compiles give different files: {', '.join(changed)}")
    fields = [f.name for f in dataclasses.fields(Manifest)]
    unequal = [n for n in fields if getattr(a.manifest, n) != getattr(b.manifest, n)]
    require(a.digest == b.digest, f"two compiles give manifests that differ in {', '.join(unequal)}")


def bad_input_raises_our_errors(case: TargetCase) -> None:
    """A damaged model, or one of another format, raises an AnyNpuError from check() and compile() and no other class.

    A compiler that never reads the file is excused: it makes the very same files as from the sound one.
    """
    sound = [(f.path, f.sha256) for f in case.first.artifact.manifest.files]
    for what, model in damaged(case.model, case.folder / "damaged").items():
        bad = dataclasses.replace(case, model=model)
        try:
            case.target.check(model, case.platform, case.options)
        except AnyNpuError:
            pass
        except Exception as error:
            raise AssertionError(f"check() of a model {what} raises {_told(error)}") from error
        try:
            files = bad.compile("bad-" + model.path.name).artifact.manifest.files
        except AnyNpuError:
            continue
        except Exception as error:
            raise AssertionError(f"compile() of a model {what} raises {_told(error)}") from error
        require([(f.path, f.sha256) for f in files] == sound, f"compile() makes something of a model {what}")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def npu_has_a_receipt(case: TargetCase) -> None:
    """For a chip with an NPU the manifest says where every operator runs, and why where that is not the NPU."""
    if not (case.platform.npu and case.final):
        return
    placement = case.first.manifest.placement
    if placement is None:
        raise AssertionError(f"no placement says what runs on the {case.platform.npu}")
    require(bool(placement.npu and placement.operators), "the placement names no NPU or no operators")
    for op in placement.elsewhere():
        require(bool(op.reason), f"operator {op.kind} {op.name} is not on the NPU and no reason is given")


RULES: tuple[Callable[[TargetCase], None], ...] = (
    members_are_there,
    options_are_frozen_and_explained,
    facts_are_frozen_and_fit,
    tools_are_told_without_importing,
    needs_data_answers,
    check_gives_findings_and_writes_nothing,
    compile_writes_inside_out_only,
    manifest_says_what_was_made,
    tensors_and_fingerprint_are_kept,
    npu_has_a_receipt,
    compile_is_deterministic,
    bad_input_raises_our_errors,
)
