"""What a session may offer beyond `Session`: each ability is a protocol, and whoever uses one asks with `isinstance`.

class NpuSession:
    hardware = True                                        # OnHardware

    @property
    def placement(self) -> Placement | None: ...           # TellsPlacement
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from anynpu.artifact import Placement
from anynpu.tensors import Array

if TYPE_CHECKING:
    from anynpu.runtime.ethos_u.findings import Audited


@runtime_checkable
class OnHardware(Protocol):
    """It runs on a device: its results may be wrong where those of a CPU cannot be, and models share it."""

    hardware: bool


@runtime_checkable
class TellsPlacement(Protocol):
    """It says which operators ran on the NPU."""

    @property
    def placement(self) -> Placement | None: ...


@runtime_checkable
class TellsVersions(Protocol):
    """It can ask for the versions of driver, firmware and runtime."""

    def versions(self) -> Mapping[str, object]: ...


@runtime_checkable
class NamesPackages(Protocol):
    """It names the Python packages that compute."""

    packages: tuple[str, ...]


@runtime_checkable
class LoadsHere(Protocol):
    """It loads the file into this process; `package` is the one whose code reads it, and may be empty.

    `runtime/trial.py` tries a new artifact in a child process first."""

    package: str


@runtime_checkable
class SaysHowToGet(Protocol):
    """It knows the command or the page that brings what it lacks."""

    get: str


@runtime_checkable
class FreeAxes(Protocol):
    """It runs any size of some axes: "batch", "length"."""

    free: Collection[str]


@runtime_checkable
class EndsJobs(Protocol):
    """It ends a job that hangs by itself."""

    timeout_ms: int | None


@runtime_checkable
class BeginsJobs(Protocol):
    """It has the device begin a job in one thread, and takes the outputs in another."""

    def begin(self, inputs: Mapping[str, Array]) -> Callable[[], dict[str, Array]] | None:
        """Returns what waits for the outputs and has to be called once; never waits itself.

        None where the device cannot begin at once: `run` is to be called instead.
        """
        ...


@runtime_checkable
class RunsMany(Protocol):
    """It takes many samples in one call, along the first axis."""

    def run_many(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...


@runtime_checkable
class MeasuresArena(Protocol):
    """It knows how much of the arena a run needs."""

    def arena_bytes(self) -> int | None: ...


@runtime_checkable
class NamesHost(Protocol):
    """Its results depend on the instructions of this host's CPU, and it names them."""

    host: str


@runtime_checkable
class Audits(Protocol):
    """It can follow a run and say what its operations did that they must not do."""

    def audit(self, inputs: Mapping[str, Array]) -> Audited: ...


@runtime_checkable
class FindsDifference(Protocol):
    """It can say at which operator it first differs from the model that it was compiled from."""

    def first_difference(self, source: bytes, inputs: Mapping[str, Array]) -> str: ...


def on_hardware(session: object) -> bool:
    """Returns whether a session runs on a device."""
    return isinstance(session, OnHardware) and session.hardware


def placement_of(session: object) -> Placement | None:
    """Returns which operators ran on the NPU, where the session says so."""
    return session.placement if isinstance(session, TellsPlacement) else None


def free_axes(session: object) -> Collection[str]:
    """Returns the axes that a session runs at any size."""
    return session.free if isinstance(session, FreeAxes) else ()
