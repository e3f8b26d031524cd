"""Whether sites agree: Cochran's Q, I² and pooled effects from sums, without showing what any site's estimate is.

A site fits the model to its own rows by maximum likelihood, β_i with variances v_i, and sends w_i, w_i b_i, w_i b_i²
and w_i² for each coefficient, where w_i = 1/v_i and b_i = β_i − β is measured from the pooled answer. From their sums:

    Q = Σwb² − (Σwb)²/Σw,    I² = (Q − k + 1)/Q,    τ² = (Q − k + 1)/(Σw − Σw²/Σw)     (DerSimonian and Laird 1986)

and the fixed effect Σwβ/Σw. The random effect has the weights 1/(v_i + τ²), which is a second question. A site whose
rows do not determine its own fit takes part in neither, and is counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import NormalDist
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from foedus.base.engine import float64
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.base.notebook import html_of, text_table
from foedus.base.pytrees import PyTree
from foedus.numerics.interpreter.dispatch import play
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.statistics.sandwich import check_terms, gram
from foedus.statistics.survival.cox import Test, p_text
from foedus.statistics.survival.stratified import reals, wholes
from foedus.sums.questions import Here, Question

STEPS = 60  # of Newton's method at a site
ENOUGH = 1e-20  # of the decrement, in log-likelihoods
FAR = 30.0  # of a score: beyond it a fit has no maximum
FLAT = 1e-10  # of the largest eigenvalue: a direction in which the rows say nothing
Q95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Effect:
    """One coefficient over the sites' own fits.

    Attributes:
        name: of the coefficient.
        q: Cochran's test that all sites have the same.
        i2: the share of the spread between sites that chance does not explain.
        tau2: the variance between sites, by DerSimonian and Laird.
        fixed: the mean by precision, with its standard error.
        random: the mean where sites differ by tau2, with its standard error.
        by_site: by site, the estimate and its standard error, of those that allow it.
    """

    name: str
    q: Test
    i2: float
    tau2: float
    fixed: tuple[float, float]
    random: tuple[float, float]
    by_site: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Heterogeneity:
    """How far sites agree on each coefficient; print it for a table.

    Attributes:
        effects: one for each coefficient.
        sites: how many sites could fit the model to their own rows, and how many there are.
    """

    effects: tuple[Effect, ...]
    sites: tuple[int, int]

    def __getitem__(self, name: str) -> Effect:
        for effect in self.effects:
            if effect.name == name:
                return effect
        raise KeyError(f"there is no coefficient {name!r}.{did_you_mean(name, [e.name for e in self.effects])}")

    def __str__(self) -> str:
        titles = ("", "Q", "p", "I²", "τ²", "fixed effect", "95 %", "random effect", "95 %")
        cells = [
            (e.name, f"{e.q.statistic:.2f}", p_text(e.q.p), f"{100 * e.i2:.0f} %", f"{e.tau2:.3g}",
             _number(e.fixed[0]), _between(e.fixed), _number(e.random[0]), _between(e.random))
            for e in self.effects
        ]  # fmt: skip
        count, every = self.sites
        note = f"From the own fits of {count} of {every} sites, of which sums alone were seen."
        return "\n".join([*text_table(titles, cells), note])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))

    def forest(self, name: str) -> str:
        """Return a forest plot of one coefficient as SVG: the sites that allow it, and both pooled effects."""
        effect = self[name]
        lines = [*effect.by_site.items(), ("fixed effect", effect.fixed), ("random effect", effect.random)]
        low = min(0.0, *(value - Q95 * error for _, (value, error) in lines))
        high = max(0.0, *(value + Q95 * error for _, (value, error) in lines))
        unit = 420.0 / ((high - low) or 1.0)
        parts = [f'<text x="20" y="30" font-weight="bold">{escape(name)}</text>']
        bottom = 60 + 28 * len(lines)
        zero = 180 + unit * (0.0 - low)
        parts.append(f'<path d="M{zero:.1f} 44V{bottom}" stroke="#999" stroke-dasharray="4 4"/>')
        for row, (label, (value, error)) in enumerate(lines):
            y, a, x, b = (
                60 + 28 * row,
                *(180 + unit * (v - low) for v in (value - Q95 * error, value, value + Q95 * error)),
            )
            is_pooled = row >= len(effect.by_site)
            colour = "#2b5c9e" if is_pooled else "#222"
            mark = f'<path d="M{a:.1f} {y}L{x:.1f} {y - 7}L{b:.1f} {y}L{x:.1f} {y + 7}Z" fill="{colour}"/>'
            line = f'<path d="M{a:.1f} {y}H{b:.1f}" stroke="{colour}" stroke-width="2"/>'
            square = f'{line}<rect x="{x - 5:.1f}" y="{y - 5}" width="10" height="10" fill="{colour}"/>'
            figure = f"{_number(value, 3)} ({_between((value, error))})"
            parts.append(f'<text x="20" y="{y + 5}">{escape(label)}</text>{mark if is_pooled else square}')
            parts.append(f'<text x="620" y="{y + 5}">{figure}</text>')
        rest = self.sites[0] - len(effect.by_site)
        if rest:
            parts.append(f'<text x="20" y="{bottom + 20}" fill="#555">{rest} sites are not shown.</text>')
        size = f'viewBox="0 0 860 {bottom + 40}" width="860" height="{bottom + 40}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'font-family="Helvetica, Arial, sans-serif" font-size="15" fill="#222">{"".join(parts)}</svg>'
        )


def _between(effect: tuple[float, float]) -> str:
    value, error = effect
    return f"{_number(value - Q95 * error, 3)} to {_number(value + Q95 * error, 3)}"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}g}".replace("-", "−")


@dataclass(frozen=True, eq=False)
class OwnFit(Question):
    """What do a site's own estimates add to the sums?

    Args:
        terms: of the problem.
        units: a matrix that turns the model's numbers into those in units of the data.
        centre: from which estimates are measured.
        tau2: the variances between sites that are added to the estimates' own.
    """

    kind: ClassVar[str] = "own-fit"
    terms: Terms
    units: np.ndarray
    centre: np.ndarray
    tau2: np.ndarray

    @property
    def fields(self) -> Json:
        return {}

    @property
    def arrays(self) -> PyTree:
        return self.units, self.centre, self.tau2

    @property
    def shape(self) -> PyTree:
        return wholes(), reals(4, len(self.centre))

    def answer(self, data: Data) -> PyTree:
        fit = own_fit(self.terms, data)
        if fit is None:
            return 0, np.zeros((4, len(self.centre)))
        value, error = in_units(fit, self.units)
        w, b = 1.0 / (error**2 + self.tau2), value - self.centre
        return 1, np.stack([w, w * b, w * b**2, w**2])


def in_units(fit: tuple[np.ndarray, np.ndarray], units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return estimates and standard errors in units of the data."""
    w, covariance = fit
    return units @ w, np.sqrt(np.diag(units @ covariance @ units.T))


def own_fit(terms: Terms, data: Data) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the maximum-likelihood fit to one site's rows and its covariance; None where they do not determine it."""
    loss = terms.loss
    assert loss is not None
    X, y = np.asarray(data["x"], dtype=float), np.asarray(data["y"], dtype=float)
    counts = np.asarray(play(terms.counting, data)) > 0
    X, y = X[counts], y[counts]
    rows, dim = X.shape
    if rows <= dim:
        return None

    def at(w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        of = lambda z, y: (loss.value(z, y), loss.slope(z, y), loss.bend(z, y))  # noqa: E731
        value, slope, bend = map(np.asarray, play(of, jnp.asarray(X @ w), jnp.asarray(y)))
        return float(value.sum()), slope @ X, gram(X, bend)

    w = np.zeros(dim)
    value, gradient, matrix = at(w)
    for _ in range(STEPS):
        if not _is_firm(matrix):
            return None
        step = -np.linalg.solve(matrix, gradient)
        decrement = float(-gradient @ step)
        if decrement <= ENOUGH * (1.0 + abs(value)):
            break
        share = 1.0
        while True:
            trial = w + share * step
            new = at(trial)
            if np.isfinite(new[0]) and new[0] <= value - 1e-4 * share * decrement + 1e-13 * (1.0 + abs(value)):
                break
            share *= 0.5
            if share < 1e-10:
                return None
        w, (value, gradient, matrix) = trial, new
    else:
        return None
    z = X @ w
    if loss.kind == "classification" and np.max(np.abs(z)) > FAR:
        return None
    information, figures = (np.asarray(play(f, z, y)) for f in (loss.information, loss.figures))
    matrix = gram(X, information)
    if not _is_firm(matrix):
        return None
    dispersion = float(figures[1].sum()) / (rows - dim) if loss.has_dispersion else 1.0
    return (w, dispersion * np.linalg.inv(matrix)) if dispersion > 0 else None


def _is_firm(matrix: np.ndarray) -> bool:
    """Whether the rows say something about every direction."""
    scale = np.sqrt(np.diag(matrix))
    if not np.all(np.isfinite(matrix)) or not np.all(scale > 0):
        return False
    return bool(np.linalg.eigvalsh(matrix / scale[:, None] / scale)[0] > FLAT)


@float64()
def heterogeneity(
    problem: Problem,
    w: np.ndarray,
    *,
    names: Sequence[str] | None = None,
    units: np.ndarray | None = None,
    secure: bool = False,
    allow: Sequence[str] = (),
) -> Heterogeneity:
    """Return how far sites agree on the coefficients of a model: two questions, of which the sums are seen.

    Args:
        problem: that the model was trained on, with its data.
        w: the model.
        names: what each number of the model belongs to.
        units: a matrix that turns the model's numbers into those in units of the data; the identity when left out.
        secure: whether sums alone are seen.
        allow: the sites that let their own estimates be shown.
    """
    terms, dim = problem.terms, problem.terms.dim
    check_terms(terms)
    for site in allow:
        if site not in problem.names:
            raise FoedusError(f"there is no site {site!r} to be shown.{did_you_mean(site, problem.names)}")
    units = np.eye(dim) if units is None else units
    centre = units @ np.asarray(w, dtype=float)
    data = {name: problem.client(i) for i, name in enumerate(problem.names)}
    sites, zero = Here(data, secure), np.zeros(dim)
    count, sums = sites.total(OwnFit(terms, units, centre, zero))
    if count < 2:
        raise FoedusError(f"{count} of {len(data)} sites can fit this model to their own rows; expected at least 2.")
    W, B, S, squares = np.asarray(sums)
    q, spread = np.maximum(S - B**2 / W, 0.0), W - squares / W
    tau2 = np.maximum((q - (count - 1)) / spread, 0.0)
    _, again = sites.total(OwnFit(terms, units, centre, tau2))
    labels = [f"w[{j}]" for j in range(dim)] if names is None else list(names)
    own = {site: own_fit(terms, data[site]) for site in allow}
    estimates = {site: in_units(fit, units) for site, fit in own.items() if fit is not None}
    effects = tuple(
        Effect(
            name=labels[j],
            q=Test(float(q[j]), int(count) - 1),
            i2=float(max(0.0, 1.0 - (count - 1) / q[j])) if q[j] > 0 else 0.0,
            tau2=float(tau2[j]),
            fixed=(float(centre[j] + B[j] / W[j]), float(W[j] ** -0.5)),
            random=(float(centre[j] + again[1][j] / again[0][j]), float(again[0][j] ** -0.5)),
            by_site={site: (float(value[j]), float(error[j])) for site, (value, error) in estimates.items()},
        )
        for j in range(dim)
    )
    return Heterogeneity(effects, (int(count), len(data)))
