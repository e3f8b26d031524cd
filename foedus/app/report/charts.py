"""Charts as inline SVG that stay readable at any width: the lines stretch, the labels are HTML and keep their size.

A chart is complete without JavaScript. The page also contains the points of all series as data, which `script.js` reads
to show values under the pointer and to zoom.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from foedus.app.report.render import piece
from foedus.base.files import Json
from foedus.base.quantities import number, size

WIDE, HIGH = 1000, 400  # the coordinates that lines are drawn in; the page stretches them
POINTS = 1200  # the most points of one series, more than a screen can show
LARGE = 1e290  # larger values are cut to this, so that an axis with room above them does not overflow
ALL_POINTS = 24_000  # about the most points of all series of a page, so that it can still be mailed
COLUMNS = 240  # the most columns in the picture of who took part
LOG_SPAN = 30  # positive values with a larger ratio are drawn on a logarithmic scale


@dataclass(frozen=True)
class ChartSeries:
    """One line of a chart: a name, its values by round, the bytes sent up to each round, its colour, and a band."""

    name: str
    y: np.ndarray
    bytes_sent: np.ndarray
    colour: int = 0
    band: tuple[np.ndarray, np.ndarray] | None = None  # the lower and the upper end, where the line is a mean

    @property
    def rounds(self) -> np.ndarray:
        return np.arange(1, len(self.y) + 1)


@dataclass(frozen=True)
class Chart:
    """One quantity of one or several runs; `limit` is a tolerance, drawn as a horizontal line."""

    key: str
    title: str
    words: str
    series: tuple[ChartSeries, ...]
    limit: float | None = None
    points: int = POINTS

    @property
    def log(self) -> bool:
        """Whether the scale is logarithmic: no value is negative and the positive ones span a large factor."""
        values = np.concatenate([s.y[np.isfinite(s.y)] for s in self.series]) if self.series else np.zeros(0)
        positive = values[values > 0]
        if not len(positive) or np.any(values < 0):
            return False
        return float(positive.max()) > LOG_SPAN * float(positive.min())


@dataclass(frozen=True)
class Plot:
    """A drawing with its labels: places of labels and dots are in per cent, lines are SVG paths with their classes."""

    kind: str
    title: str
    remark: str
    label: str  # the drawing in words, for those who do not see it
    side: Sequence[tuple[str, float]]
    below: Sequence[tuple[str, float]]
    axis: str
    lines: Sequence[tuple[str, str, str]]  # the class, the series, and the path
    dots: Sequence[tuple[str, str, float, float]] = ()  # the class, the words, from the left, from the top
    legend: Sequence[tuple[str, str]] = ()
    limit: str = ""
    key: str = ""
    by: str = ""
    wide: int = WIDE
    high: int = HIGH


def above_least(series: Sequence[ChartSeries]) -> tuple[list[ChartSeries], float] | None:
    """Return the series minus their smallest value, and that value, if they would otherwise lie flat; else None.

    They lie flat if at least half of the values are within 5 % of the range above the smallest one.
    """
    values = np.concatenate([s.y[np.isfinite(s.y)] for s in series])
    least, span = float(values.min()), float(np.ptp(values))
    if (
        len(values) < 10
        or span == 0
        or float(np.median(values)) - least > 0.05 * span
        or values.max() > LOG_SPAN * least > 0
    ):
        return None
    return [replace(s, y=np.where(np.isfinite(s.y), s.y - least, s.y)) for s in series], least


def thin(y: np.ndarray, most: int = POINTS) -> np.ndarray:
    """Return the indices to keep of a long series: in each stretch the first, the least, the greatest and the last."""
    n = len(y)
    if n <= most:
        return np.arange(n)
    edges = np.linspace(0, n, max(1, most // 4) + 1).astype(int)
    safe = np.where(np.isfinite(y), y, np.nan)
    places: set[int] = {0, n - 1}
    for start, end in pairwise(edges.tolist()):
        part = safe[start:end]
        places |= {int(start), int(end - 1)}
        if not np.all(np.isnan(part)):
            places |= {int(start + np.nanargmin(part)), int(start + np.nanargmax(part))}
    return np.array(sorted(places))


@dataclass(frozen=True)
class Axis:
    """A range of values on a linear or logarithmic scale."""

    low: float
    high: float
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """Return the positions of values between 0 (low) and 1 (high); on a logarithmic scale 0 and below are at 0."""
        if not self.log:
            return (values - self.low) / (self.high - self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            exponents = np.log10(np.where(values > 0, values, self.low))
        return (exponents - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))

    def ticks(self, most: int = 5) -> list[float]:
        """Return round numbers within the range, for the labels of the axis."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first >= 1:
                step = max(1, math.ceil((last - first) / (most - 1)))
                return [10.0**k for k in range(first, last + 1, step)]
            marks = [m * 10.0**k for k in range(first - 1, last + 2) for m in (1, 2, 5)]
            return [v for v in marks if self.low <= v <= self.high]
        step = (self.high - self.low) / most
        unit = 10.0 ** math.floor(math.log10(step))
        step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= step * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis_of(values: np.ndarray, log: bool) -> Axis:
    """Return a range that contains all finite values, with a little room."""
    finite = np.clip(values[np.isfinite(values)], -LARGE, LARGE)
    if log:
        finite = np.maximum(finite[finite > 0], 1.0 / LARGE)
    if not len(finite):
        return Axis(0.0, 1.0)
    low, high = float(finite.min()), float(finite.max())
    if log:
        room = max((high / low) ** 0.04, 1.05)
        return Axis(low / room, high * room, log=True)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    floor = low - room if low < 0 or low - room > 0 else 0.0
    return Axis(floor, high + room)


def _figure(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def path(x: np.ndarray, y: np.ndarray) -> str:
    """Return an SVG path through the points, with a gap wherever y is not finite."""
    words, pen = [], "M"
    for a, b in zip((WIDE * x).tolist(), (HIGH * (1 - y)).tolist(), strict=True):
        if not math.isfinite(b):
            pen = "M"
            continue
        words.append(f"{pen}{_figure(a)} {_figure(b)}")
        pen = "L"
    return "".join(words)


def labels(axis: Axis, text: Callable[[float], str], *, upward: bool = False, most: int = 5) -> list[tuple[str, float]]:
    """Return the labels of an axis and their places, in per cent from the left or, of one that goes upward, the top."""
    places = ((v, float(axis.place(np.array(v)))) for v in axis.ticks(most))
    return [(text(v), 100 * (1 - p if upward else p)) for v, p in places]


def line_chart(chart: Chart, by: str) -> Plot:
    """Return the drawing of a chart over rounds or over bytes sent."""
    selections = [(s, thin(s.y, chart.points)) for s in chart.series]
    every = np.concatenate([ends[i] for s, i in selections for ends in (s.y, *(s.band or ()))])
    within = every[np.isfinite(every)]
    if chart.limit is not None and len(within) and (chart.log or chart.limit >= within.min()):
        every = np.append(every, chart.limit)
    vertical = axis_of(every, chart.log)
    over = {s.name: (s.rounds if by == "rounds" else s.bytes_sent).astype(float) for s, _ in selections}
    far = max(float(x[-1]) for x in over.values())
    near = min(float(x[0]) for x in over.values()) if by == "rounds" else 0.0
    horizontal = Axis(near, far if far > near else near + 1.0)
    lines = []
    for series, index in selections:
        across = horizontal.place(over[series.name][index])
        d = path(across, vertical.place(series.y[index]))
        if len(index) == 1 and d:
            d += "h.01"  # a single round is a dot
        if series.band is not None:
            low, high = (vertical.place(end[index]) for end in series.band)
            there = np.isfinite(low) & np.isfinite(high)
            around = path(np.append(across[there], across[there][::-1]), np.append(low[there], high[there][::-1]))
            lines.insert(0, (f"band c{series.colour}", series.name, f"{around}Z" if around else ""))
        lines.append((f"line c{series.colour}", series.name, d))
    limit = ""
    if chart.limit is not None and vertical.low <= chart.limit <= vertical.high:
        limit = f"M0 {_figure(HIGH * (1 - float(vertical.place(np.array(chart.limit)))))}H{WIDE}"
    ends = "; ".join(f"{s.name} ends at {number(_last(s.y))}" for s in chart.series)
    return Plot(
        kind=f"chart by-{by}",
        title=chart.title,
        remark=chart.words,
        label=f"{chart.title} over {by}: {ends}",
        side=labels(vertical, number, upward=True),
        below=labels(horizontal, size if by == "bytes" else number),
        axis="round" if by == "rounds" else "sent to and from all sites",
        lines=lines,
        limit=limit,
        key=chart.key,
        by=by,
    )


def _last(y: np.ndarray) -> float:
    finite = y[np.isfinite(y)]
    return float(finite[-1]) if len(finite) else math.nan


def _digits(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def data_of(chart: Chart) -> Json:
    """Return the data of a chart that the script needs: the selected points of its series."""
    series = []
    for s in chart.series:
        index = thin(s.y, chart.points)
        series.append(
            {
                "name": s.name,
                "c": s.colour,
                "r": (index + 1).tolist(),
                "b": s.bytes_sent[index].tolist(),
                "y": [_digits(v) for v in s.y[index].tolist()],
                **({} if s.band is None else {"band": [[_digits(v) for v in e[index].tolist()] for e in s.band]}),
            }
        )
    return {"key": chart.key, "log": chart.log, "limit": chart.limit, "series": series}


def attendance(names: Sequence[str], requests: np.ndarray, replies: np.ndarray) -> Markup:
    """Return a picture of who answered when, with a row for each site; a column stands for one or several rounds.

    Args:
        names: the names of the sites.
        requests: whether a site was asked in a round, shape (rounds, sites).
        replies: whether its reply arrived, shape (rounds, sites).
    """
    rounds, sites = replies.shape
    columns = min(rounds, COLUMNS)
    edges = np.linspace(0, rounds, columns + 1).astype(int)
    width = np.diff(edges)[:, None]
    here = np.add.reduceat(replies.astype(float), edges[:-1], axis=0) / width
    losses = np.add.reduceat((requests & ~replies).astype(float), edges[:-1], axis=0) / width
    level = np.ceil(4 * here - 1e-9).astype(int)
    layers = [(f"l{k}", level == k) for k in (1, 2, 3, 4)]
    if columns == rounds:
        layers.append(("lost", losses > 0))
    strokes = [(name, _cells(mask)) for name, mask in layers if mask.any()]
    shares = list(zip(names, replies.mean(axis=0).tolist(), strict=True)) if sites <= 40 else []
    tall = 18 if sites <= 40 else max(3, min(8, 700 // sites))
    has_losses = bool(columns == rounds and losses.any())
    return piece("attendance", list(names), columns, rounds, strokes, shares, tall, has_losses)


def _cells(mask: np.ndarray) -> str:
    """Return the true cells of a mask (columns, rows) as strokes along each row; neighbours share one stroke."""
    words = []
    for row in range(mask.shape[1]):
        cells = np.concatenate([[False], mask[:, row], [False]])
        turns = np.flatnonzero(cells[1:] != cells[:-1])
        words += [f"M{a} {row + 0.5}h{b - a}" for a, b in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True)]
    return "".join(words)
