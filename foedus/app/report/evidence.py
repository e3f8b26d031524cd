"""How good the model is on rows it has not seen, in words and as sections of the report."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from foedus.app.report import words
from foedus.app.report.charts import HIGH, WIDE, Axis, Plot, axis_of, labels, path
from foedus.app.report.render import Cell, Column, Line, columns, piece, table
from foedus.app.report.sites import interval_bar
from foedus.app.report.words import Verdict, capital, join_names
from foedus.base.quantities import count, number, percent
from foedus.runtime.run import Run
from foedus.statistics.curves import Curves
from foedus.statistics.evaluate import HELD_OUT, Evaluation, blocks_of, figure_text
from foedus.statistics.figures import ALL_ROWS, AT_THE_THRESHOLD, SHARES, TITLES, Tenth, TermFigure
from foedus.statistics.intervals import NOTHING, Figure
from foedus.statistics.rates import Decision

RATES = ("miss rate", "false-alarm rate")  # constraints whose values are shares
BADGES = {
    "holds": ("met", "✓ holds"),
    "open": ("binding", "● too few rows"),
    "broken": ("broken", "✕ violated"),
    "unknown": ("binding", "no rows"),
}
NOT_MEASURED = "How good the model is on rows it has not seen was not measured."
HOLD_OUT = "Measure it on new rows: [evaluate] holdout = 0.2 in the experiment file, 'foedus evaluate', or fd.evaluate."
IN_TILES = ("sensitivity", "specificity", "auc")  # of a classifier
IN_TILES_OF_NUMBERS = ("r2", "mae")


def head(run: Run) -> Verdict:
    """Return the verdict of a run with what new rows say of it first.

    A run that is certified in training is "Certified" without more words only if every constraint was measured on new
    rows and holds there.
    """
    verdict, new = words.verdict(run), sentences(run)
    if verdict.level == "bad":  # what went wrong in training comes first
        return dataclasses.replace(verdict, sentences=(*verdict.sentences, *new))
    if run.evaluation is None:
        verdict = dataclasses.replace(verdict, sentences=(*verdict.sentences, *new))
    else:
        verdict = dataclasses.replace(verdict, sentences=(*new, *verdict.sentences))
    if verdict.level != "good" or not words.constrained(run):
        return verdict
    if run.evaluation is None:
        title, advice = "Certified in training, not measured on new rows", (HOLD_OUT,)
        return dataclasses.replace(verdict, level="training", title=title, advice=advice)
    if confirmed(run):
        return dataclasses.replace(verdict, title="Certified, and confirmed on new rows")
    return dataclasses.replace(verdict, level="training", title="Certified in training, not confirmed on new rows")


def confirmed(run: Run) -> bool:
    """Whether every constraint was measured on new rows, and its whole interval is within the cap at every site."""
    evaluation = run.evaluation
    if evaluation is None:
        return False
    terms = _measured(evaluation)
    promised = {row.constraint for row in run.certificate.rows} | {row.constraint for row in run.certificate.counts}
    return bool(terms) and promised <= {t.constraint for t in terms} and all(t.standing == "holds" for t in terms)


def _measured(evaluation: Evaluation) -> list[TermFigure]:
    """The constraints on new rows: at each site where single ones are seen, else over all rows."""
    single = bool(evaluation.sites)
    return [term for term in evaluation.terms if not (single and term.site == ALL_ROWS)]


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
    rows = f"On {count(evaluation.total, 'row')} {where}"
    if "accuracy" not in evaluation.overall:
        error, r2 = evaluation["mae"], evaluation["r2"]
        text = f"{rows} the mean absolute error is {number(error.value)}{_between(error, number)}"
        return text + (f", and the model explains {percent(r2.value)} of the variance." if r2.known else ".")
    if not evaluation["accuracy"].known:
        return "How good the model is on rows it has not seen is hidden by the noise: there are too few of them."
    shares = [
        f"{TITLES[name][0].lower()} {percent(evaluation[name].value)}{_between(evaluation[name], percent)}"
        for name in ("sensitivity", "specificity", "accuracy")
        if evaluation[name].known
    ]
    area = evaluation["auc"]
    shares += [f"AUC {area.value:.3f}{_between(area, '{:.3f}'.format)}"] if area.known else []
    return f"{rows}: {', '.join(shares)}."


def _between(figure: Figure, text: Callable[[float], str]) -> str:
    return f" ({text(figure.low)} to {text(figure.high)})" if figure.bounded else ""


def _caps(evaluation: Evaluation) -> tuple[str, ...]:
    """Whether each cap holds on new rows, in one or two sentences."""
    single = bool(evaluation.sites)  # with masked sums there are no figures of single sites
    terms = [term for term in _measured(evaluation) if term.figure.known]
    if not terms:
        return ()
    by = {key: [t for t in terms if t.standing == key] for key in ("holds", "broken", "open")}
    if len(by["holds"]) == len(terms):
        where = "at every site" if single else "over all sites (single ones are not seen)"
        return (f"Every constraint holds on these rows too, {where}, each with 95 % confidence.",)
    texts = []
    if by["broken"]:
        worst = max(by["broken"], key=lambda t: t.figure.value - t.cap)
        sites = join_names(list(dict.fromkeys(t.site for t in by["broken"])))
        where, list_of_sites = (f"at {worst.site}", f" (violated at {sites})") if single else (f"over {worst.site}", "")
        texts.append(
            f"Not every constraint holds on these rows: {worst.constraint} is {_value(worst, worst.figure.value)} "
            f"{where}, above the cap of {_value(worst, worst.cap)}{list_of_sites}."
        )
    if by["open"]:
        over, sure, unsure = sum(t.figure.value > t.cap for t in by["open"]), len(by["holds"]), len(by["open"])
        what = "The constraint" if len(terms) == 1 else f"{unsure} of {len(terms)} constraints"
        what = f"None of the {len(terms)} constraints" if unsure == len(terms) > 1 else what
        verb = "holds" if sure == 1 else "hold"
        can = "can" if what.startswith("None") else "cannot"
        texts.append(
            f"{what} {can} be confirmed on these rows, which are too few to tell ({over} measured above the cap, "
            f"{unsure - over} below it)" + (f"; {sure} {verb} with 95 % confidence" if sure else "") + "."
        )
    return tuple(texts)


def _value(term: TermFigure, value: float) -> str:
    return percent(value) if term.constraint in RATES else number(value)


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """Return the tiles that say how good the model is on new rows: a name, a figure and a remark."""
    evaluation = run.evaluation
    if evaluation is None:
        return []
    result = []
    for name in IN_TILES if "accuracy" in evaluation.overall else IN_TILES_OF_NUMBERS:
        figure = evaluation[name]
        if figure.known:
            value, _, interval = figure_text(name, figure).partition(" (")
            between = interval.removesuffix(")")
            unit = " %" if name in SHARES and between else ""
            remark = f"{between}{unit}, on new rows" if between else "on new rows; too few for an interval"
            result.append((TITLES[name][0], value, remark))
    if terms := [t for t in _measured(evaluation) if t.figure.known]:
        good = sum(t.standing == "holds" for t in terms)
        result.append(("Constraints on new rows", f"{good} of {len(terms)}", "hold with 95 % confidence"))
    return result


def section(run: Run) -> Markup:
    """Return the section: the figures of each site, the caps, the curves, and how probabilities compare."""
    several = len(run.evaluations) > 1
    parts = [_evaluation(evaluation, evaluation.source if several else "") for evaluation in run.evaluations.values()]
    return Markup("").join([_decision(run, run.decision), *parts])


def subgroups(run: Run) -> Markup:
    """Return the rates of each group on new rows; empty where there are no groups, or none may be told about."""
    evaluation = run.evaluation
    if evaluation is None or not evaluation.groups:
        return Markup("")
    names = [name for name in AT_THE_THRESHOLD if name in evaluation.overall]
    note = "Over the rows of all sites. Below each figure is its interval at 95 %."
    return _figures("Group", evaluation.groups, names) + piece("note", note)


def coefficients(run: Run) -> Markup:
    """Return the table of the model's coefficients; empty where it was not computed."""
    own = run.coefficients
    if own is None:
        return Markup("")
    lines = [Line(name, [*map(Cell, cells)]) for name, *cells in map(own.cells, own.rows)]
    per = "A coefficient is per unit of its column; of a word, it is that of having it."
    first, *others = own.titles
    heads = [Column(first or "Column", "n" if first else ""), *columns(*others)]
    fit = [] if own.figures is None else [f"{own.figures}."]
    return table(heads, lines, "coefficients") + piece("note", " ".join([per, *fit, *own.notes]))


def _decision(run: Run, decision: Decision | None) -> Markup:
    if decision is None:
        return Markup("")
    terms = []
    for term in decision.terms:
        sites = [
            f"{s}: {w} of {n} wrong, {a} allowed"
            for s, w, n, a in zip(term.sites, term.wrong, term.rows, term.allowed, strict=True)
        ]
        terms.append((term.words, "; ".join(sites if len(sites) <= 8 else [*sites[:8], f"and {len(sites) - 8} more"])))
    return piece("decision", decision, words.threshold(run), count(decision.rounds, "round"), terms)


def _figures(first: str, figures: Mapping[str, Mapping[str, Figure]], names: Sequence[str]) -> Markup:
    """A table of figures with their intervals below them, one row a site or a group."""
    lines = []
    for name, own in figures.items():
        rows = own.get("accuracy", own.get("loss", NOTHING)).rows
        cells = [Cell(number(rows), rows)]
        for figure in names:
            value, _, interval = figure_text(figure, own[figure]).partition(" (")
            cells.append(Cell(value, own[figure].value, interval.removesuffix(")")))
        lines.append(Line(name, cells, "total" if name == ALL_ROWS else ""))
    heads = [Column(first, ""), Column("Rows"), *(Column(TITLES[n][0], remark=TITLES[n][1]) for n in names)]
    return table(heads, lines, "sortable evidence")


def _evaluation(evaluation: Evaluation, title: str) -> Markup:
    blocks = blocks_of(evaluation.overall)
    figures = Markup("").join(_figures("Site", evaluation.everyone, names) for names in blocks)
    note = "Below each figure is its interval at 95 %."
    if evaluation.auc_error:
        note += f" The AUC comes from histograms, and is exact to within {evaluation.auc_error:.1g}."
    silent = [site for site, rows in (evaluation.rows or {}).items() if not rows]
    too_few = "the noise hides the rows held out there" if evaluation.noise else "the rows held out there are too few"
    note += f" {join_names(silent)} told nothing: {too_few}." if silent else ""
    note += f" {capital(evaluation.noise.words)}." if evaluation.noise else ""
    note += " " + "; ".join(f"{TITLES[n][0]}: {TITLES[n][1]}" for block in blocks for n in block) + "."
    plots = [p for p in (_roc(evaluation.curves), _tenths(evaluation.tenths), _benefit(evaluation.curves)) if p]
    return piece("evaluation", title, figures, note, _terms(evaluation.terms), plots)


def _terms(terms: Sequence[TermFigure]) -> Markup:
    """Every cap against what it caps on new rows, with the interval as a bar."""
    if not terms:
        return Markup("")
    tops: dict[str, float] = {}
    for t in terms:
        ends = [v for v in (t.figure.value, t.figure.high, t.cap) if np.isfinite(v)]
        tops[t.constraint] = max(tops.get(t.constraint, 0.0), *ends) if ends else 1.0
    heads = [Column("Site", ""), Column("Constraint", ""), Column("", "wide")]
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


def _roc(curves: Curves) -> Plot | None:
    """The ROC curve, over all rows."""
    if not curves.roc:
        return None
    across, upward = np.array(curves.roc).T
    shown = np.linspace(0, 1, 5)
    text = "; ".join(
        f"{percent(1 - a)} at {percent(float(np.interp(a, across, upward)))}" for a in (0.05, 0.1, 0.2, 0.5)
    )
    return Plot(
        kind="curve",
        title="ROC curve",
        remark="sensitivity against 1 − specificity, at every threshold; on the dashed line a model knows nothing",
        label=f"ROC curve: specificity {text} sensitivity",
        side=[(f"{100 * v:.0f} %", 100 - 100 * v) for v in shown],
        below=[(f"{100 * v:.0f} %", 100 * v) for v in shown],
        axis="1 − specificity",
        lines=[("line c0", "", path(across, upward))],
        limit=f"M0 {HIGH}L{WIDE} 0",
    )


def _benefit(curves: Curves) -> Plot | None:
    """The decision curve: the net benefit of the model, of treating everybody, and of treating nobody."""
    points = [p for p in curves.benefit if p[2] > -0.1 or p[1] > 0.0]
    if len(points) < 3:
        return None
    p, model, everybody = np.array(points).T
    across = Axis(0.0, float(p.max()))
    upward = axis_of(np.append(np.concatenate([model, [0.0]]), max(float(everybody.max()), 0.0)), False)
    low = max(upward.low, -0.25 * upward.high)
    upward = Axis(low, upward.high)
    lines = [
        (kind, "", path(across.place(p), upward.place(np.where(values < low, np.nan, values))))
        for kind, values in (("line c7", everybody), ("line c4", np.zeros_like(p)), ("line c0", model))
    ]
    best = "; ".join(f"{number(float(np.interp(t, p, model)))} at {percent(t, 0)}" for t in (0.1, 0.2, 0.3, 0.5))
    return Plot(
        kind="curve",
        title="Decision curve",
        remark="net benefit of treating from a predicted probability on: true positives a row, less false ones at its "
        "odds",
        label=f"decision curve of the model: {best}",
        side=labels(upward, number, upward=True),
        below=labels(across, lambda v: percent(v, 0)),
        axis="threshold probability",
        lines=lines,
        legend=[("dot c0", "the model"), ("dot c7", "treat everybody"), ("dot c4", "treat nobody")],
    )


def _tenths(tenths: Sequence[Tenth]) -> Plot | None:
    """A picture of predicted probabilities against the share of positives; on the diagonal they agree."""
    if not tenths:
        return None
    dots, d = [], ""
    for t in tenths:
        words = (
            f"predicted {percent(t.predicted)}, observed {percent(t.observed.value)} of {count(t.observed.rows, 'row')}"
        )
        d += path(np.array([t.predicted, t.predicted]), np.array([t.observed.low, t.observed.high]))
        dots.append(("dot c0", words, 100 * t.predicted, 100 * (1 - t.observed.value)))
    words = "; ".join(f"{percent(t.predicted)} predicted, {percent(t.observed.value)} observed" for t in tenths)
    return Plot(
        kind="curve",
        title="Calibration",
        remark="share of positives in each tenth of the predicted probabilities; on the dashed line both agree",
        label=f"calibration: {words}",
        side=[(f"{v} %", 100 - v) for v in (0, 25, 50, 75, 100)],
        below=[(f"{v} %", v) for v in (0, 25, 50, 75, 100)],
        axis="predicted probability",
        lines=[("line c0", "", d)],
        dots=dots,
        limit=f"M0 {HIGH}L{WIDE} 0",
    )
