"""Evaluation: how good a model is on rows it has not seen, at each site and over all of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.notebook import text_table
from foedus.base.pytrees import PyTree
from foedus.base.quantities import count
from foedus.privacy.total import Local
from foedus.problem.problem import Problem
from foedus.problem.terms import Terms
from foedus.statistics import noisy
from foedus.statistics.curves import Curves, curves_of
from foedus.statistics.figures import (
    ALL_ROWS,
    AT_THE_THRESHOLD,
    COMPLEMENTS,
    SHARES,
    TITLES,
    Tenth,
    TermFigure,
    groups_of,
)
from foedus.statistics.intervals import NOTHING, Figure
from foedus.statistics.noisy import EvaluationNoise
from foedus.statistics.questions import NewRows, figures_question
from foedus.statistics.rates import Decision, RateRecord
from foedus.sums.questions import Here, Sites, ask_all

HELD_OUT = "held-out rows"  # the source of an evaluation on rows that an experiment kept out of training


@dataclass(frozen=True)
class Evaluation:
    """Figures of a model on rows that took no part in training; print it for a table.

    Attributes:
        source: the rows: "held-out rows", or the names of files.
        sites: the figures of each site by name: "sensitivity", "specificity", "ppv", "npv", "accuracy", "miss_rate",
            "false_alarms", "auc", "loss", "brier", "calibration" and "slope" of a classifier (the last three with the
            logistic loss), "r2", "rmse", "mae" and "loss" of a regression. A `Figure` has `value`, and `low` and
            `high`, its interval at 95 %. None of a site's own are there with masked sums.
        overall: the same over the rows of all sites together.
        terms: the loss behind each cap, or the rate, on these rows.
        tenths: what happened to the rows of each tenth of the predicted probabilities.
        rows: the number of rows of each site; 0 where a site told nothing; None where only sums were seen.
        auc_error: the area under the curve is known to within this much, because scores are counted in cells.
        cut: the threshold on the score, where a term chose one.
        noise: what the figures spent of each row's privacy, where noise was added to them.
        groups: the rates of each group over the rows of all sites, by the group's name; empty without groups.
        curves: the ROC curve and the decision curve, over the rows of all sites.
    """

    source: str
    sites: dict[str, dict[str, Figure]]
    overall: dict[str, Figure]
    terms: tuple[TermFigure, ...] = ()
    tenths: tuple[Tenth, ...] = ()
    rows: dict[str, int] | None = None
    auc_error: float = 0.0
    cut: float | None = None
    noise: EvaluationNoise | None = None
    groups: dict[str, dict[str, Figure]] = field(default_factory=dict)
    curves: Curves = field(default_factory=Curves)

    @property
    def total(self) -> int:
        """The number of rows at all sites."""
        return self.overall["loss"].rows

    @property
    def everyone(self) -> dict[str, dict[str, Figure]]:
        """The figures of each site, and over all rows where that is not the same."""
        return {**self.sites, ALL_ROWS: self.overall} if len(self.sites) != 1 else self.sites

    def __getitem__(self, name: str) -> Figure:
        return self.overall[name]

    def __str__(self) -> str:
        unseen = "" if self.source == HELD_OUT else "; they count as unseen only if they took no part in training"
        kept = ", which took no part in training" if self.source == HELD_OUT else ""
        head = f"on {self.source}{kept} ({count(self.total, 'row')}){unseen}; intervals at 95 %"
        lines = [head]
        for names in blocks_of(self.overall):
            lines += _text_table("site", self.everyone, names)
        if self.groups:
            lines += _text_table("group", self.groups, [n for n in AT_THE_THRESHOLD if n in self.overall])
        lines += [f"{t.constraint} at {t.site}: {term_text(t)}" for t in self.terms]
        lines += [] if self.noise is None else [self.noise.words]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> Json:
        """Return the evaluation as JSON holds it."""
        return {
            "source": self.source,
            "sites": {site: _figures(figures) for site, figures in self.sites.items()},
            "overall": _figures(self.overall),
            "terms": [{**vars(t), "figure": t.figure.to_json()} for t in self.terms],
            "tenths": [[t.predicted, t.observed.to_json()] for t in self.tenths],
            "rows": self.rows,
            "auc_error": self.auc_error,
            "cut": self.cut if self.cut is None or math.isfinite(self.cut) else str(self.cut),
            "noise": None if self.noise is None else self.noise.to_json(),
            "groups": {group: _figures(figures) for group, figures in self.groups.items()},
            "curves": {"roc": [*map(list, self.curves.roc)], "benefit": [*map(list, self.curves.benefit)]},
        }

    @staticmethod
    def from_json(record: Json) -> "Evaluation":
        """Read what `to_json` wrote."""
        noise = record.get("noise")
        return Evaluation(
            source=record["source"],
            sites={site: _read(figures) for site, figures in record["sites"].items()},
            overall=_read(record["overall"]),
            terms=tuple(TermFigure(**{**t, "figure": Figure.from_json(t["figure"])}) for t in record["terms"]),
            tenths=tuple(Tenth(mean, Figure.from_json(f)) for mean, f in record["tenths"]),
            rows=record["rows"],
            auc_error=record["auc_error"],
            cut=None if record["cut"] is None else float(record["cut"]),
            noise=None if noise is None else EvaluationNoise(**noise),
            groups={group: _read(figures) for group, figures in record["groups"].items()},
            curves=Curves(**{name: tuple(map(tuple, points)) for name, points in record["curves"].items()}),
        )


def blocks_of(figures: Mapping[str, Figure]) -> list[list[str]]:
    """Return the names of the figures to show, in one or two tables: those at the threshold, and the others."""
    names = [name for name in TITLES if name in figures and name not in COMPLEMENTS]
    blocks = [[n for n in names if (n in AT_THE_THRESHOLD) is first] for first in (True, False)]
    return [block for block in blocks if block]


def _text_table(first: str, figures: Mapping[str, Mapping[str, Figure]], names: Sequence[str]) -> list[str]:
    """The lines of a table of figures with their intervals, one row a site or a group."""
    titles, rows = (first, "rows", *(_lower(TITLES[name][0]) for name in names)), []
    for name, own in figures.items():
        total = own.get("accuracy", own.get("loss", NOTHING)).rows
        rows.append((name, f"{total:,}", *(figure_text(n, own[n]) for n in names)))
    head, _, *others = text_table(titles, rows, left=range(len(titles)))
    return [head.rstrip(), *others]


def _lower(title: str) -> str:
    """A title with a small first letter; abbreviations stay as they are."""
    return title if title[1:2].isupper() or title[1:2] == "²" or title.startswith("Brier") else title.lower()


def _figures(figures: Mapping[str, Figure]) -> Json:
    return {name: figure.to_json() for name, figure in figures.items()}


def _read(record: Json) -> dict[str, Figure]:
    return {name: Figure.from_json(figure) for name, figure in record.items()}


def figure_text(name: str, figure: Figure) -> str:
    """Return a figure with its interval as people write it: shares in per cent, others with three digits."""
    if not figure.known:
        return "–"
    scale, digits, unit = (100.0, 1, " %") if name in SHARES else (1.0, 3, "")
    value, low, high = (f"{scale * v:.{digits}f}".replace("-", "−") for v in (figure.value, figure.low, figure.high))
    return f"{value}{unit} ({low} to {high})" if figure.bounded else f"{value}{unit}"


def term_text(term: TermFigure) -> str:
    """Return how a cap stands on new rows, in a few words."""
    name = "miss_rate" if term.constraint in ("miss rate", "false-alarm rate") else "loss"
    cap = f"{100 * term.cap:g} %" if name == "miss_rate" else f"{term.cap:.4g}"
    words = {
        "holds": f"holds: the cap is {cap}",
        "broken": f"broken: the cap is {cap}",
        "open": f"too few rows to tell: the cap is {cap}",
        "unknown": f"no rows; the cap is {cap}",
    }[term.standing]
    return f"{figure_text(name, term.figure)}, {words}" if term.figure.known else words


@float64()
def evaluate(
    problem: Problem,
    w: PyTree,
    sites: Mapping[str, Sequence[np.ndarray]] | Sequence[Sequence[np.ndarray]],
    *,
    decision: Decision | None = None,
    source: str = "new rows",
    secure: bool = False,
    privacy: Local | None = None,
    seed: int = 0,
    groups: Sequence[str] = (),
) -> Evaluation:
    """Measure a model on rows that took no part in training.

    Each site computes sums and histograms of a fixed size from its own rows; all figures follow from these.

    Args:
        problem: the problem that the model was trained on, for its loss and its terms; its data are not used.
        w: the model, as `run.w`.
        sites: the new rows of each site, (X, y) or (X, y, group), by name or in a list.
        decision: `run.decision`, where a term on a rate chose a threshold.
        source: what to call the rows.
        secure: add up the sites' sums and histograms as masked sums do, in the same integers: figures over all rows
            alone.
        privacy: the total ε and δ that the figures spend of each of these rows; each site then adds noise to a few
            counts and sums, and the intervals include it.
        seed: keys the noise, where it is simulated.
        groups: the names of the groups that the third array numbers from 0; each gets rates of its own.

    Returns:
        The figures of each site (none with `secure`) and over all rows, each with its interval at 95 %.

    Example:
        >>> import foedus as fd, numpy as np
        >>> draw = np.random.default_rng(0)
        >>> def rows(n):
        ...     X = draw.normal(size=(n, 2))
        ...     return X, (X[:, 0] + draw.normal(size=n) > 0).astype(float)
        >>> problem = fd.Problem({"north": rows(200), "south": rows(200)}, loss=fd.losses.logistic)
        >>> run = fd.solve(problem, fd.InteriorPoint())
        >>> result = fd.evaluate(problem, run.w, {"north": rows(400), "south": rows(400)})
        >>> result["accuracy"].low < 0.75 < result["accuracy"].high
        True
    """
    terms = problem.terms
    rows_by_site = dict(sites) if isinstance(sites, Mapping) else {str(i): rows for i, rows in enumerate(sites)}
    vector = np.asarray(w, dtype=float)
    check_linear(terms, vector)
    for name, arrays in rows_by_site.items():
        _check_rows(name, arrays, len(vector), terms)
        if groups and (len(arrays) < 3 or np.max(arrays[2], initial=0) >= len(groups)):
            raise FoedusError(f"site {name!r}: expected (X, y, group), groups numbered from 0 to {len(groups) - 1}.")
    noise = None if privacy is None else EvaluationNoise(privacy.epsilon, privacy.delta, privacy.sampler)
    return evaluation_of(here(rows_by_site, noise, seed, secure=secure), terms, vector, decision, noise, source, groups)


def here(
    sites: Mapping[str, Sequence[np.ndarray]],
    noise: EvaluationNoise | None = None,
    seed: int = 0,
    *,
    secure: bool = False,
) -> Here:
    """Return sites whose new rows are all in this process."""
    draws = {name: None if noise is None else noisy.drawing(noise, seed, name) for name in sites}
    return Here({name: NewRows(arrays, draw=draws[name]) for name, arrays in sites.items()}, secure)


def evaluation_of(
    sites: Sites,
    terms: Terms,
    w: np.ndarray,
    decision: Decision | None = None,
    noise: EvaluationNoise | None = None,
    source: str = HELD_OUT,
    groups: Sequence[str] = (),
) -> Evaluation:
    """Ask the sites how good a model is; return the figures over all rows, and by site where answers are seen.

    With `groups`, their names in the order in which the rows number them, each group has its rates as well.
    """
    cut = None if decision is None else decision.cut
    question = figures_question(terms, w, cut, noise, len(groups))
    answers, sum_of_answers = ask_all(sites, question)
    each = {name: question.tally_of(answer, 1) for name, answer in answers.items()}
    total, kit = question.tally_of(sum_of_answers, len(sites.names)), question.figures
    figures = {name: kit.figures_of(own) for name, own in each.items()}
    overall = kit.figures_of(total)
    rates = [] if decision is None else [r for record in decision.terms for r in _rates(record, figures, overall)]
    return Evaluation(
        source=source,
        sites=figures,
        overall=overall,
        terms=(*rates, *kit.terms_of(terms, sites.names, each, total)),
        tenths=kit.tenths_of(total),
        rows={name: own.get("accuracy", own["loss"]).rows for name, own in figures.items()} if figures else None,
        auc_error=kit.area_error(total),
        cut=cut,
        noise=noise,
        groups={} if noise is not None else groups_of(total, groups),
        curves=Curves() if noise is not None else curves_of(total),
    )


def check_linear(terms: Terms, w: np.ndarray) -> None:
    """Raise where the model is not a linear one with a loss, of which alone these figures are known."""
    if terms.loss is None or w.ndim != 1:
        raise FoedusError(
            "an evaluation is about a linear model, trained with loss=; a problem with an objective of its own has no "
            "predictions that foedus knows."
        )


def _check_rows(name: str, arrays: Sequence[np.ndarray], width: int, terms: Terms) -> None:
    shape = np.shape(arrays[0])
    if len(arrays) < 2 or len(shape) != 2 or shape[1] != width or len(arrays[1]) != shape[0]:
        raise FoedusError(f"site {name!r}: expected (X, y) with {width} columns. Got X of shape {shape}.")
    if not all(np.all(np.isfinite(np.asarray(part, dtype=float))) for part in arrays):
        raise FoedusError(f"site {name!r}: the rows hold values that are not finite.")
    loss, y = terms.loss, np.asarray(arrays[1])
    assert loss is not None
    if loss.wrong_targets(y):
        what = "labels " if loss.kind == "classification" else ""
        raise FoedusError(f"site {name!r}: expected {what}{loss.expects}. Got {np.unique(y).tolist()[:5]} instead.")


def _rates(
    record: RateRecord, sites: Mapping[str, Mapping[str, Figure]], overall: Mapping[str, Figure]
) -> list[TermFigure]:
    """The rate that a term caps, at each site and over all rows."""
    name = "miss_rate" if record.type == "MissRate" else "false_alarms"
    everyone = {**sites, ALL_ROWS: overall} if len(sites) != 1 else sites
    return [
        TermFigure(site, record.title, record.at_most, figures[name])
        for site, figures in everyone.items()
        if site not in record.left_out
    ]
