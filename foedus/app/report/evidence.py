"""How good the model is on rows it has not seen, in words and as a section of the report."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np

from foedus.app.report.charts import HIGH, WIDE, path
from foedus.app.report.words import count, join_names, number
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
    noise = (f"{_capital(evaluation.noise.words)}.",) if evaluation.noise is not None else ()
    last = next(reversed(run.evaluations.values()))
    further = () if last is evaluation else (_quality(last),)
    return (_quality(evaluation), *_caps(evaluation), *noise, *further)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


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


def section(run: Run) -> str:
    """Return the section: words, the figures of each site, the caps, and how probabilities compare with outcomes."""
    parts = [_decision(run.decision)]
    for evaluation in run.evaluations.values():
        parts.append(_evaluation(evaluation, with_title=len(run.evaluations) > 1))
    return "".join(parts)


def coefficients(run: Run) -> str:
    """Return the table of the model's coefficients; empty where it was not computed."""
    table = run.coefficients
    if table is None:
        return ""
    heads = "".join(
        f'<th scope="col" class="{"n" if head else ""}">{escape(head) or "Column"}</th>' for head in table.titles
    )
    body = ""
    for row in table.rows:
        name, *cells = table.cells(row)
        figures = "".join(
            f'<td class="n"><span class="mini">{escape(head)}</span>{escape(cell)}</td>'
            for head, cell in zip(table.titles[1:], cells, strict=True)
        )
        body += f'<tr><th scope="row">{escape(name)}</th>{figures}</tr>'
    notes = " ".join(table.notes)
    per = "A coefficient is per unit of its column; of a word, it is that of having it."
    tall = " tall" if len(table.rows) > 25 else ""
    return (
        f'<div class="scroll{tall}"><table class="sites coefficients"><thead><tr>{heads}</tr></thead>'
        f'<tbody>{body}</tbody></table></div><p class="note">{escape(per)} {escape(notes)}</p>'
    )


def _decision(decision: Decision | None) -> str:
    if decision is None:
        return ""
    text = (
        f"<p>A row is called positive from the score <b>{number(decision.cut)}</b> on. The threshold was chosen after "
        f"training, from counts of rows that took no part in it, in {count(decision.rounds, 'round')}:</p><ul>"
    )
    for term in decision.terms:
        sites = [
            f"{s}: {w} of {n} wrong, {a} allowed"
            for s, w, n, a in zip(term.sites, term.wrong, term.rows, term.allowed, strict=True)
        ]
        first = sites if len(sites) <= 8 else [*sites[:8], f"and {len(sites) - 8} more"]
        text += f"<li><b>{escape(term.words)}</b><br><small>{escape('; '.join(first))}</small></li>"
    trouble = f'<p class="broken"><b>Not kept:</b> {escape(decision.trouble)}.</p>' if decision.trouble else ""
    return text + "</ul>" + trouble


def _evaluation(evaluation: Evaluation, with_title: bool) -> str:
    names = [name for name in TITLES if name in evaluation.overall]
    heads = "".join(f'<th scope="col" class="n" title="{escape(TITLES[n][1])}">{TITLES[n][0]}</th>' for n in names)
    body = "".join(_row(site, figures, names) for site, figures in evaluation.everyone.items())
    title = f"<h3>On {escape(evaluation.source)}</h3>" if with_title else ""
    note = "Below each figure is its interval at 95 %."
    if evaluation.auc_error:
        note += f" The AUC comes from histograms, and is exact to within {evaluation.auc_error:.1g}."
    silent = [site for site, rows in (evaluation.rows or {}).items() if not rows]
    too_few = "the noise hides the rows held out there" if evaluation.noise else "the rows held out there are too few"
    note += f" {join_names(silent)} told nothing: {too_few}." if silent else ""
    note += f" {_capital(evaluation.noise.words)}." if evaluation.noise else ""
    meanings = "; ".join(f"{TITLES[n][0]}: {TITLES[n][1]}" for n in names)
    return (
        f'{title}<div class="scroll"><table class="sites sortable evidence"><thead><tr><th scope="col">Site</th>'
        f'<th scope="col" class="n">Rows</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="note">{escape(note)} {escape(meanings)}.</p>{_terms(evaluation.terms)}{_tenths(evaluation.tenths)}'
    )


def _row(site: str, figures: Mapping[str, Figure], names: Sequence[str]) -> str:
    cells = ""
    for name in names:
        value, _, interval = figure_text(name, figures[name]).partition(" (")
        between = f"<small>{escape(interval.removesuffix(')'))}</small>" if interval else ""
        cells += (
            f'<td class="n" data-v="{figures[name].value!r}"><span class="mini">{TITLES[name][0]}</span>'
            f"{escape(value)}{between}</td>"
        )
    rows = figures["loss"].rows
    return (
        f'<tr><th scope="row" data-v="{escape(site)}">{escape(site)}</th><td class="n" data-v="{rows}">'
        f'<span class="mini">rows</span>{number(rows)}</td>{cells}</tr>'
    )


def _terms(terms: Sequence[TermFigure]) -> str:
    """Every cap against what it caps on new rows, with the interval as a bar."""
    if not terms:
        return ""
    tops: dict[str, float] = {}
    for t in terms:
        ends = [v for v in (t.figure.value, t.figure.high, t.cap) if np.isfinite(v)]
        tops[t.constraint] = max(tops.get(t.constraint, 0.0), *ends) if ends else 1.0
    body = "".join(_term_row(t, 1.08 * tops[t.constraint] or 1.0) for t in terms)
    heads = "".join(
        f'<th scope="col" class="{kind}">{head}</th>'
        for head, kind in (
            ("Site", ""),
            ("Cap on", ""),
            ("", "wide"),
            ("Value", "n"),
            ("95 %", "n"),
            ("Cap", "n"),
            ("", "v"),
        )
    )
    return (
        '<h3>The caps on new rows</h3><div class="scroll"><table class="sites sortable terms"><thead><tr>'
        f"{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _term_row(term: TermFigure, top: float) -> str:
    kind, words = BADGES[term.standing]
    figure = term.figure

    def at(value: float) -> float:
        return 100.0 * min(max(value / top, 0.0), 1.0)

    low, high = (figure.low, figure.high) if figure.bounded else (figure.value, figure.value)
    bar = ""
    if figure.known:
        width = max(at(high) - at(low), 0.6)
        bar = (
            f'<div class="bar {kind} range"><i style="left:{at(low):.2f}%;width:{width:.2f}%"></i>'
            f'<b style="left:{at(figure.value):.2f}%"></b><u style="left:{at(term.cap):.2f}%"></u></div>'
        )
    between = f"{_value(term, low)} to {_value(term, high)}" if figure.bounded else "–"
    value = _value(term, figure.value) if figure.known else "–"
    return (
        f'<tr class="{kind}"><th scope="row" data-v="{escape(term.site)}">{escape(term.site)}</th>'
        f'<td data-v="{escape(term.constraint)}">{escape(term.constraint)}</td><td class="wide">{bar}</td>'
        f'<td class="n" data-v="{figure.value!r}"><span class="mini">value</span>{value}</td>'
        f'<td class="n"><span class="mini">95 %</span>{between}</td>'
        f'<td class="n" data-v="{term.cap!r}"><span class="mini">cap</span>{_value(term, term.cap)}</td>'
        f'<td class="v" data-v="{term.standing}"><span class="badge {kind}">{words}</span></td></tr>'
    )


def _tenths(tenths: Sequence[Tenth]) -> str:
    """A picture of predicted probabilities against the share of positives; on the diagonal they agree."""
    if not tenths:
        return ""
    marks, lines = "", ""
    for t in tenths:
        low, high = t.observed.low, t.observed.high
        x, y = 100 * t.predicted, 100 * (1 - t.observed.value)
        lines += path(np.array([t.predicted, t.predicted]), np.array([low, high]))
        label = f"predicted {percent(t.predicted)}, observed {percent(t.observed.value)} of {t.observed.rows} rows"
        marks += f'<i class="dot c0" title="{escape(label)}" style="left:{x:.2f}%;top:{y:.2f}%"></i>'
    ticks = (0.0, 0.25, 0.5, 0.75, 1.0)
    side = "".join(f'<span style="top:{100 * (1 - v):.0f}%">{100 * v:.0f} %</span>' for v in ticks)
    below = "".join(f'<span style="left:{100 * v:.0f}%">{100 * v:.0f} %</span>' for v in ticks)
    grid = "".join(f"M0 {HIGH * (1 - v):.1f}H{WIDE}" for v in ticks)
    words = "; ".join(f"{percent(t.predicted)} predicted, {percent(t.observed.value)} observed" for t in tenths)
    return (
        '<figure class="curve"><figcaption><strong>Are the probabilities right?</strong> <span>what happened to the '
        "rows of each tenth of the predicted probabilities; on the dashed line both agree</span></figcaption>"
        f'<div class="plot"><div class="side">{side}</div><div class="area"><svg viewBox="0 0 {WIDE} {HIGH}" '
        f'preserveAspectRatio="none" role="img" aria-label="calibration: {escape(words)}">'
        f'<path class="grid" d="{grid}"/><path class="limit" d="M0 {HIGH}L{WIDE} 0"/>'
        f'<path class="line c0" d="{lines}"/></svg>{marks}</div>'
        f'<div class="below">{below}</div></div><p class="axis">predicted probability</p></figure>'
    )
