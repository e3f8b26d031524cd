"""glm: a generalised linear model stated by a formula, fitted over sites as on their pooled rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import numpy as np

from foedus.algorithms import InteriorPoint
from foedus.app.solve import solve
from foedus.base.engine import float64
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.notebook import html_of
from foedus.base.pytrees import PyTree
from foedus.base.quantities import count
from foedus.base.settings import check
from foedus.data.columns import listing, text_of
from foedus.data.formula import Design
from foedus.problem import losses
from foedus.problem.constraints import Linear
from foedus.problem.likelihoods import Multinomial, Ordinal
from foedus.problem.losses import Loss
from foedus.problem.problem import Problem
from foedus.problem.terms import Constraint
from foedus.runtime.run import Run
from foedus.statistics import intercepts
from foedus.statistics.coefficients import Coefficient, CoefficientTable, coefficients, rise_of, table_from
from foedus.statistics.formula import FormulaRows, learn
from foedus.statistics.heterogeneity import Heterogeneity, heterogeneity
from foedus.statistics.intercepts import SiteRows
from foedus.statistics.sandwich import ERRORS
from foedus.statistics.survival.rows import SiteTable, tables_of
from foedus.statistics.survival.stratified import halves, reals, square, triangle, wholes
from foedus.sums.questions import Here, Question

FAMILIES: dict[str, dict[str, Loss | None]] = {
    "gaussian": {"identity": losses.least_squares},
    "binomial": {"logit": losses.logistic, "probit": losses.probit, "cloglog": losses.cloglog},
    "poisson": {"log": losses.poisson},
    "negative_binomial": {"log": None},
    "gamma": {"log": losses.gamma},
    "tweedie": {"log": None},
    "multinomial": {"logit": None},
    "ordinal": {"logit": None},
}
SEVERAL = {"multinomial": Multinomial, "ordinal": Ordinal}
COLLINEAR = 1e-11  # the least eigenvalue of the columns' correlations
EXACT = 1e-10  # stationarity to reach, for columns of deviation 1
FAR = 15.0  # of a coefficient for a column of deviation 1: beyond it the rows of a class are parted from the others
ALPHAS = (1e-8, 1e4)  # between which a dispersion is sought


@dataclass(frozen=True)
class GlmFit:
    """A fitted model; print it for its table.

    Attributes:
        table: the coefficients in units of the data, as of `run.summary`.
        run: the run that fitted it, over standardised columns.
        formula: as it was stated.
        family: with its link.
        rows: of each site, that took part.
        rounds: that it took; a negative binomial model is fitted several times.
        missing: rows of all sites that were left out because a value is missing.
        alpha: the dispersion of a negative binomial model; None of another.
    """

    table: CoefficientTable
    run: Run
    formula: str
    family: str
    rows: Mapping[str, int]
    missing: int
    alpha: float | None
    rounds: int
    design: Design
    problem: Problem
    units: np.ndarray
    clusters: Mapping[str, Sequence[object]] | None

    def __getitem__(self, name: str) -> Coefficient:
        return self.table[name]

    def summary(self, errors: str = "hessian") -> CoefficientTable:
        """Return the table with these standard errors: "hessian", "HC0" to "HC3", or "cluster"."""
        names, secure = [row.name for row in self.table.rows], "secure" in self.run.settings
        table = coefficients(
            self.problem, self.run.w, self.run.multipliers, names=names, units=self.units, errors=errors,
            clusters=self.clusters, secure=secure,
        )  # fmt: skip
        if self.alpha is None or table.figures is None:
            return table
        return replace(table, figures=replace(table.figures, free=table.figures.free + 1))  # α is one more

    def heterogeneity(self, allow: Sequence[str] = ()) -> Heterogeneity:
        """Return how far the sites agree on each coefficient, from sums over their own fits.

        Args:
            allow: the sites that let their own estimates be shown, in `forest(name)`.
        """
        names, secure = [row.name for row in self.table.rows], "secure" in self.run.settings
        if self.problem.terms.loss is None:
            raise FoedusError(f"how far sites agree is not known for a response of several classes ({self.family}).")
        w = np.asarray(self.run.w)
        return heterogeneity(self.problem, w, names=names, units=self.units, secure=secure, allow=allow)

    def __str__(self) -> str:
        more = "" if self.alpha is None else f", alpha {self.alpha:.6g}"
        left_out = f" {self.missing} rows with missing values were left out." if self.missing else ""
        rounds = count(self.rounds, "round")
        head = f"{self.formula}: {self.family}{more}, over {len(self.rows)} sites in {rounds}.{left_out}"
        return f"{head}\n{self.table}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))


@dataclass(frozen=True)
class InterceptFit:
    """A fitted model with an intercept for each site; print it for its table.

    Attributes:
        table: the coefficients in units of the data.
        formula: as it was stated.
        family: with its link.
        rows: of each site, that took part.
        missing: rows of all sites that were left out because a value is missing.
        rounds: the questions that it took.
        silent: sites whose rows are all of one class, or without an event: with fixed intercepts they say nothing.
        sigma2: the variance of a row; 1 where the family has none.
        tau2: the variance of the sites' intercepts; None where they are fixed.
        log_likelihood: restricted (REML) for gaussian rows, by Laplace's method for others; None for fixed intercepts.
    """

    table: CoefficientTable
    formula: str
    family: str
    rows: Mapping[str, int]
    missing: int
    rounds: int
    silent: int
    sigma2: float
    tau2: float | None
    log_likelihood: float | None

    def __getitem__(self, name: str) -> Coefficient:
        return self.table[name]

    def __str__(self) -> str:
        rounds = count(self.rounds, "round")
        kind = "fixed intercepts, which stay at the sites"
        if self.tau2 is not None:
            kind = f"random intercepts of variance {self.tau2:.4g}"
        silent = f" {self.silent} sites say nothing about the coefficients." if self.silent else ""
        head = f"{self.formula}: {self.family}, {kind}, over {len(self.rows)} sites in {rounds}.{silent}"
        return f"{head}\n{self.table}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))


@dataclass(frozen=True, eq=False)
class ColumnProducts(Question):
    """How many rows are there, and what do columns, less a centre, and their products add up to?

    Args:
        centre: of each column.
    """

    kind: ClassVar[str] = "columns-products"
    centre: np.ndarray

    @property
    def arrays(self) -> PyTree:
        return self.centre

    @property
    def shape(self) -> PyTree:
        return wholes(), reals(len(self.centre)), reals(halves(len(self.centre)))

    def answer(self, data: np.ndarray) -> PyTree:
        own = data - self.centre
        return len(own), own.sum(axis=0), triangle(own.T @ own)


@float64()
def glm(
    formula: str,
    sites: Mapping[str, SiteTable],
    family: str = "gaussian",
    link: str | None = None,
    *,
    alpha: float | None = None,
    power: float = 1.5,
    weights: str | None = None,
    errors: str = "hessian",
    cluster: str | None = None,
    levels: Sequence[object] | None = None,
    constraints: Sequence[Constraint] = (),
    site_intercepts: bool = False,
    random: str | None = None,
    secure: bool = False,
) -> "GlmFit | InterceptFit":
    """Fit a generalised linear model over sites, equal to the fit on their pooled rows.

    Args:
        formula: as "readmitted ~ age + C(ward, ref='A') + bs(creatinine, df=4) + offset(log(days))", with interactions
            a:b and a*b. What it learns from all rows, such as levels, means and knots, is learnt from sums.
        sites: by name, each site's columns: a dict, a data frame, or a file.
        family: "gaussian", "binomial", "poisson", "negative_binomial", "gamma", "tweedie", "multinomial" or "ordinal".
        link: "identity"; "logit", "probit" or "cloglog"; "log"; that of the family when left out.
        alpha: the dispersion of a negative binomial model, whose variance is m + alpha·m²; found by maximum likelihood
            when left out.
        power: of a tweedie model, whose variance is in proportion to m^power; between 1 and 2.
        weights: the column with the weight of each row; all the same when left out.
        errors: "hessian", if the model is right; "HC0", "HC1", "HC2" or "HC3", if the variance may be another;
            "cluster", if rows of one cluster depend on each other.
        cluster: the column that says of which cluster of its site a row is.
        levels: of the response of a multinomial or an ordinal model, in order: the first is what the others are
            compared with, or the lowest. In the order of numbers or of the alphabet when left out.
        constraints: caps on losses, as `fd.constraints.LossCap`.
        site_intercepts: give each site an intercept of its own, which it finds itself and never sends.
        random: "site": intercepts of sites from a normal distribution, by REML for gaussian rows, by Laplace's method
            for others.
        secure: let sums over sites alone be seen.

    Returns:
        The fit: its table has coefficients, errors, tests and figures. With intercepts of sites, an `InterceptFit`.

    Example:
        >>> import foedus as fd
        >>> north = {"sick": [0, 2, 1, 4], "age": [30, 41, 52, 66], "days": [10, 20, 10, 20]}
        >>> south = {"sick": [1, 1, 6], "age": [35, 44, 70], "days": [10, 10, 30]}
        >>> fit = fd.glm("sick ~ age + offset(log(days))", {"north": north, "south": south}, "poisson")
        >>> round(fit["age"].value, 4), round(fit["age"].error, 4)
        (0.0328, 0.0196)
    """
    loss, link = _loss_of(family, link, alpha, power)
    check("The 'random' of glm", random, choices=("site",), none=True)
    check("The 'errors' of glm", errors, choices=ERRORS)
    if (errors == "cluster") != (cluster is not None):
        raise FoedusError(
            "errors='cluster' and cluster=, the column that says which rows belong together, go together."
        )
    if any(isinstance(one, Linear) for one in constraints):
        raise FoedusError("glm fits standardised columns, to which a Linear constraint does not apply; cap losses.")
    if levels is not None and family not in SEVERAL:
        raise FoedusError(f"levels are for a multinomial or an ordinal response, and family is {family!r}.")
    if weights is not None and family in SEVERAL:
        raise FoedusError(f"weights are not for a multinomial or an ordinal response, and family is {family!r}.")
    more = tuple(name for name in (weights, cluster) if name is not None)
    responses = (Design(formula).response,) if family in SEVERAL else ()
    design, here = learn(formula, tables_of(sites), more, secure, responses)
    rows: Mapping[str, FormulaRows] = here.data  # pyright: ignore[reportAssignmentType]
    own_intercepts = site_intercepts or random is not None
    designs = {site: design.columns_of(own.columns) for site, own in rows.items()}
    names = next(iter(designs.values()))[1]
    if not names:
        raise FoedusError(f"the formula {formula!r} has no columns on its right side, not even a constant.")
    shift, scale = _standard({site: X for site, (X, _) in designs.items()}, names, secure)
    units = _units(names, shift, scale)
    X = {site: (own - shift) / scale for site, (own, _) in designs.items()}
    codes = None
    if cluster is not None:
        codes = {site: text_of(own.table.columns[cluster]).codes.tolist() for site, own in rows.items()}
    common: dict[str, Any] = {
        "formula": formula, "family": f"{family} ({link})", "rows": {site: len(own) for site, own in X.items()},
        "missing": sum(own.missing for own in rows.values()), "design": design, "clusters": codes,
    }  # fmt: skip
    if family in SEVERAL and own_intercepts:
        raise FoedusError(f"intercepts of sites are not known for a response of several classes ({family}).")
    if family in SEVERAL:
        fit = _several(family, design, rows, X, names, units, levels, constraints, secure, common)
        return replace(fit, table=fit.summary(errors))
    assert loss is not None
    if own_intercepts:
        plain = errors == "hessian" and weights is None and not constraints and family != "tweedie"
        if not plain or (family == "negative_binomial" and alpha is None) or (site_intercepts and random is not None):
            raise FoedusError(
                "intercepts of sites go with errors='hessian', without weights and constraints, with a stated alpha, "
                "and fixed or random, not both."
            )
        return _with_intercepts(loss, design, rows, X, names, units, random, secure, common)
    clients, start = {}, np.zeros(2)
    for site, own in rows.items():
        y = _response(design, own)
        extra = [] if design.offset is None else [design.evaluate(design.offset, own.columns)]
        start += [np.sum(y), np.sum(np.exp(extra[0])) if extra else len(y)]
        extra += [_weights(weights, own, site)] if weights is not None else []
        clients[site] = X[site], np.column_stack([y, *extra]) if extra else y
    w0 = np.zeros(len(names))
    if "(intercept)" in names:
        w0[names.index("(intercept)")] = _first_score(loss, family, start)

    def fit_of(loss: Loss, w0: np.ndarray) -> GlmFit:
        dispersion = getattr(loss, "alpha", None) if family == "negative_binomial" and alpha is None else None
        if design.offset is not None or weights is not None:
            loss = losses.by_row(loss, offset=design.offset is not None, weight=weights is not None)
        problem = Problem(clients, loss=loss, weights="rows", constraints=list(constraints))
        size = max(1.0, float(np.sqrt(_mean_square(clients, secure))))
        run = solve(problem, InteriorPoint(eps1=EXACT * size, eps2=1e-9), w0=w0, secure=secure)
        _check_end(run, loss.kind == "classification", names)
        table = coefficients(problem, run.w, run.multipliers, names=names, units=units, secure=secure)
        return GlmFit(table, run, alpha=dispersion, rounds=run.rounds, problem=problem, units=units, **common)

    fit = fit_of(loss, w0) if family != "negative_binomial" or alpha is not None else _with_dispersion(fit_of, w0)
    return replace(fit, table=fit.summary(errors))


def _with_intercepts(
    loss: Loss, design: Design, rows: Mapping[str, FormulaRows], X: Mapping[str, np.ndarray], names: Sequence[str],
    units: np.ndarray, random: str | None, secure: bool, common: Mapping[str, Any],
) -> InterceptFit:  # fmt: skip
    """The fit with an intercept for each site."""
    keep = [j for j, name in enumerate(names) if random is not None or name != "(intercept)"]
    if not keep:
        raise FoedusError(f"the formula {common['formula']!r} has no column beside the intercepts of sites.")
    data = {
        site: SiteRows(
            X[site][:, keep],
            _response(design, own),
            np.zeros(len(X[site])) if design.offset is None else design.evaluate(design.offset, own.columns),
        )
        for site, own in rows.items()
    }
    for site, own in data.items():
        if wrong := loss.wrong_targets(own.y):
            raise FoedusError(f"site {site!r}: the response is {wrong[0]:g}; {loss.name} expects {loss.expects}.")
    sites, labels, T = Here(data, secure), [names[j] for j in keep], units[np.ix_(keep, keep)]
    if random is None:
        fit = intercepts.fixed(sites, loss, labels)
    elif loss.quadratic:
        fit = intercepts.mixed(sites, len(keep))
        # the restricted likelihood depends on the units of columns
        fit = replace(fit, log_likelihood=(fit.log_likelihood or 0.0) + float(np.linalg.slogdet(T)[1]))
    else:
        fit = intercepts.laplace(sites, loss, labels, np.zeros(len(keep)))
    freedom = None
    if loss.has_dispersion and random is None:
        freedom = float(fit.rows - len(keep) - (len(data) - fit.silent))
    table = table_from(labels, T @ fit.beta, T @ fit.covariance @ T.T, loss.ratio, freedom)
    return InterceptFit(
        table=table, formula=common["formula"], family=common["family"], rows=common["rows"], missing=common["missing"],
        rounds=fit.rounds, silent=fit.silent, sigma2=fit.sigma2, tau2=fit.tau2, log_likelihood=fit.log_likelihood,
    )  # fmt: skip


def _several(
    family: str, design: Design, rows: Mapping[str, FormulaRows], X: Mapping[str, np.ndarray], names: Sequence[str],
    units: np.ndarray, levels: Sequence[object] | None, constraints: Sequence[Constraint], secure: bool,
    common: Mapping[str, Any],
) -> GlmFit:  # fmt: skip
    """The fit of a response of several classes."""
    if design.offset is not None:
        raise FoedusError(f"a {family} model takes no offset.")
    choices = design.levels[design.response]
    levels = choices if levels is None else tuple(levels)
    if {*levels} != {*choices} or len(levels) < 2:
        raise FoedusError(
            f"levels must be those of {design.response!r}, {listing(map(repr, choices), 10)}. Got {levels!r}."
        )
    place = {level: float(k) for k, level in enumerate(levels)}
    y = {
        site: np.array([place[level] for level in own.columns.columns[design.response].tolist()])
        for site, own in rows.items()
    }
    several, last = len(levels), names.index("(intercept)") if "(intercept)" in names else None
    if family == "multinomial":
        w0: PyTree = np.zeros((len(names), several - 1))
        labels = [f"{level}: {name}" for name in names for level in levels[1:]]
        T = np.kron(units, np.eye(several - 1))
    else:  # the cuts are the constants
        indicators = {site: (own[:, None] == np.arange(several)).astype(float) for site, own in y.items()}
        _, each, _ = Here(indicators, secure).total(ColumnProducts(np.zeros(several)))
        below = np.cumsum(np.asarray(each))[:-1] / np.sum(each)
        keep = [j for j in range(len(names)) if j != last]
        X = {site: own[:, keep] for site, own in X.items()}
        w0 = {"cuts": np.log(below / (1.0 - below)), "w": np.zeros(len(keep))}
        labels = [f"up to {level}" for level in levels[:-1]] + [names[j] for j in keep]
        T = np.eye(len(labels))
        T[several - 1 :, several - 1 :] = units[np.ix_(keep, keep)]
        T[: several - 1, several - 1 :] = 0.0 if last is None else -units[last, keep]
    problem = Problem(
        {site: (X[site], y[site]) for site in rows}, objective=SEVERAL[family](several), weights="rows",
        constraints=list(constraints),
    )  # fmt: skip
    run = solve(problem, InteriorPoint(eps1=EXACT, eps2=1e-9), w0=w0, secure=secure)
    _check_end(run, True, labels)
    table = coefficients(problem, run.w, run.multipliers, names=labels, units=T, secure=secure)
    return GlmFit(table, run, alpha=None, rounds=run.rounds, problem=problem, units=T, **common)


def _loss_of(family: str, link: str | None, alpha: float | None, power: float) -> tuple[Loss | None, str]:
    if family not in FAMILIES:
        raise FoedusError(
            f"family must be one of {', '.join(map(repr, FAMILIES))}. Got {family!r} instead."
            f"{did_you_mean(str(family), FAMILIES)}"
        )
    links = FAMILIES[family]
    link = next(iter(links)) if link is None else link
    if link not in links:
        raise FoedusError(f"family {family!r} has the link {', '.join(map(repr, links))}. Got {link!r} instead.")
    if alpha is not None and family != "negative_binomial":
        raise FoedusError(f"alpha is the dispersion of a negative binomial model, and family is {family!r}.")
    if family == "negative_binomial":
        return losses.negative_binomial(1.0 if alpha is None else alpha), link
    if family == "tweedie":
        return losses.tweedie(power), link
    return links[link], link


def _response(design: Design, rows: FormulaRows) -> np.ndarray:
    if design.response in rows.words:
        levels = text_of(rows.table.columns[design.response]).used().levels
        raise FoedusError(
            f"{rows.table.source}: the response {design.response!r} holds words; write {design.response} == "
            f"{levels[0]!r} on the left side of the formula to say which of them counts as 1."
        )
    return design.evaluate(design.response, rows.columns)


def _weights(name: str, rows: FormulaRows, site: str) -> np.ndarray:
    column = rows.columns.columns[name]
    if column.dtype == object or not np.all(column > 0):
        raise FoedusError(f"site {site!r}: the weights in {name!r} must be numbers > 0.")
    return column


def _standard(X: Mapping[str, np.ndarray], names: Sequence[str], secure: bool) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the deviation of each column, over all sites; raise where columns are collinear."""
    sites, dim = Here(X, secure), len(names)
    constant = np.array([name == "(intercept)" for name in names])
    size, total, _ = sites.total(ColumnProducts(np.zeros(dim)))
    mean = np.where(constant, 0.0, np.asarray(total) / int(size)) if constant.any() else np.zeros(dim)
    _, _, products = sites.total(ColumnProducts(mean))
    products = square(np.asarray(products), dim) / int(size)
    scale = np.where(constant, 1.0, np.sqrt(np.diag(products)))
    for name, deviation, m in zip(names, scale, mean, strict=True):
        if not deviation > 1e-13 * abs(m):
            raise FoedusError(f"the column {name!r} has the same value in every row; leave it out.")
    values, vectors = np.linalg.eigh(products / scale[:, None] / scale)
    if values[0] < COLLINEAR:
        part = np.abs(vectors[:, 0])
        culprits = [repr(names[int(j)]) for j in np.flatnonzero(part > 0.1 * part.max())]
        raise FoedusError(
            f"the columns {', '.join(culprits)} are collinear, so their coefficients are not determined; leave one out."
        )
    return mean, scale


def _units(names: Sequence[str], shift: np.ndarray, scale: np.ndarray) -> np.ndarray:
    T = np.diag(1.0 / scale)
    if "(intercept)" in names:
        T[names.index("(intercept)")] -= np.where(np.array(names) == "(intercept)", 0.0, shift / scale)
    return T


def _first_score(loss: Loss, family: str, start: np.ndarray) -> float:
    """The score at which the mean of all rows is right, without any column."""
    if family == "gaussian":
        return float(start[0] / start[1])
    return math.log(max(start[0] / start[1], 1e-3)) if loss.link == "log" else 0.0


def _mean_square(clients: Mapping[str, tuple[np.ndarray, np.ndarray]], secure: bool) -> float:
    """The mean of y², which says how large the slopes of a loss are."""
    sites = Here({s: (y if y.ndim == 1 else y[:, 0])[:, None] for s, (_, y) in clients.items()}, secure)
    size, _, squares = sites.total(ColumnProducts(np.zeros(1)))
    return float(squares[0]) / int(size)


def _check_end(run: Run, has_classes: bool, names: Sequence[str]) -> None:
    """Raise where the fit has no maximum, or was not found."""
    w = np.abs(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.w)]))
    if has_classes and (np.max(w) > FAR or not run.converged):
        name = names[int(np.argmax(w))]
        raise FoedusError(
            f"the coefficient of {name!r} grows without end, as where its values part the rows of the two classes; "
            "leave the column out, or merge its rare values."
        )
    if not run.converged:
        raise FoedusError(f"the fit did not come to an end: {run.reason}.")


def _with_dispersion(fit_of: Callable[[Loss, np.ndarray], GlmFit], w0: np.ndarray) -> GlmFit:
    """The negative binomial fit whose dispersion has the largest likelihood."""
    from scipy.optimize import brentq

    fits: dict[float, GlmFit] = {}

    def rise(log_alpha: float) -> float:
        near = min(fits, key=lambda key: abs(key - log_alpha), default=None)
        start = w0 if near is None else np.asarray(fits[near].run.w)
        fits[log_alpha] = fit = fit_of(losses.negative_binomial(math.exp(log_alpha)), start)
        return rise_of(fit.problem, np.asarray(fit.run.w), "secure" in fit.run.settings)

    low, high = -1.0, 1.0
    while rise(low) < 0:
        low -= 2.0
        if math.exp(low) < ALPHAS[0]:
            raise FoedusError("the rows vary no more than Poisson's counts do; use family='poisson'.")
    while rise(high) > 0:
        high += 2.0
        if math.exp(high) > ALPHAS[1]:
            raise FoedusError("the dispersion of the negative binomial model grows without end.")
    best = float(np.asarray(brentq(rise, low, high, xtol=1e-12)))
    rise(best)
    return replace(fits[best], rounds=sum(fit.rounds for fit in fits.values()))
