"""Pictures of the study as SVG with its own background, which is dark where the reader's system is."""

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from foedus_lab.study.profiles import Profile, number

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 170, 40, 50  # margins; the legend lies to the right
COLOURS = ("#0f8a6c", "#d1603d", "#3f7fd1", "#b0569c", "#a5800f", "#6b8f2a", "#8a6fd6", "#c2415e", "#2f97a8", "#8c7a66")
DASHES = ("", "6 3", "2 3")  # after the colours have been used up
STYLE = """
.back { fill: #ffffff } .frame { stroke: #8a8a8a } .grid { stroke: #e2e2e2 } text { fill: #2b2b2b }
@media (prefers-color-scheme: dark) {
  .back { fill: #1b1d23 } .frame { stroke: #8f96a3 } .grid { stroke: #343842 } text { fill: #e4e6ea }
}
text { font: 12px system-ui, sans-serif } .title { font-weight: 600 } path { fill: none; stroke-width: 2 }
"""


def _page(title: str, body: list[str]) -> bytes:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
        *body,
        "</svg>",
    ]
    return ("\n".join(lines) + "\n").encode()


def _frame(
    across: Mapping[float, str], up: Mapping[float, str], x_of: "Scale", y_of: "Scale", below: str, beside: str
) -> list[str]:
    """Axes, grid lines and their labels; the keys of `across` and `up` are values, their texts the labels."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    lines = []
    for value, words in across.items():
        x = x_of(value)
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(words)}</text>')
    for value, words in up.items():
        y = y_of(value)
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(words)}</text>')
    lines.append(f'<path class="frame" style="stroke-width:1" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
    lines.append(f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(below)}</text>')
    middle = (TOP + bottom) / 2
    turn = f'text-anchor="middle" transform="rotate(-90 16 {middle:.0f})"'
    lines.append(f'<text x="16" y="{middle:.0f}" {turn}>{escape(beside)}</text>')
    return lines


class Scale:
    """A place on the picture for each value between two, linear or logarithmic."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool):
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)


def _stroke(place: int) -> str:
    dash = DASHES[place // len(COLOURS) % len(DASHES)]
    return f'stroke="{COLOURS[place % len(COLOURS)]}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _legend(place: int, stroke: str, words: str) -> list[str]:
    x, y = WIDTH - RIGHT + 14, TOP + 10 + 20 * place
    return [
        f'<path {stroke} d="M{x} {y}h22"/>',
        f'<text x="{x + 28}" y="{y + 4}">{escape(words)}</text>',
    ]


def profile_picture(title: str, profiles: Sequence[Profile], strokes: Mapping[str, int], most: float = 64.0) -> bytes:
    """Return the performance profiles up to `most` times the least cost; the legend has the best first."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    x_of, y_of = Scale(1.0, most, LEFT, right, log=True), Scale(0.0, 1.0, bottom, TOP, log=False)
    taus = {2.0**k: f"{2**k}" for k in range(int(math.log2(most)) + 1)}
    shares = {s: f"{s:.0%}" for s in (0.0, 0.25, 0.5, 0.75, 1.0)}
    body = _frame(taus, shares, x_of, y_of, "times the least cost", "share of instances solved")
    for place, profile in enumerate(profiles):
        steps = np.unique(profile.ratios[profile.ratios <= most])
        path = f"M{x_of(1.0):.1f} {y_of(profile.share(1.0)):.1f}"
        for tau in steps:
            path += f"H{x_of(tau):.1f}V{y_of(profile.share(tau)):.1f}"
        stroke = _stroke(strokes[profile.algorithm])
        body.append(f'<path {stroke} d="{path}H{right}"/>')
        body += _legend(place, stroke, profile.algorithm)
    return _page(title, body)


def growth_picture(title: str, below: str, beside: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    """Return points and lines on two logarithmic axes, one line for each name."""
    points = [point for line in series.values() for point in line]
    bounds = [
        (10 ** math.floor(math.log10(min(v))), 10 ** math.ceil(math.log10(max(v)))) for v in zip(*points, strict=True)
    ]
    (x0, x1), (y0, y1) = ((low, high if high > low else 10 * low) for low, high in bounds)
    x_of = Scale(x0, x1, LEFT, WIDTH - RIGHT, log=True)
    y_of = Scale(y0, y1, HEIGHT - BOTTOM, TOP, log=True)
    body = _frame(_decades(x0, x1), _decades(y0, y1), x_of, y_of, below, beside)
    for place, (name, line) in enumerate(series.items()):
        places = [(x_of(x), y_of(y)) for x, y in line]
        body.append(f'<path {_stroke(place)} d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[place % len(COLOURS)]}"/>' for x, y in places]
        body += _legend(place, _stroke(place), name)
    return _page(title, body)


def _decades(low: float, high: float) -> dict[float, str]:
    exponents = range(round(math.log10(low)), round(math.log10(high)) + 1)
    return {10.0**k: number(10.0**k, 1) for k in exponents}
