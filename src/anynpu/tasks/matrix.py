"""The matrix of cosines as a picture."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu.errors import ConfigError, ToolMissing
from anynpu.tensors import Array

CELL, LETTER, HEIGHT = 64, 8, 24
# From low to high; the middle is light, so that black numbers and white ones both have their place.
LOW, MIDDLE, HIGH = (33, 76, 132), (240, 240, 236), (178, 62, 28)
LONGEST, MOST = 28, 200


@dataclass(frozen=True)
class Grid:
    """Where rows and columns lie, and their colours: the lowest value blue, the highest red."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Array

    @property
    def left(self) -> int:
        return 16 + LETTER * max(len(shortened(name)) for name in self.rows)

    @property
    def top(self) -> int:
        return 16 + HEIGHT

    @property
    def cell(self) -> int:
        return max(CELL, 12 + LETTER * max(len(shortened(name)) for name in self.columns))

    @property
    def size(self) -> tuple[int, int]:
        return self.left + self.cell * len(self.columns) + 16, self.top + HEIGHT * 2 * len(self.rows) + 16

    def corner(self, row: int, column: int) -> tuple[int, int]:
        return self.left + column * self.cell, self.top + row * HEIGHT * 2

    def colour(self, row: int, column: int) -> tuple[int, int, int]:
        low, high = float(self.values.min()), float(self.values.max())
        place = (float(self.values[row, column]) - low) / (high - low) if high > low else 1.0
        start, end, share = (LOW, MIDDLE, place * 2) if place < 0.5 else (MIDDLE, HIGH, place * 2 - 1)
        red, green, blue = (round(a + (b - a) * share) for a, b in zip(start, end, strict=True))
        return red, green, blue

    def ink(self, row: int, column: int) -> str:
        red, green, blue = self.colour(row, column)
        return "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "#ffffff"


def shortened(name: str) -> str:
    """Returns a name that fits next to a row."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def draw(path: Path, rows: Sequence[str], columns: Sequence[str], values: Array) -> bytes:
    """Returns the matrix as the picture that the ending of `path` names: .svg or .png."""
    if max(len(rows), len(columns)) > MOST:
        raise ConfigError(f"{path}: a picture has at most {MOST} rows and columns", "write the numbers with -f json")
    grid = Grid(rows, columns, np.asarray(values))
    if path.suffix == ".svg":
        return _svg(grid).encode()
    if path.suffix == ".png":
        return _png(grid)
    raise ConfigError(f"{path}: a picture of the matrix is .png or .svg")


def _svg(grid: Grid) -> str:
    width, height = grid.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13"><rect width="{width}" height="{height}" fill="#ffffff"/>'
    ]

    def write(x: float, y: float, text: str, anchor: str, ink: str = "#000000") -> None:
        escaped = html.escape("".join(c if c.isprintable() else " " for c in text))
        parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{ink}">{escaped}</text>')

    for column, name in enumerate(grid.columns):
        write(grid.corner(0, column)[0] + grid.cell / 2, grid.top - 8, shortened(name), "middle")
    for row, name in enumerate(grid.rows):
        write(grid.left - 8, grid.corner(row, 0)[1] + HEIGHT + 4, shortened(name), "end")
        for column in range(len(grid.columns)):
            x, y = grid.corner(row, column)
            fill = "#{:02x}{:02x}{:02x}".format(*grid.colour(row, column))
            parts.append(f'<rect x="{x}" y="{y}" width="{grid.cell}" height="{HEIGHT * 2}" fill="{fill}"/>')
            shown = f"{grid.values[row, column]:.3f}"
            write(x + grid.cell / 2, y + HEIGHT + 4, shown, "middle", grid.ink(row, column))
    return "\n".join([*parts, "</svg>\n"])


def _png(grid: Grid) -> bytes:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ToolMissing(
            "Pillow is not installed, .png cannot be written", "write .svg, or pip install pillow"
        ) from error
    image = Image.new("RGB", grid.size, "#ffffff")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    for column, name in enumerate(grid.columns):
        x = grid.corner(0, column)[0] + grid.cell // 2
        pen.text((x, grid.top - 14), shortened(name), "#000000", font, anchor="mm")
    for row, name in enumerate(grid.rows):
        pen.text((grid.left - 8, grid.corner(row, 0)[1] + HEIGHT), shortened(name), "#000000", font, anchor="rm")
        for column in range(len(grid.columns)):
            x, y = grid.corner(row, column)
            pen.rectangle((x, y, x + grid.cell - 1, y + HEIGHT * 2 - 1), grid.colour(row, column))
            shown, ink = f"{grid.values[row, column]:.3f}", grid.ink(row, column)
            pen.text((x + grid.cell // 2, y + HEIGHT), shown, ink, font, anchor="mm")
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
