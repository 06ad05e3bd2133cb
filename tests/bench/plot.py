"""A line plot as SVG, written by hand: a handful of points do not need a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 44, 44
COLOURS = ("#1f5fa8", "#c2521f", "#3a7d34")
STEPS = 5


@dataclass
class Line:
    """A name and its points."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)


def draw(path: Path, title: str, below: str, lines: Sequence[Line]) -> None:
    """Writes the plot; both axes begin at 0, so that what is linear looks straight (dashed: to the last point)."""
    most_x = max(x for line in lines for x, _ in line.points)
    most_y = max(y for line in lines for _, y in line.points) * 1.05

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / most_x * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - y / most_y * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for step in range(STEPS + 1):
        x, y = at(most_x * step / STEPS, most_y * step / STEPS)
        base = HEIGHT - BOTTOM
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{most_y * step / STEPS:,.0f}</text>')
        parts.append(f'<text x="{x}" y="{base + 16}" text-anchor="middle">{most_x * step / STEPS:,.0f}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(below)}</text>')
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{x},{y}" for x, y in (at(*point) for point in line.points))
        (x0, y0), (x1, y1) = at(0, 0), at(*line.points[-1])
        parts.append(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="{colour}" stroke-dasharray="3 4"/>')
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in line.points)]
        parts.append(f'<text x="{LEFT + 8 + 220 * index}" y="38" fill="{colour}">{escape(line.name)}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]))
