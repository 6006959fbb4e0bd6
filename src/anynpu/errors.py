"""What can go wrong, as one tree; the number is the exit status of the command line.

    AnyNpuError
    ├─ ConfigError     2   the request itself: a flag, a file, a value
    ├─ Unsupported     3   this model cannot go to that chip (findings say why)
    ├─ ToolMissing     4   a toolchain or driver is not installed
    ├─ ToolFailed      5   a vendor tool ran and failed (argv, status, log, last lines)
    │  └─ PassFailed       a pass of our own writer changed results
    ├─ DeviceError     6   a device or its driver refused (call, code, likely cause)
    ├─ AccuracyError   7   the result was executed and is not good enough
    ├─ IntegrityError  8   a file is not what it claims to be
    │  └─ ModelRefused     a runtime has no kernels for a model; another one may run it
    └─ Defect         70   anynpu itself is at fault

Every error carries one sentence for the user and, where there is one, a hint at what to do next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, marks and overrides of the direction of text, what is not seen, and halves of characters."""
ENDS = re.compile("[\t\n]")


class AnyNpuError(Exception):
    """Something the user should read as one sentence, with a hint at the next step."""

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take other arguments; restoring the attributes keeps errors picklable across processes.
        return (_restore, (type(self), self.args, self.__dict__))


class SuspectWarning(UserWarning):
    """A result was computed and may be wrong; the text is one sentence for the user."""


def _restore(kind: type[AnyNpuError], args: tuple[object, ...], state: dict[str, object]) -> AnyNpuError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(AnyNpuError):
    """The request is wrong: an unknown name, a bad value, a file that is not there."""

    exit_status = 2


@dataclass(frozen=True)
class Finding:
    """One reason why an operator or a model does not go to a chip."""

    rule: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class Unsupported(AnyNpuError):
    """The model cannot go to that chip; the findings say which part and why."""

    exit_status = 3

    def __init__(self, message: str, findings: Iterable[Finding] = (), hint: str = "") -> None:
        super().__init__(message, hint)
        self.findings = tuple(findings)


class ToolMissing(AnyNpuError):
    """A toolchain is not installed; the hint says how to get it."""

    exit_status = 4


class ToolFailed(AnyNpuError):
    """A vendor tool ran and failed."""

    exit_status = 5

    def __init__(
        self,
        message: str,
        argv: Sequence[str] = (),
        status: int | None = None,
        log: str = "",
        last_lines: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint)
        self.argv = tuple(argv)
        self.status = status
        self.log = log
        self.last_lines = tuple(last_lines)


class PassFailed(ToolFailed):
    """A pass of our own writer changed what the model computes; the build is made again without it."""

    def __init__(self, message: str, skipped: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.skipped = skipped


class DeviceError(AnyNpuError):
    """A device or its driver refused a call."""

    exit_status = 6

    def __init__(self, message: str, call: str = "", code: int | None = None, cause: str = "", hint: str = "") -> None:
        super().__init__(message, hint)
        self.call = call
        self.code = code
        self.cause = cause


class AccuracyError(AnyNpuError):
    """The artifact was executed and its results are not good enough."""

    exit_status = 7

    def __init__(
        self, message: str, metric: str, got: float, wanted: float, worst: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.metric = metric
        self.got = got
        self.wanted = wanted
        self.worst = tuple(worst)


class IntegrityError(AnyNpuError):
    """A file is not what it claims to be: damaged, truncated, or of another kind."""

    exit_status = 8


class ModelRefused(IntegrityError):
    """A runtime does not take a whole file; another runtime of the same format may."""


class Defect(AnyNpuError):
    """Something that anynpu did not expect."""

    exit_status = 70

    def __init__(self, error: Exception) -> None:
        import traceback

        hint = "this is a defect of anynpu; -v shows where, please report it"
        super().__init__(f"internal error: {type(error).__name__}: {error}", hint)
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        self.last_lines = tuple(f"{Path(each.filename).name}:{each.lineno} in {each.name}" for each in frames)
        self.__cause__ = error


def first_line(error: BaseException) -> str:
    """Returns the first line of what another library's error says, or its name where it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def visible(text: str) -> str:
    """Returns text in which what a terminal would obey instead of showing it is written as an escape (\\x1b, \\u202e).

    Ends of lines and tabs stay; `on_one_line` shows them too.
    """
    return OBEYED.sub(_escaped, text)


def on_one_line(text: str) -> str:
    """Returns visible text in which a name cannot begin a line of its own either."""
    return ENDS.sub(_escaped, visible(text))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
