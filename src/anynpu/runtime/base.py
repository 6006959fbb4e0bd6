"""What a session is, and how one is chosen for an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

from anynpu import plugins
from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, ModelRefused, ToolFailed, ToolMissing
from anynpu.runtime.abilities import SaysHowToGet
from anynpu.runtime.watch import watch
from anynpu.schema import near
from anynpu.tensors import Array, TensorSpec, relayout


class Session(Protocol):
    """An artifact made ready to run. `run` takes and gives stored values, exactly as the tensors' specs say.

    What a session may offer beyond this is in `runtime/abilities.py`.
    """

    name: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    rank: ClassVar[int]
    """Of several sessions that run a format, the one with the lowest rank is the reference."""
    what: ClassVar[str]
    """What executes, for reports: "TFLite-Micro interpreter on this host"."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __init__(self, artifact: Artifact) -> None: ...

    @staticmethod
    def missing() -> str:
        """Returns what to install before this session can run here, or an empty string."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model once."""
        ...

    def close(self) -> None:
        """Gives back what the session holds."""
        ...


def open_artifact(path: Path, strict: bool = False) -> Artifact:
    """Returns the artifact in a folder, or the one that a vendor's model file is by itself.

    With `strict` a .cix file whose container contradicts its program is an error, not a warning.
    """
    if path.suffix.lower() == ".cix" and not path.is_dir():
        from anynpu.runtime.noe.artifact import artifact_of

        return artifact_of(path, strict or None)
    artifact = Artifact.open(path)
    if strict:
        if artifact.manifest.format != "cix":
            raise ConfigError(f"--strict is for .cix models, {path} holds {artifact.manifest.format}", "leave it out")
        from anynpu.runtime.noe.cix import read_cix

        read_cix(artifact.main, strict=True)
    return artifact


def sessions_for(format: str) -> tuple[Any, ...]:
    """Returns the session classes that run a format, the reference first."""
    classes = []
    for name in plugins.names("sessions"):
        with suppress(ToolFailed):  # `anynpu tool list` names a plug-in that does not load; others go on without it
            classes.append(plugins.load("sessions", name))
    return tuple(sorted((c for c in classes if format in c.formats), key=lambda c: (c.rank, c.name)))


def choose(format: str, device: str | None = None) -> Any:
    """Returns the session class for a format: the named device, or the first one that can run here."""
    able = sessions_for(format)
    if device is not None:
        named = [c for c in able if c.name == device]
        if not named:
            plugins.load("sessions", device)  # an unknown name raises with the nearest one
            able_names = ", ".join(c.name for c in able) or "nothing here"
            raise ConfigError(f"device {device} does not run {format} artifacts", f"they run on: {able_names}")
        able = tuple(named)
    if not able:
        raise ToolMissing(
            f"nothing on this machine executes {format} artifacts",
            "run it on the device, or run the artifact it was compiled from (under steps/)",
        )
    reasons = []
    for cls in able:
        if not (reason := cls.missing()):
            return cls
        reasons.append(f"{cls.name}: {reason}")
    hint = able[0].get if isinstance(able[0], SaysHowToGet) else "pip install 'anynpu[build]'"
    raise ToolMissing(f"{format} artifacts cannot run here: " + "; ".join(reasons), hint)


def open_session(artifact: Artifact, device: str | None = None) -> Session:
    """Returns a session that runs the artifact: on the named device, or the first one here that takes the model."""
    first = choose(artifact.manifest.format, device)
    session: Session
    try:
        session = first(artifact)
    except ModelRefused:
        others = (cls for cls in sessions_for(artifact.manifest.format) if cls is not first and not cls.missing())
        second = next(others, None) if device is None else None
        if second is None:
            raise
        session = second(artifact)
    watch(session)
    return session


def check_names(arrays: Mapping[str, Array], specs: tuple[TensorSpec, ...]) -> None:
    """Raises unless exactly the tensors of `specs` are given."""
    wanted = {spec.name for spec in specs}
    for name in arrays:
        if name not in wanted:
            raise ConfigError(
                f"the model has no input {name}{near(name, wanted)}", "its inputs: " + ", ".join(sorted(wanted))
            )
    for name in sorted(wanted - set(arrays)):
        raise ConfigError(f"input {name} is missing", "the inputs are: " + ", ".join(sorted(wanted)))


def run_stored(session: Session, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Runs the session after checking names, shapes and types of what is given."""
    check_names(inputs, session.inputs)
    for spec in session.inputs:
        spec.check(inputs[spec.name])
    return session.run(inputs)


def stored_inputs(session: Session, inputs: Mapping[str, Array], like: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Returns real numbers in the layouts of `like` as the session stores them."""
    check_names(inputs, session.inputs)
    stored = {}
    for spec in session.inputs:
        moved = relayout(inputs[spec.name], like[spec.name].layout, spec.layout)
        stored[spec.name] = spec.to_stored(moved)
        spec.check(stored[spec.name])
    return stored


def run_real(session: Session, inputs: Mapping[str, Array], like: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Runs the session on real numbers in the layouts of `like` and returns real numbers in those layouts.

    `like` holds the specs of the float model by name; its outputs pair with the session's by name.
    """
    return real_outputs(session, session.run(stored_inputs(session, inputs, like)), like)


def real_outputs(session: Session, stored: Mapping[str, Array], like: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Returns what a session gave as real numbers in the layouts of `like`."""
    return {
        spec.name: relayout(spec.to_real(stored[spec.name]), spec.layout, like[spec.name].layout)
        for spec in session.outputs
    }
