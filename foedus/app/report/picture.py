"""One picture of a trade-off, as an SVG file that needs nothing else: to be put on a slide or on paper."""

from collections.abc import Sequence
from html import escape

import numpy as np

from foedus.app.report.charts import Axis, axis_of
from foedus.app.report.tradeoff import RATES, TradeoffPoint
from foedus.app.report.words import number

WIDTH, HEIGHT = 1280, 640
PANEL = (470, 400)  # the width and the height of a panel
LEFT, TOP, GAP = 90, 130, 150
COLOURS = {"miss_rate": "#a8402c", "false_alarms": "#2b5c9e", "objective": "#2f6b4f"}
WORDS = {"miss_rate": "positives that are missed", "false_alarms": "negatives with a false alarm"}


def picture(points: Sequence[TradeoffPoint], title: str, constraint: str, note: str) -> str:
    """Return the SVG: rates on new rows against the cap on the left, the objective on the right.

    Args:
        points: one for each cap, in the order of the caps.
        title: the first line.
        constraint: what is capped.
        note: a sentence below, on where the figures come from.
    """
    caps = axis_of(np.array([p.cap for p in points]), False)
    with_rates = [p for p in points if all(rate in p.rates and p.rates[rate].bounded for rate in RATES)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="16" fill="#222">',
        f'<title>{escape(title)}</title><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(40, 52, title, size=28, weight="bold"),
        _text(40, 82, f"The tighter the cap on the {constraint}, the further left. Each point is one model.", "#555"),
        _text(40, HEIGHT - 22, note, "#555", size=14),
    ]
    if with_rates:
        parts.append(_rates(with_rates, caps, constraint))
    parts.append(_objective(points, caps, constraint, LEFT + (PANEL[0] + GAP if with_rates else 0)))
    return "".join(parts) + "</svg>\n"


def _rates(points: Sequence[TradeoffPoint], caps: Axis, constraint: str) -> str:
    """The panel of the rates, each with a band of its intervals."""
    high = max(p.rates[rate].high for p in points for rate in RATES)
    upward = Axis(0.0, min(1.0, 1.05 * high) or 1.0)
    text = _frame(LEFT, caps, upward, "On rows it has not seen", constraint, percent=True)
    x = [_x(LEFT, caps, p.cap) for p in points]
    labels = []
    for rate in RATES:
        colour = COLOURS[rate]
        ends = [(_y(upward, p.rates[rate].low), _y(upward, p.rates[rate].high)) for p in points]
        outline = [*zip(x, (e[1] for e in ends), strict=True), *reversed([*zip(x, (e[0] for e in ends), strict=True)])]
        band = " ".join(f"{a:.1f},{b:.1f}" for a, b in outline)
        text += f'<polygon points="{band}" fill="{colour}" opacity="0.16"/>'
        heights = [_y(upward, p.rates[rate].value) for p in points]
        text += _line(x, heights, colour, points)
        labels.append((heights[-1], WORDS[rate], colour))
    place = TOP - 14
    for k, (_, words, colour) in enumerate(labels):
        text += f'<circle cx="{LEFT + 8 + 235 * k}" cy="{place - 5}" r="6" fill="{colour}"/>'
        text += _text(LEFT + 20 + 235 * k, place, words, colour, size=15)
    return text


def _objective(points: Sequence[TradeoffPoint], caps: Axis, constraint: str, left: int) -> str:
    finite = [p for p in points if np.isfinite(p.objective)]
    upward = axis_of(np.array([p.objective for p in finite]), False)
    text = _frame(left, caps, upward, "In training: the objective", constraint)
    x, y = [_x(left, caps, p.cap) for p in finite], [_y(upward, p.objective) for p in finite]
    return text + _line(x, y, COLOURS["objective"], finite)


def _line(x: Sequence[float], y: Sequence[float], colour: str, points: Sequence[TradeoffPoint]) -> str:
    """A line through the points; one that is not certified is hollow."""
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    text = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="3" stroke-linejoin="round"/>'
    for a, b, point in zip(x, y, points, strict=True):
        fill = colour if point.certified else "#fff"
        label = f"{point.run}{'' if point.certified else ', not certified'}"
        text += (
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="6" fill="{fill}" stroke="{colour}" stroke-width="3">'
            f"<title>{escape(label)}</title></circle>"
        )
    return text


def _frame(left: int, caps: Axis, upward: Axis, title: str, constraint: str, percent: bool = False) -> str:
    """The axes of a panel with their numbers."""
    bottom, right = TOP + PANEL[1], left + PANEL[0]
    text = f'<path d="M{left} {TOP}V{bottom}H{right}" fill="none" stroke="#999"/>'
    for value in upward.ticks(6):
        y = _y(upward, value)
        words = f"{100 * value:.0f} %" if percent else number(value)
        text += f'<path d="M{left} {y:.1f}H{right}" stroke="#e6e6e6"/>'
        text += _text(left - 10, y + 5, words, "#555", anchor="end")
    for value in caps.ticks(6):
        x = _x(left, caps, value)
        text += f'<path d="M{x:.1f} {bottom}v6" stroke="#999"/>'
        text += _text(x, bottom + 26, number(value), "#555", anchor="middle")
    text += _text(left + PANEL[0] / 2, bottom + 54, f"cap on the {constraint}", "#222", anchor="middle")
    if not percent:
        text += _text(left, TOP - 14, title, COLOURS["objective"], size=15)
    return text


def _x(left: int, caps: Axis, value: float) -> float:
    return left + PANEL[0] * float(caps.place(np.array(value)))


def _y(upward: Axis, value: float) -> float:
    return TOP + PANEL[1] * (1.0 - float(upward.place(np.array(value))))


def _text(
    x: float,
    y: float,
    words: str,
    colour: str = "#222",
    *,
    size: int = 16,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )
