"""Scales, ticks and the frame that every chart is drawn in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from anynpu.report.html.markup import Child, Markup, el


@dataclass(frozen=True)
class Scale:
    """Numbers from low to high on a line from start to stop."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._on_line(self.low), self._on_line(self.high)
        part = (self._on_line(value) - low) / (high - low) if high > low else 0.5
        return self.start + part * (self.stop - self.start)

    def _on_line(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, most: int = 6) -> list[float]:
        """Returns round numbers inside the scale."""
        if self.log and self.high / self.low > 3:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digits in ((1, 2, 5), (1, 3), (1,)):
                round_numbers = [d * 10.0**p for p in powers for d in digits if self.low <= d * 10.0**p <= self.high]
                if len(round_numbers) <= most + 2:
                    break
            return round_numbers[:: max(1, math.ceil(len(round_numbers) / (most + 2)))]
        if not self.high > self.low:
            return [self.low]
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def padded(values: Iterable[float], part: float = 0.06, zero: bool = False, log: bool = False) -> tuple[float, float]:
    """Returns a range that holds the values with some room at both ends."""
    known = list(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if log:
        room = (high / low) ** part if high > low else 1.5
        return low / room, high * room
    room = (high - low) * part or abs(high) * 0.1 or 1.0
    return (0.0 if zero and low >= 0 else low - room), high + room


@dataclass(frozen=True)
class Frame:
    """A chart's area in the units of its drawing."""

    width: float = 960
    height: float = 240
    left: float = 64
    right: float = 18
    top: float = 22
    bottom: float = 40

    def x(self, low: float, high: float, log: bool = False) -> Scale:
        return Scale(low, high, self.left, self.width - self.right, log)

    def y(self, low: float, high: float, log: bool = False) -> Scale:
        return Scale(low, high, self.height - self.bottom, self.top, log)


def short(value: float) -> str:
    """Returns a number as an axis shows it."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if sign == 'k' else limit):.4g} {sign}"
    return f"{value:.4g}" if size >= 1e-4 else f"{value:.2e}"


def axes(frame: Frame, x: Scale | None, y: Scale | None, x_title: str = "", y_title: str = "") -> Iterator[Markup]:
    """Yields grid lines, tick labels and titles."""
    bottom, left, right = frame.height - frame.bottom, frame.left, frame.width - frame.right
    for value in y.ticks(5) if y else ():
        at = y(value) if y else 0.0
        yield el("line", x1=left, x2=right, y1=at, y2=at, class_="grid")
        yield el("text", short(value), x=left - 8, y=at + 4, class_="tick end")
    for value in x.ticks(8) if x else ():
        at = x(value) if x else 0.0
        yield el("line", x1=at, x2=at, y1=bottom, y2=bottom + 5, class_="axis")
        yield el("text", short(value), x=at, y=bottom + 18, class_="tick mid")
    yield el("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")
    if x_title:
        yield el("text", x_title, x=(left + right) / 2, y=frame.height - 4, class_="label mid")
    if y_title:
        yield el("text", y_title, x=left, y=frame.top - 9, class_="label")


def line(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """Returns a line through the points."""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return el("path", d=path, class_=class_)


def chart(title: str, sentence: str, frame: Frame, parts: Iterable[Child], *below: Child) -> Markup:
    """Returns a figure: a caption, the drawing with a sentence for those who do not see it, and what stands below."""
    drawing = el(
        "svg",
        *parts,
        viewbox=f"0 0 {frame.width:g} {frame.height:g}",
        role="img",
        aria_label=f"{title}. {sentence}",
        class_="chart",
    )
    return el("figure", el("figcaption", title), el("div", drawing, class_="scroll"), *below)


def more(summary: str, *inside: Child) -> Markup:
    """Returns something folded away that a click or paper shows."""
    return el("details", el("summary", summary), *inside, class_="more")
