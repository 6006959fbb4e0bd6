"""The one table from what can go wrong to the status that a client sees."""

from __future__ import annotations

import math
from collections.abc import Mapping

from anynpu.apps.serve.base import Expired, Overloaded, Stopped, TooLarge
from anynpu.apps.web.message import Header, Refusal
from anynpu.errors import AccuracyError, AnyNpuError, ConfigError, DeviceError, IntegrityError, ToolMissing, Unsupported

STATUSES: Mapping[type[AnyNpuError], tuple[int, str]] = {
    Overloaded: (429, "overloaded"),
    Expired: (504, "deadline_exceeded"),
    TooLarge: (413, "too_large"),
    Stopped: (503, "stopping"),
    DeviceError: (503, "device_error"),
    AccuracyError: (500, "bad_result"),
    ConfigError: (422, "unprocessable"),
    IntegrityError: (422, "unreadable"),
    Unsupported: (422, "unsupported"),
    ToolMissing: (501, "not_installed"),
}
RETRY_S = 1.0
"""After a device failed its session is rebuilt; trying again sooner is of no use."""


def refusal_of(error: Exception) -> Refusal | None:
    """Returns how an error is reported to a client, or None for one that is a defect of ours."""
    reported = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)
    if reported is None or not isinstance(error, AnyNpuError):
        return None
    status, code = reported
    wait = error.retry_after_s if isinstance(error, Overloaded) else RETRY_S if status == 503 else None
    headers: tuple[Header, ...] = () if wait is None else ((b"retry-after", b"%d" % max(1, math.ceil(wait))),)
    cause = f" ({error.cause})" if isinstance(error, DeviceError) and error.cause else ""
    return Refusal(status, error.message + cause, error.hint, code, headers=headers)
