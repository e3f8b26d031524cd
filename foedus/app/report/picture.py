"""One picture of a trade-off, as an SVG file that needs nothing else: to be put on a slide or on paper."""

from collections.abc import Callable, Sequence

import numpy as np

from foedus.app.report.charts import Axis, axis_of
from foedus.app.report.render import render
from foedus.app.report.tradeoff import RATES, TradeoffPoint, figure_of
from foedus.base.files import Json
from foedus.base.quantities import number

WIDE, HIGH = 470, 400  # of a panel
LEFT, TOP, GAP = 90, 130, 150
# the words and the colour of a line: a rate on new rows, or the objective
LINES = {
    "miss_rate": ("positives that are missed", "#a8402c"),
    "false_alarms": ("negatives with a false alarm", "#2b5c9e"),
    None: ("In training: the objective", "#2f6b4f"),
}


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
    panels, left = [], LEFT
    if with_rates:
        high = max(p.rates[rate].high for p in with_rates for rate in RATES)
        upward = Axis(0.0, min(1.0, 1.05 * high) or 1.0)
        panels.append(_panel(left, caps, upward, lambda share: f"{100 * share:.0f} %", RATES, with_rates))
        left += WIDE + GAP
    finite = [p for p in points if np.isfinite(p.objective)]
    upward = axis_of(np.array([p.objective for p in finite]), False)
    panels.append(_panel(left, caps, upward, number, (None,), finite))
    return render(
        "picture.svg", title=title, constraint=constraint, note=note, panels=panels, top=TOP, wide=WIDE, high=HIGH
    )


def _panel(
    left: int,
    caps: Axis,
    upward: Axis,
    text: Callable[[float], str],
    figures: Sequence[str | None],
    points: Sequence[TradeoffPoint],
) -> Json:
    """Return the places of what one panel shows: its axes, and a line for each figure with a band of its intervals."""

    def x(value: float) -> float:
        return round(left + WIDE * float(caps.place(np.array(value))), 1)

    def y(value: float) -> float:
        return round(TOP + HIGH * (1.0 - float(upward.place(np.array(value)))), 1)

    lines = []
    for figure in figures:
        words, colour = LINES[figure]
        values = [(x(p.cap), *map(y, figure_of(p, figure))) for p in points]
        outline = [(a, high) for a, _, _, high in values] + [(a, low) for a, _, low, _ in reversed(values)]
        lines.append(
            {
                "words": words,
                "colour": colour,
                "band": "" if figure is None else " ".join(f"{a},{b}" for a, b in outline),
                "path": " ".join(f"{a},{b}" for a, b, _, _ in values),
                "points": [(a, b, p) for (a, b, _, _), p in zip(values, points, strict=True)],
            }
        )
    side, below = (
        [(write(v), at(v)) for v in axis.ticks(6)] for axis, write, at in ((upward, text, y), (caps, number, x))
    )
    return {"left": left, "side": side, "below": below, "lines": lines}
