"""Cox's model from sums: `fd.cox`, and what its answer says.

With `strata="site"` every site has a baseline hazard of its own and its risk sets are its own rows, so that no time
leaves it. With `strata=None` all rows share one baseline hazard, and risk sets over all sites are added up on a grid of
times that all parties know. Both are maximised by Newton's method on sums; the answer is that of the pooled rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.notebook import html_of, text_table
from foedus.base.settings import check
from foedus.statistics.survival import concordance as pairs
from foedus.statistics.survival.common import (
    CommonScoreProducts,
    EventTrend,
    GridCounts,
    RiskSetSums,
    SecondMoments,
)
from foedus.statistics.survival.newton import Maximum, maximise
from foedus.statistics.survival.risk_sets import TIES, Hazards, Triple, hazards, likelihood
from foedus.statistics.survival.rows import Outcome, SiteTable, common_names, here, outcome_of, tables_of
from foedus.statistics.survival.stratified import (
    TRANSFORMS,
    ColumnMoments,
    EventTimes,
    PartialLikelihood,
    ScoreProducts,
    Standard,
    TimeTrend,
    square,
)
from foedus.sums.questions import Sites

NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution
CONSTANT = 1e-12  # a column whose deviation is smaller, relative to its mean, is constant


@dataclass(frozen=True)
class Test:
    """A test: its statistic, which is χ² with so many degrees of freedom where nothing is to be found, and p."""

    __test__ = False  # pytest takes classes with this name for its own

    statistic: float
    freedom: int

    @property
    def p(self) -> float:
        """The probability of a statistic at least as large where nothing is to be maximum."""
        from scipy.special import chdtrc  # here, where it is used: SciPy takes long to import

        return float(chdtrc(self.freedom, self.statistic))

    def __str__(self) -> str:
        return f"χ² = {self.statistic:.4g} on {self.freedom} df, p {'' if self.p < 0.001 else '= '}{p_text(self.p)}"


def p_text(p: float) -> str:
    """Return a probability as a table shows it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


@dataclass(frozen=True)
class HazardRatio:
    """One covariate: the logarithm of its hazard ratio in units of the data, its errors, and an interval."""

    name: str
    coefficient: float
    error: float
    z: float
    p: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class CoxFit:
    """Cox's model; print it for a table.

    Attributes:
        names: the covariates.
        coefficients: the logarithms of the hazard ratios, in units of the data. (d,)
        covariance: of the coefficients, from the information; or robust where that is asked for. (d, d)
        log_likelihood: the log partial likelihood at the answer, and at 0.
        rows, events, missing: the rows used, the events among them, and the rows left out for a missing value.
        rounds: sums over the sites that the fit took.
        ties: "efron" or "breslow".
        strata: "site", or None for common risk sets on `grid`.
        robust: whether the covariance is robust.
    """

    names: tuple[str, ...]
    coefficients: np.ndarray
    covariance: np.ndarray
    log_likelihood: tuple[float, float]
    rows: int
    events: int
    missing: int
    rounds: int
    ties: str
    strata: str | None
    robust: bool
    likelihood_ratio: Test
    wald: Test
    score: Test
    grid: np.ndarray | None = None
    sites: Sites = field(repr=False, default=None)  # pyright: ignore[reportAssignmentType]
    standard: Standard = field(repr=False, default=None)  # pyright: ignore[reportAssignmentType]
    beta: np.ndarray = field(repr=False, default=None)  # pyright: ignore[reportAssignmentType]
    information: np.ndarray = field(repr=False, default=None)  # pyright: ignore[reportAssignmentType]
    hazards: Hazards | None = field(repr=False, default=None)
    counts: np.ndarray | None = field(repr=False, default=None)

    @property
    def errors(self) -> np.ndarray:
        """The standard errors of the coefficients."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def table(self) -> tuple[HazardRatio, ...]:
        """One line for each covariate."""
        lines = []
        for name, value, error in zip(self.names, self.coefficients.tolist(), self.errors.tolist(), strict=True):
            z = value / error
            low, high = (_exp(value + sign * NORMAL * error) for sign in (-1, 1))
            lines.append(HazardRatio(name, value, error, z, math.erfc(abs(z) / math.sqrt(2)), _exp(value), low, high))
        return tuple(lines)

    def __getitem__(self, name: str) -> HazardRatio:
        for line in self.table:
            if line.name == name:
                return line
        raise KeyError(name)

    def __str__(self) -> str:
        titles = ("", "coefficient", "robust error" if self.robust else "std. error", "z", "p", "hazard ratio", "95 %")
        lines = text_table(
            titles,
            [
                (r.name, _text(r.coefficient), _text(r.error), f"{r.z:.2f}".replace("-", "−"), p_text(r.p),
                 _text(r.ratio), f"{_text(r.low, 3)} to {_text(r.high, 3)}")
                for r in self.table
            ],
        )  # fmt: skip
        lines.append("")
        if self.missing:
            lines.append(f"{self.missing:,} rows with a missing value were left out.")
        what = "a baseline hazard of its own at every site"
        if self.grid is not None:
            what = f"common risk sets at {len(self.grid)} times"
        lines.append(
            f"{self.rows:,} rows, {self.events:,} events; {what}, {self.ties.capitalize()}'s form of ties; "
            f"{self.rounds} sums over the sites."
        )
        lines.append(f"Likelihood ratio: {self.likelihood_ratio}; Wald: {self.wald}; score: {self.score}.")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))

    # --- what may be asked after the fit ---

    def proportional(self, transform: str | None = None) -> "Proportional":
        """Test whether hazards are proportional: whether a covariate's effect changes with time.

        It is the score test for the covariate times g(time), as `cox.zph` of R's survival 3 computes it.

        Args:
            transform: g: "identity", "log", or "km", one minus the Kaplan-Meier curve just before the time, which needs
                common risk sets and is then the default.
        """
        return _proportional(self, transform)

    def baseline(self) -> "Baseline":
        """Return the cumulative baseline hazard at the mean of the covariates, with common risk sets."""
        if self.hazards is None or self.grid is None:
            raise FoedusError(
                "with strata='site' the baseline hazard is one of each site, and stays there; use strata=None with a "
                "grid of times for a common one."
            )
        return Baseline(self.grid, np.cumsum(self.hazards.a), self.standard.mean, self.coefficients)

    def concordance(self) -> "pairs.Concordance":
        """Return the share of pairs of rows of one site whose order the model predicts (Harrell's C), over all sites.

        A pair counts where it is known who had the event first, and equal scores count one half, as in lifelines.
        """
        answer = self.sites.total(pairs.Pairs(self.standard, self.beta, self.ties))
        return pairs.Concordance.of_pairs(answer)

    def common_concordance(self, grid: Sequence[float] | np.ndarray, bins: int = 50) -> "pairs.Concordance":
        """Return the concordance of pairs of all sites, from a histogram of scores by time.

        Args:
            grid: times; pairs within one of its steps are not compared.
            bins: of the scores; pairs within one bin are known to count between 0 and 1, and the answer has both ends.
        """
        return pairs.from_histogram(self.sites, self.standard, self.beta, self.ties, grid_of(grid), bins)

    def scores(self, columns: Mapping[str, object]) -> np.ndarray:
        """Return xᵀβ of new rows, given by column."""
        x = np.column_stack([np.asarray(columns[name], dtype=float) for name in self.names])
        return x @ self.coefficients


@dataclass(frozen=True, eq=False)
class Baseline:
    """The cumulative hazard of a row with the mean covariates, at the times of a grid."""

    times: np.ndarray
    hazard: np.ndarray
    mean: np.ndarray
    coefficients: np.ndarray

    def survival(self, x: np.ndarray) -> np.ndarray:
        """Return the chance that rows with these covariates have no event until each time. (rows, times)"""
        risk = np.exp((np.atleast_2d(x) - self.mean) @ self.coefficients)
        return np.exp(-risk[:, None] * self.hazard)


@dataclass(frozen=True)
class Proportional:
    """The test of proportional hazards, for each covariate and for all; print it for a table."""

    transform: str
    tests: dict[str, Test]
    all: Test

    def __str__(self) -> str:
        rows = [
            (name, f"{t.statistic:.4g}", str(t.freedom), p_text(t.p))
            for name, t in [*self.tests.items(), ("all", self.all)]
        ]
        return "\n".join([*text_table(("", "χ²", "df", "p"), rows), f"Times enter as {self.transform!r}."])

    __repr__ = __str__


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _text(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}g}".replace("-", "−")


def grid_of(grid: Sequence[float] | np.ndarray | None) -> np.ndarray:
    """Return the times of a grid; raise where they are none, or not ascending."""
    times = np.asarray([] if grid is None else grid, dtype=float)
    if times.ndim != 1 or len(times) == 0:
        raise FoedusError(
            "common risk sets (strata=None) are added up at times that all parties know: state them, for instance "
            "grid=range(30, 3660, 30)."
        )
    if not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0) or times[0] < 0:
        raise FoedusError("The 'grid' must hold ascending times >= 0, each once.")
    return times


def cox(
    formula: str,
    sites: "Mapping[str, SiteTable] | Sites",
    *,
    strata: str | None = "site",
    ties: str = "efron",
    grid: Sequence[float] | np.ndarray | None = None,
    robust: bool = False,
    cluster: str = "",
    secure: bool = False,
) -> CoxFit:
    """Fit Cox's model of proportional hazards over sites, from sums alone; the answer is that of the pooled rows.

    Args:
        formula: for instance "Surv(time, event) ~ age + stage"; "." stands for all other columns.
        sites: by name, each a dict of columns, a data frame or a file.
        strata: "site": every site has a baseline hazard of its own, and nothing about times leaves it; None: one for
            all, from risk sets over all sites at the times of `grid`.
        ties: how events at the same time count, "efron" or "breslow".
        grid: with strata=None, the times. An event between two of them counts at the later one; a row without an event
            leaves at the earlier one. A grid that holds the time of every event changes nothing.
        robust: whether standard errors hold where the model is wrong (the sandwich of score residuals).
        cluster: a column; rows with the same value at a site may depend on each other. It makes errors robust.
        secure: whether sums are masked, so that totals alone are seen.

    Returns:
        The coefficients, their errors and tests. It can be printed, and asked for `proportional()`, `concordance()`,
        and with common risk sets for `baseline()`.

    Example:
        >>> import foedus as fd
        >>> north = {"time": [5, 8, 12, 20], "event": [1, 1, 0, 1], "age": [70, 61, 50, 66]}
        >>> south = {"time": [3, 9, 14], "event": [1, 0, 1], "age": [64, 48, 67]}
        >>> fit = fd.cox("Surv(time, event) ~ age", {"north": north, "south": south})
        >>> round(fit["age"].ratio, 3)
        1.143
    """
    check("The 'strata' of cox", strata, choices=("site",), none=True)
    check("The 'ties' of cox", ties, choices=TIES)
    if strata is not None and grid is not None:
        raise FoedusError("a grid is for common risk sets: give strata=None with it, or leave it out.")
    times = None if strata else grid_of(grid)
    sites, outcome = sites_and_outcome(formula, sites, cluster, secure)
    if not outcome.columns:
        raise FoedusError(f"the formula {formula!r} names no covariate.")
    standard, counts = standardise(sites, outcome)
    fit = _Fit(sites, standard, outcome.columns, ties, times)
    maximum = maximise(fit.evaluate, np.zeros(len(outcome.columns)), outcome.columns)
    return _answer(fit, maximum, counts, strata, robust or bool(cluster))


def sites_and_outcome(
    formula: str, sites: "Mapping[str, SiteTable] | Sites", cluster: str = "", secure: bool = False, group: str = ""
) -> tuple[Sites, Outcome]:
    """Return the sites as those who answer questions, and what the formula names."""
    if not isinstance(sites, Mapping):
        return sites, outcome_of(formula, (), cluster)
    by_site = tables_of(sites)
    outcome = replace(outcome_of(formula, common_names(by_site), cluster), group=group)
    return here(by_site, outcome, secure), outcome


def standardise(sites: Sites, outcome: Outcome) -> tuple[Standard, tuple[int, int, int]]:
    """Return how columns are brought to mean 0 and deviation 1; and the rows, the events and the rows left out."""
    (rows, events, missing), (total, within, squares) = sites.total(ColumnMoments(len(outcome.columns)))
    rows, events, missing = int(rows), int(events), int(missing)
    if rows == 0:
        raise FoedusError("no row of any site has a value in every column of the formula.")
    if events == 0:
        raise FoedusError(f"the column {outcome.event!r} is 0 in every row of every site: without an event there is no "
                          "time to explain.")  # fmt: skip
    mean = total / rows
    variance = (within + np.maximum(squares - rows * mean**2, 0.0)) / rows
    scale = np.sqrt(variance)
    for name, m, s in zip(outcome.columns, mean, scale, strict=True):
        if not s > CONSTANT * abs(m):
            raise FoedusError(f"the column {name!r} has the same value in every row; leave it out.")
    return Standard(mean, scale), (rows, events, missing)


@dataclass
class _Fit:
    """The sums of one fit, as Newton's method asks for them."""

    sites: Sites
    standard: Standard
    names: tuple[str, ...]
    ties: str
    grid: np.ndarray | None
    rounds: int = 1
    counts: np.ndarray | None = None  # at risk, and events, at each time
    event_x: np.ndarray | None = None
    of: Hazards | None = None  # at the point that was evaluated last

    def evaluate(self, beta: np.ndarray) -> Triple:
        """Return the log-likelihood with its derivatives: one sum, or two with common risk sets."""
        if self.grid is None:
            self.rounds += 1
            value, gradient, half = self.sites.total(PartialLikelihood(self.standard, beta, self.ties))
            return float(value), gradient, square(half, len(beta))
        if self.counts is None:
            self.rounds += 1
            self.counts, self.event_x = self.sites.total(GridCounts(self.standard, self.grid))
            assert self.counts is not None
            if not np.any(self.counts[1]):
                raise FoedusError("no event lies on the grid: the risk sets at its times are empty.")
        assert self.event_x is not None
        self.rounds += 2
        question = RiskSetSums(self.standard, beta, self.ties, self.grid)
        total = question.moments_of(self.sites.total(question))
        self.of = hazards(total, self.counts[1], self.ties)
        matrix = self.second(beta, self.of.a[None], self.of.b[None])[0]
        return likelihood(total, self.of, self.event_x, matrix)

    def second(self, beta: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        """Return Σ a_k S2_k + b_k D2_k for each pair of weights."""
        assert self.grid is not None
        halves = self.sites.total(SecondMoments(self.standard, beta, self.ties, self.grid, a, b))
        return [square(half, len(beta)) for half in halves]

    def score_products(self, beta: np.ndarray) -> np.ndarray:
        """Return Σ u uᵀ of the score residuals."""
        self.rounds += 1
        if self.grid is None:
            return square(self.sites.total(ScoreProducts(self.standard, beta, self.ties)), len(beta))
        assert self.of is not None
        return square(
            self.sites.total(CommonScoreProducts(self.standard, beta, self.ties, self.grid, self.of)), len(beta)
        )


def _answer(fit: _Fit, maximum: Maximum, counts: tuple[int, int, int], strata: str | None, robust: bool) -> CoxFit:
    beta, information = maximum.point, maximum.information
    inverse = np.linalg.inv(information)
    covariance = inverse @ fit.score_products(beta) @ inverse if robust else inverse
    first_value, first_gradient, first_information = maximum.start
    d, scale = len(beta), fit.standard.scale
    return CoxFit(
        names=fit.names,
        coefficients=beta / scale,
        covariance=covariance / scale[:, None] / scale,
        log_likelihood=(maximum.value, first_value),
        rows=counts[0],
        events=counts[1],
        missing=counts[2],
        rounds=fit.rounds,
        ties=fit.ties,
        strata=strata,
        robust=robust,
        likelihood_ratio=Test(2.0 * (maximum.value - first_value), d),
        wald=Test(float(beta @ np.linalg.solve(covariance, beta)), d),
        score=Test(float(first_gradient @ np.linalg.solve(first_information, first_gradient)), d),
        grid=fit.grid,
        sites=fit.sites,
        standard=fit.standard,
        beta=beta,
        information=information,
        hazards=fit.of,
        counts=fit.counts,
    )


def _proportional(fit: CoxFit, transform: str | None) -> Proportional:
    """The score test of covariates times g: U'(I_θθ − I_θβ I_ββ⁻¹ I_βθ)⁻¹U, and its part for one covariate."""
    allowed = (*TRANSFORMS, "km") if fit.grid is not None else tuple(TRANSFORMS)
    transform = transform or ("km" if fit.grid is not None else "identity")
    check("The 'transform' of proportional", transform, choices=allowed)
    d = len(fit.names)
    if fit.grid is None:
        total, squares = fit.sites.total(EventTimes(transform))
        centre = float(total) / fit.events
        unit = math.sqrt(max(float(squares) / fit.events - centre**2, 0.0)) or 1.0
        question = TimeTrend(fit.standard, fit.beta, fit.ties, transform, centre, unit)
        gradient, (cross, own) = fit.sites.total(question)
        cross, own = square(cross, d), square(own, d)
    else:
        assert fit.hazards is not None and fit.counts is not None
        at_risk, events = fit.counts.astype(float)
        if transform == "km":
            steps = np.where(at_risk > 0, 1.0 - events / np.maximum(at_risk, 1.0), 1.0)
            g = 1.0 - np.concatenate([[1.0], np.cumprod(steps)[:-1]])
        else:
            g = TRANSFORMS[transform](np.where(events > 0, fit.grid, 1.0))
            if not np.all(np.isfinite(g)):
                raise FoedusError(f"transform = {transform!r} needs times > 0 at every event.")
        g = g - float(g @ events) / float(events.sum())
        g = g / (math.sqrt(float(g**2 @ events) / float(events.sum())) or 1.0)
        helper = _Fit(fit.sites, fit.standard, fit.names, fit.ties, fit.grid)
        weights = np.stack([g, g * g])
        seconds = helper.second(fit.beta, weights * fit.hazards.a, weights * fit.hazards.b)
        cross, own = (matrix - fit.hazards.outer(w) for matrix, w in zip(seconds, weights, strict=True))
        event_x = fit.sites.total(EventTrend(fit.standard, fit.beta, fit.ties, fit.grid, g))
        gradient = event_x - (g * events) @ fit.hazards.mean
    inside = own - cross @ np.linalg.solve(fit.information, cross)
    tests = {name: Test(float(gradient[j] ** 2 / inside[j, j]), 1) for j, name in enumerate(fit.names)}
    return Proportional(transform, tests, Test(float(gradient @ np.linalg.solve(inside, gradient)), d))
