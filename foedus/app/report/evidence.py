"""How good the model is on rows it has not seen, in words and as a section of the report."""

from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from foedus.app.report.charts import HIGH, WIDE, Plot, path
from foedus.app.report.render import Cell, Column, Line, columns, piece, table
from foedus.app.report.sites import interval_bar
from foedus.app.report.words import capital, count, join_names, number
from foedus.runtime.run import Run
from foedus.statistics.evaluate import HELD_OUT, Evaluation, figure_text
from foedus.statistics.figures import ALL_ROWS, SHARES, TITLES, Tenth, TermFigure
from foedus.statistics.intervals import Figure
from foedus.statistics.rates import Decision

RATES = ("miss rate", "false-alarm rate")  # terms whose values are shares
BADGES = {
    "holds": ("met", "✓ holds"),
    "open": ("binding", "● not decided"),
    "broken": ("broken", "✕ broken"),
    "unknown": ("binding", "no rows"),
}
NOT_MEASURED = "How good the model is on rows it has not seen was not measured."


def percent(share: float) -> str:
    """Return a share in per cent, with one digit behind the point."""
    return f"{100 * share:.1f} %"


def sentences(run: Run) -> tuple[str, ...]:
    """Return in words how good the model is on rows it has not seen, and whether each cap holds there."""
    evaluation = run.evaluation
    if evaluation is None:
        return (NOT_MEASURED,)
    noise = (f"{capital(evaluation.noise.words)}.",) if evaluation.noise is not None else ()
    last = next(reversed(run.evaluations.values()))
    further = () if last is evaluation else (_quality(last),)
    return (_quality(evaluation), *_caps(evaluation), *noise, *further)


def _quality(evaluation: Evaluation) -> str:
    where = "that took no part in training" if evaluation.source == HELD_OUT else f"of {evaluation.source}"
    rows = f"On {number(evaluation.total)} rows {where}"
    if "accuracy" not in evaluation.overall:
        error, r2 = evaluation["mae"], evaluation["r2"]
        text = f"{rows} its answers are off by {number(error.value)} on average{_between(error, number)}"
        return text + (f", and it explains {percent(r2.value)} of the variance." if r2.known else ".")
    right, misses, alarms, area = (evaluation[name] for name in ("accuracy", "miss_rate", "false_alarms", "auc"))
    if not right.known:
        return "How good the model is on rows it has not seen is hidden by the noise: there are too few of them."
    text = f"{rows} it gives the right answer to {percent(right.value)}{_between(right, percent)}"
    if misses.known and alarms.known:
        text += (
            f"; it misses {percent(misses.value)} of the positives{_between(misses, percent)} and raises a false alarm "
            f"for {percent(alarms.value)} of the negatives{_between(alarms, percent)}"
        )
    return text + (f". AUC {area.value:.3f}{_between(area, '{:.3f}'.format)}." if area.known else ".")


def _between(figure: Figure, text: Callable[[float], str]) -> str:
    return f" ({text(figure.low)} to {text(figure.high)})" if figure.bounded else ""


def _caps(evaluation: Evaluation) -> tuple[str, ...]:
    """Whether each cap holds on new rows, in one or two sentences."""
    single = bool(evaluation.sites)  # with masked sums there are no figures of single sites
    terms = [term for term in evaluation.terms if not (single and term.site == ALL_ROWS) and term.figure.known]
    if not terms:
        return ()
    by = {key: [t for t in terms if t.standing == key] for key in ("holds", "broken", "open")}
    if len(by["holds"]) == len(terms):
        where = "at every site" if single else "over all sites (single ones are not seen)"
        return (f"Every cap holds there too, {where}, with 95 % confidence at each.",)
    words = []
    if by["broken"]:
        worst = max(by["broken"], key=lambda t: t.figure.value - t.cap)
        sites = join_names(list(dict.fromkeys(t.site for t in by["broken"])))
        where, list_of_sites = (f"at {worst.site}", f" (broken at {sites})") if single else (f"over {worst.site}", "")
        words.append(
            f"Not every cap holds there: {worst.constraint} is {_value(worst, worst.figure.value)} {where}, "
            f"where {_value(worst, worst.cap)} was asked for{list_of_sites}."
        )
    if by["open"]:
        over = sum(t.figure.value > t.cap for t in by["open"])
        words.append(
            f"{count(len(by['holds']), 'cap')} of {len(terms)} {'holds' if len(by['holds']) == 1 else 'hold'} there; "
            f"for {len(by['open'])} there are too few rows to tell ({over} above the cap, {len(by['open']) - over} "
            "below it)."
        )
    return tuple(words)


def _value(term: TermFigure, value: float) -> str:
    return percent(value) if term.constraint in RATES else number(value)


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """Return the tiles that say how good the model is: a name, a figure and a remark."""
    evaluation = run.evaluation
    if evaluation is None:
        return []
    names = ("miss_rate", "false_alarms") if "accuracy" in evaluation.overall else ("r2", "mae")
    result = []
    for name in names:
        figure = evaluation[name]
        if figure.known:
            value, _, interval = figure_text(name, figure).partition(" (")
            between = interval.removesuffix(")")
            unit = " %" if name in SHARES and between else ""
            result.append((f"{TITLES[name][0]}, new rows", value, f"{between}{unit}" or "too few rows for an interval"))
    return result


def section(run: Run) -> Markup:
    """Return the section: words, the figures of each site, the caps, and how probabilities compare with outcomes."""
    several = len(run.evaluations) > 1
    parts = [_evaluation(evaluation, evaluation.source if several else "") for evaluation in run.evaluations.values()]
    return Markup("").join([_decision(run.decision), *parts])


def coefficients(run: Run) -> Markup:
    """Return the table of the model's coefficients; empty where it was not computed."""
    own = run.coefficients
    if own is None:
        return Markup("")
    lines = [Line(name, [*map(Cell, cells)]) for name, *cells in map(own.cells, own.rows)]
    per = "A coefficient is per unit of its column; of a word, it is that of having it."
    first, *others = own.titles
    heads = [Column(first or "Column", "n" if first else ""), *columns(*others)]
    return table(heads, lines, "coefficients") + piece("note", " ".join([per, *own.notes]))


def _decision(decision: Decision | None) -> Markup:
    if decision is None:
        return Markup("")
    terms = []
    for term in decision.terms:
        sites = [
            f"{s}: {w} of {n} wrong, {a} allowed"
            for s, w, n, a in zip(term.sites, term.wrong, term.rows, term.allowed, strict=True)
        ]
        terms.append((term.words, "; ".join(sites if len(sites) <= 8 else [*sites[:8], f"and {len(sites) - 8} more"])))
    return piece("decision", decision, count(decision.rounds, "round"), terms)


def _evaluation(evaluation: Evaluation, title: str) -> Markup:
    names = [name for name in TITLES if name in evaluation.overall]
    lines = []
    for site, figures in evaluation.everyone.items():
        rows = figures["loss"].rows
        cells = [Cell(number(rows), rows)]
        for name in names:
            value, _, interval = figure_text(name, figures[name]).partition(" (")
            cells.append(Cell(value, figures[name].value, interval.removesuffix(")")))
        lines.append(Line(site, cells))
    note = "Below each figure is its interval at 95 %."
    if evaluation.auc_error:
        note += f" The AUC comes from histograms, and is exact to within {evaluation.auc_error:.1g}."
    silent = [site for site, rows in (evaluation.rows or {}).items() if not rows]
    too_few = "the noise hides the rows held out there" if evaluation.noise else "the rows held out there are too few"
    note += f" {join_names(silent)} told nothing: {too_few}." if silent else ""
    note += f" {capital(evaluation.noise.words)}." if evaluation.noise else ""
    note += " " + "; ".join(f"{TITLES[n][0]}: {TITLES[n][1]}" for n in names) + "."
    heads = [Column("Site", ""), Column("Rows"), *(Column(TITLES[n][0], remark=TITLES[n][1]) for n in names)]
    figures = table(heads, lines, "sortable evidence")
    return piece("evaluation", title, figures, note, _terms(evaluation.terms), _tenths(evaluation.tenths))


def _terms(terms: Sequence[TermFigure]) -> Markup:
    """Every cap against what it caps on new rows, with the interval as a bar."""
    if not terms:
        return Markup("")
    tops: dict[str, float] = {}
    for t in terms:
        ends = [v for v in (t.figure.value, t.figure.high, t.cap) if np.isfinite(v)]
        tops[t.constraint] = max(tops.get(t.constraint, 0.0), *ends) if ends else 1.0
    heads = [Column("Site", ""), Column("Cap on", ""), Column("", "wide")]
    heads += [*columns("Value", "95 %", "Cap"), Column("", "v")]
    return table(heads, [_term_line(t, 1.08 * tops[t.constraint] or 1.0) for t in terms], "sortable terms")


def _term_line(term: TermFigure, top: float) -> Line:
    kind, words = BADGES[term.standing]
    figure = term.figure
    low, high = (figure.low, figure.high) if figure.bounded else (figure.value, figure.value)
    bar = interval_bar(kind, (low, high), figure.value, term.cap, (0.0, top)) if figure.known else ""
    cells = [
        Cell(term.constraint),
        Cell(bar),
        Cell(_value(term, figure.value) if figure.known else "–", figure.value),
        Cell(f"{_value(term, low)} to {_value(term, high)}" if figure.bounded else "–"),
        Cell(_value(term, term.cap), term.cap),
        Cell(piece("badge", kind, words), term.standing),
    ]
    return Line(term.site, cells, kind)


def _tenths(tenths: Sequence[Tenth]) -> Plot | None:
    """A picture of predicted probabilities against the share of positives; on the diagonal they agree."""
    if not tenths:
        return None
    dots, d = [], ""
    for t in tenths:
        words = f"predicted {percent(t.predicted)}, observed {percent(t.observed.value)} of {t.observed.rows} rows"
        d += path(np.array([t.predicted, t.predicted]), np.array([t.observed.low, t.observed.high]))
        dots.append(("dot c0", words, 100 * t.predicted, 100 * (1 - t.observed.value)))
    words = "; ".join(f"{percent(t.predicted)} predicted, {percent(t.observed.value)} observed" for t in tenths)
    return Plot(
        kind="curve",
        title="Are the probabilities right?",
        remark="what happened to the rows of each tenth of the predicted probabilities; on the dashed line both agree",
        label=f"calibration: {words}",
        side=[(f"{v} %", 100 - v) for v in (0, 25, 50, 75, 100)],
        below=[(f"{v} %", v) for v in (0, 25, 50, 75, 100)],
        axis="predicted probability",
        lines=[("line c0", "", d)],
        dots=dots,
        limit=f"M0 {HIGH}L{WIDE} 0",
    )
