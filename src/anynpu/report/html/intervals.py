"""Figures with their intervals on one line."""

from __future__ import annotations

import math

from anynpu.records.compare import Ratio
from anynpu.report.html.axes import Frame, axes, chart, padded, short
from anynpu.report.html.markup import Markup, el


def ratio_chart(ratio: Ratio, better: str, worse: str) -> Markup:
    """Returns a ratio of medians with its interval against the line of no difference; "" without a median."""
    middle, low, high = ratio.median, ratio.low, ratio.high
    if middle is None:
        return Markup("")
    ends = [value for value in (low, middle, high) if value is not None]
    if min(ends) <= 0:
        return Markup("")
    far = 1.4 * max(abs(math.log(value)) for value in ends) or 0.01
    frame = Frame(height=120, left=40, right=40, top=30)
    x = frame.x(math.exp(-far), math.exp(far), log=True)  # twice and half as slow lie equally far from 1
    level = 56.0
    parts = [*axes(frame, x, None, "ratio of medians, B / A (logarithmic)")]
    parts.append(el("line", x1=x(1), x2=x(1), y1=frame.top - 8, y2=frame.height - frame.bottom, class_="limit"))
    parts.append(el("text", f"← {better}", x=x(1) - 10, y=16, class_="mark end"))
    parts.append(el("text", f"{worse} →", x=x(1) + 10, y=16, class_="mark"))
    parts += _whisker(x(middle), None if low is None else x(low), None if high is None else x(high), level)
    sentence = f"ratio {short(middle)}" + (
        f", interval {short(low)} to {short(high)}" if low is not None and high is not None else ""
    )
    return chart("Ratio of medians", sentence, frame, parts, el("p", sentence + ".", class_="muted"))


def score_chart(name: str, score: float, low: float | None, high: float | None) -> Markup:
    """Returns a score with its interval."""
    frame = Frame(height=110, left=40, right=40, top=24)
    known = [value for value in (low, score, high) if value is not None]
    share = all(0 <= value <= 1 for value in known)
    x = frame.x(*((0.0, 1.0) if share else padded(known, 0.5)))
    parts = [*axes(frame, x, None, name)]
    parts += _whisker(x(score), None if low is None else x(low), None if high is None else x(high), 46)
    sentence = f"{name} {short(score)}" + (
        f", interval {short(low)} to {short(high)}" if low is not None and high is not None else ""
    )
    return chart("Score", sentence, frame, parts, el("p", sentence + ".", class_="muted"))


def _whisker(at: float, low: float | None, high: float | None, level: float) -> list[Markup]:
    parts = []
    if low is not None and high is not None:
        parts.append(el("line", x1=low, x2=high, y1=level, y2=level, class_="whisker"))
        parts += [el("line", x1=end, x2=end, y1=level - 7, y2=level + 7, class_="whisker") for end in (low, high)]
    return [*parts, el("circle", cx=at, cy=level, r=6, class_="dot front c0")]
