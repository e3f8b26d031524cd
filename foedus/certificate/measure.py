"""What a returned point satisfies, measured at that point and from nothing that an algorithm computed but (w, μ).

The derivatives here come from automatic differentiation of the stated functions, not from the structured forms that the
algorithms use, so a mistake in those shows up as a certificate that does not hold. Shared with the algorithms are the
problem's own functions (losses, rows, regularisers) and `foedus.certificate.contradiction.reach`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.notebook import at_least, at_most, html_of
from foedus.base.pytrees import PyTree, device_array
from foedus.base.quantities import short
from foedus.certificate.contradiction import Contradiction, RowSlopes, UnseenRows, contradiction_of
from foedus.certificate.gap import (
    Curves,
    hessian,
    hessian_of_losses,
    measure_gap,
    price_of,
    ridge_bound,
    rows_convex,
    sums_losses,
)
from foedus.certificate.private import PrivateCertificate
from foedus.certificate.rows import Row, RowCount, table_of
from foedus.certificate.wide_gap import MOST, Ask, ask_here, at_point, measure_wide
from foedus.numerics.interpreter.dispatch import is_moderate, is_small, jit_if_large, play
from foedus.numerics.interpreter.threads import threads_for
from foedus.problem.constraints import NO_CAP
from foedus.problem.penalties import Penalty, Ridge
from foedus.problem.problem import Problem
from foedus.problem.regularizers import Regularizer
from foedus.problem.terms import Constraint, Data, Terms, rows

GAP_COLUMNS = 500  # columns up to which the gap is estimated from matrices: a site's takes 2 MB
GAP_NUMBERS = 2 * 10**7  # of all sites' matrices together
HEAVY = 1e5  # multipliers beyond this are scaled down where only the directions of rows matter
ROUNDING = 1e-14  # of the objective: what adding up its losses in floating point may change
SCOPES = ("local", "global", "coupled")
Multipliers: TypeAlias = Mapping[str, np.ndarray]
"""Multipliers by scope."""


@dataclass(frozen=True)
class Certificate:
    """Sup-norm residuals of the optimality conditions at (w, μ), over all parties.

    stationarity     dist_∞(0, ∇f + ∂h + Σ ∇c μ)
    feasibility      ‖[c]₊‖_∞, |c| on equalities
    complementarity  |μ·c|_∞ on inequalities
    gap              an estimate of how far the objective is above the best possible one; see `foedus.certificate.gap`
    distance         dist_∞(c, N(μ)): |c| where μ > 0, [c]₊ where μ = 0
    by_site          ‖∇f_i/n + ∇c_i μ_i‖_∞ is not a residual; a site's rows are: see `rows`
    """

    stationarity: float
    feasibility: float = 0.0
    complementarity: float = 0.0
    distance: float = 0.0
    eps1: float = 1e-3
    eps2: float = 1e-3
    rows: tuple[Row, ...] = ()
    gap: float | None = None  # an estimate of the objective that is still to be had, None where it is not measured
    gap_bound: float | None = None  # a proved bound on it, where a ridge gives one
    floor: float | None = None  # what no model's objective is below, as losses are not negative; None if unknown
    gap_note: str = ""  # why the gap is not measured, where it could be for fewer columns
    kind: str = "minimum"  # or "saddle point" or "maximum": what the curvature on the binding face says
    silent: tuple[str, ...] = ()  # sites that did not measure, because a measurement would be exact
    clients: int = 0  # how many sites there are, where some did not measure
    without: tuple[str, ...] = ()  # sites that the run went on without: nothing is said about them
    contradiction: Contradiction | None = None  # evidence that the terms cannot be met, where they are not
    # of a run with masked sums; residuals over these rows are then eps2 ("at most") or infinite ("not at all sites")
    counts: tuple[RowCount, ...] = ()
    private: PrivateCertificate | None = None  # the caps as they were measured under noise
    left_out: tuple[tuple[str, str], ...] = ()  # a site and a constraint that does not apply there

    @staticmethod
    def unmeasured(silent: Sequence[str], clients: int, eps1: float, eps2: float) -> "Certificate":
        """The certificate of a run in which these sites do not measure: nothing is known, and nothing holds."""
        none = math.nan
        return Certificate(none, none, none, none, eps1, eps2, silent=tuple(silent), clients=clients)

    def holds(self, eps1: float | None = None, eps2: float | None = None) -> bool:
        """Whether stationarity is within eps1, and feasibility, complementarity and distance are within eps2."""
        eps1, eps2 = self.eps1 if eps1 is None else eps1, self.eps2 if eps2 is None else eps2
        within = (self.feasibility <= eps2, self.complementarity <= eps2, self.distance <= eps2)
        return self.stationarity <= eps1 and all(within)  # not of the largest: NaN is within nothing

    def by_site(self) -> dict[str, tuple[Row, ...]]:
        """The rows of each site."""
        sites: dict[str, tuple[Row, ...]] = {}
        for row in self.rows:
            sites[row.site] = (*sites.get(row.site, ()), row)
        return sites

    def optimality(self, objective: float) -> str | None:
        """How far the objective is above the best possible one, in words; None where that is not measured."""
        if self.contradiction is not None and self.contradiction.convex:
            return "the constraints contradict each other, so there is no best possible objective"
        if self.contradiction is not None:
            return "the constraints are not met, so nothing is known of the best possible objective"
        if self.kind != "minimum":
            return f"the point is a {self.kind}, not a minimum: so says the curvature along the binding constraints"
        bound = self.proved_bound(objective)
        if bound is not None:
            least = at_least(objective - bound)
            return f"the objective is at most {at_most(bound)} above the optimum, which is at least {least} (proved)"
        if self.gap is not None and math.isfinite(self.gap) and math.isfinite(objective):
            if self.gap <= self.room(objective):
                best = f"{objective - self.gap:.6g} (an estimate)"
                return f"the objective is about {self.gap:.2g} above the best possible objective of {best}"
            if self.floor is not None:  # no quadratic model reaches that far
                far = at_most(self.room(objective))
                return f"the objective is at most {far} above the optimum, as it is never below {self.floor:g}"
            return (
                "how far the objective is above the best possible one is not known: a rough estimate, "
                f"{self.gap:.2g}, is larger than the objective itself"
            )
        unknown = f"how far the objective is above the best possible one was not measured: {self.gap_note}"
        falls = "the objective still falls along a direction without curvature" if self.gap == math.inf else None
        return unknown if self.gap_note else falls

    def proved_bound(self, objective: float) -> float | None:
        """How far the objective is above the optimum at the most, as proved; None where that says nothing.

        A bound says nothing where it reaches below what is known without it: no loss is negative.
        """
        if self.gap_bound is None or not (math.isfinite(self.gap_bound) and math.isfinite(objective)):
            return None
        bound = self.gap_bound + ROUNDING * abs(objective)
        return bound if self.floor is None or bound < objective - self.floor else None

    def room(self, objective: float) -> float:
        """The most that an estimate of the gap can be and be taken at its word."""
        return abs(objective) if self.floor is None else max(objective - self.floor, 0.0)

    def explain(self, reason: str) -> str:
        """The reason why a run ended, with the evidence that its terms cannot be met, where there is any."""
        return reason if self.contradiction is None else f"{reason}; {self.contradiction}"

    def verdict(self) -> str:
        """One sentence: what holds, or which residual does not, and over whom where sites were left out."""
        return self._verdict() + (f"; over the other sites, without {', '.join(self.without)}" if self.without else "")

    def _verdict(self) -> str:
        if self.silent:
            sites = ", ".join(self.silent[:3]) + (" …" if len(self.silent) > 3 else "")
            return (
                f"not measured at {len(self.silent)} of {self.clients} sites ({sites}): under privacy a site sends no "
                "exact figure"
            )
        if not self.rows and not self.counts:
            return f"stationarity {self.stationarity:.2g} (‖∇f + ∂h‖_∞ at the returned w)"
        residuals = (
            ("stationarity", self.stationarity, self.eps1),
            ("feasibility", self.feasibility, self.eps2),
            ("complementarity", self.complementarity, self.eps2),
            ("distance", self.distance, self.eps2),
        )
        figures = ", ".join(f"{name} {value:.2g}" for name, value, _ in residuals)
        if self.counts:
            figures += "; rows of the sites' own: " + ", ".join(
                f"{row.constraint} is kept at {row.kept} of {row.sites} sites" for row in self.counts
            )
        if broken := [f"{name} {value:.2g} > {short(eps)}" for name, value, eps in residuals if not value <= eps]:
            return f"NOT certified: {', '.join(broken)} ({figures})"
        return f"certified ({short(self.eps1)}, {short(self.eps2)}): {figures}"

    def __str__(self) -> str:
        rows = table_of(self.rows, self.eps2) if self.rows else []
        return "\n".join(["certificate: " + self.verdict(), *rows, *self.exceptions()])

    def exceptions(self) -> list[str]:
        """Return a sentence on each constraint that does not apply at some sites."""
        sites: dict[str, list[str]] = {}
        for site, constraint in self.left_out:
            sites.setdefault(constraint, []).append(site)
        return [
            f"{constraint}: no cap at {', '.join(names)}, which was left out there or has no such rows"
            for constraint, names in sites.items()
        ]

    def _repr_html_(self) -> str:
        return html_of(str(self))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(kept: dict[str, Any]) -> "Certificate":
        content: dict[str, Any] = {**kept, "rows": tuple(Row(**row) for row in kept["rows"])}
        content["left_out"] = tuple((site, label) for site, label in kept.get("left_out", ()))
        content["silent"], content["without"] = tuple(kept.get("silent", ())), tuple(kept.get("without", ()))
        content["counts"] = tuple(RowCount(**row) for row in kept.get("counts", ()))
        content["contradiction"] = Contradiction.from_json(kept.get("contradiction"))
        content["private"] = PrivateCertificate.from_json(kept["private"]) if kept.get("private") else None
        return Certificate(**content)


def floor_of(terms: Terms) -> float | None:
    """What f + h is never below, whatever the data; None where nothing is known."""
    if terms.loss is None or not terms.loss.nonnegative:
        return None
    return 0.0 if never_negative(terms.penalty) and never_negative(terms.regularizer) else None


def never_negative(part: Penalty | Regularizer | None) -> bool:
    """Whether a penalty or a regulariser is one of those here, which are sums of sizes, or indicators."""
    return part is None or type(part).__module__ in (Penalty.__module__, Regularizer.__module__)


def _of(terms: Terms, scope: str) -> tuple[Constraint, ...]:
    return tuple(c for c in terms.constraints if c.scope == scope)


def _rows(terms: Terms, scope: str, w: Array, data: Data) -> Array:
    parts = [rows(terms, c, w, data) for c in _of(terms, scope)]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def _caps(terms: Terms, scope: str, data: Data) -> Array:
    parts = [c.caps(terms, data) for c in _of(terms, scope)]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SitePart:
    """What one site contributes to the measurement: f_i, its part of the Lagrangian's gradient, its rows and caps."""

    f: Array
    gradient: Array
    mu: Array
    local: Array
    local_caps: Array
    coupled: Array
    coupled_caps: Array
    push: Array  # Σ z∇c over the local rows for z = μ, and for z = the violations. (2, dim)
    steep: Array  # Σ (∇c)² over the local rows
    coupled_slopes: Array  # ∇c̃_i of each coupled row
    strong: Array  # σ: the least curvature that a ridge gives f_i
    hessian: PyTree = ()  # of the Lagrangian's part; () where there are too many columns or sites
    pull: PyTree = ()  # Σ (μ∇c)(μ∇c)ᵀ over the local rows


def site_part(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> SitePart:
    """The site's part of the measurement at w: of f_i/n + μ_iᵀc_i + νᵀc̃_i/n."""

    def lagrangian(u: Array) -> Array:
        coupled = jnp.sum(nu * _rows(terms, "coupled", u, data)) / terms.clients
        return terms.value(u, data) / terms.clients + jnp.sum(mu * _rows(terms, "local", u, data)) + coupled

    gradient = jax.grad(lagrangian)
    local_rows = _rows(terms, "local", w, data)
    equal = [k.equality for k in _of(terms, "local") for _ in k.labels(terms, data)]
    slopes = jax.jacrev(lambda u: _rows(terms, "local", u, data))(w)
    second: dict[str, Array] = {}
    if measures_gap(terms):
        # only directions matter here; multipliers of terms that contradict each other grow without end
        local = (mu / jnp.maximum(1.0, jnp.max(jnp.abs(mu), initial=0.0) / HEAVY))[:, None] * slopes
        second = {
            "hessian": hessian_of_losses(terms, w, mu, nu, data) if sums_losses(terms) else hessian(gradient, w),
            "pull": local.T @ local,
        }
    return SitePart(
        f=terms.value(w, data),
        gradient=gradient(w),
        mu=mu,
        local=local_rows,
        local_caps=_caps(terms, "local", data),
        coupled=_rows(terms, "coupled", w, data),
        coupled_caps=_caps(terms, "coupled", data),
        push=jnp.stack([mu, jnp.where(np.array(equal, bool), local_rows, jnp.maximum(local_rows, 0.0))]) @ slopes,
        steep=jnp.sum(slopes**2, axis=0),
        coupled_slopes=jax.jacrev(lambda u: _rows(terms, "coupled", u, data))(w),
        strong=ridge_of(terms, data),
        **second,
    )


def measures_gap(terms: Terms) -> bool:
    """Whether the gap is measured: sites then send a matrix, and all sites' matrices are held at once."""
    return _is_smooth(terms) and terms.dim <= GAP_COLUMNS and terms.clients * terms.dim**2 <= GAP_NUMBERS


def _is_smooth(terms: Terms) -> bool:
    return terms.loss is None or terms.loss.smooth


def ridge_of(terms: Terms, data: Data) -> Array:
    """The strong convexity that a ridge gives f_i; 0 where there is none, or the loss is not known to be convex."""
    convex = terms.loss is not None and terms.loss.convex
    penalty = terms.penalty_of(data)
    if not convex or penalty is None or type(terms.penalty) is not Ridge:
        return jnp.zeros(())
    return jnp.asarray(penalty.curvature)


def site_parts(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> SitePart:
    """Every site's part of the measurement, on a leading axis; large data are measured one site after the other."""
    if is_moderate(data) and not is_small(data) and sums_losses(terms):
        with threads_for(terms.dim):
            each = lambda w, mu, nu, data: jax.lax.map(lambda d: site_part(terms, w, d[0], nu, d[1]), (mu, data))  # noqa: E731
            return play(each, w, mu, nu, data)
    return _all_parts(terms, w, mu, nu, data)


@jit_if_large("terms")
def _all_parts(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> SitePart:
    return jax.vmap(lambda mine, d: site_part(terms, w, mine, nu, d))(mu, data)


@jit_if_large("terms")
def _joined(terms: Terms, w: Array, parts: SitePart, own: Data, mu: Array, nu: Array):
    """f + h, the stationarity and the rows of each scope; `mu` are the multipliers of global scope."""
    h = terms.regularizer
    gradient = jax.grad(lambda u: jnp.sum(mu * _rows(terms, "global", u, own)))(w) + jnp.sum(parts.gradient, axis=0)
    c = {
        "local": parts.local,
        "global": _rows(terms, "global", w, own),
        "coupled": jnp.mean(parts.coupled, axis=0),
    }
    caps = {
        "local": parts.local_caps,
        "global": _caps(terms, "global", own),
        "coupled": jnp.mean(parts.coupled_caps, axis=0),
    }
    own_slopes = jax.jacrev(lambda u: _rows(terms, "global", u, own))(w)
    coupled_slopes = jnp.mean(parts.coupled_slopes, axis=0)
    shared = jnp.concatenate([own_slopes, coupled_slopes])
    slopes = RowSlopes(jnp.sum(parts.push, axis=0), jnp.sum(parts.steep, axis=0), shared)
    second: tuple[Array, ...] = ()
    if measures_gap(terms):
        weighed, coupled = mu[:, None] * own_slopes, nu[:, None] * coupled_slopes
        bend = jax.hessian(lambda u: jnp.sum(mu * _rows(terms, "global", u, own)))(w)
        pull = jnp.sum(parts.pull, axis=0) + weighed.T @ weighed + coupled.T @ coupled
        second = (jnp.sum(parts.hessian, axis=0) + bend, pull)
    first = gradient, jnp.mean(parts.strong)
    return jnp.mean(parts.f) + h.value(w), h.distance(w, gradient), c, caps, slopes, first, second


def join_parts(
    terms: Terms,
    names: list[str],
    w: Array,
    parts: SitePart,
    one: Data,
    own: Data | None,
    multipliers: Multipliers,
    eps1: float,
    eps2: float,
    unseen: UnseenRows | None = None,
) -> tuple[float, Certificate]:
    """f(w) + h(w) and the certificate from what the sites measured, each at its own data.

    `unseen` are sums over rows that are not among the parts.
    """
    own = own if own is not None else Data({"weight": np.ones(1)})
    count = sum(len(c.labels(terms, own)) for c in _of(terms, "global"))
    mu = {
        "local": parts.mu,
        "global": device_array(multipliers.get("global", np.zeros(count))),
        "coupled": device_array(multipliers.get("coupled", np.zeros(parts.coupled.shape[1]))),
    }
    figures = _joined(terms, w, parts, own, mu["global"], mu["coupled"])
    objective, stationarity, c, caps, slopes, first, second = jax.tree.map(np.asarray, figures)
    weights = {k: np.asarray(v) for k, v in mu.items()}
    certificate = certified(terms, names, one, own, float(stationarity), c, caps, weights, eps1, eps2)
    certificate = replace(certificate, floor=floor_of(terms))
    unseen = unseen or UnseenRows()
    if certificate.feasibility > eps2 or unseen.broken:
        curvature = np.abs(np.diag(second[0])) if second else 0.0
        convex = rows_convex(terms) and unseen.convex
        evidence = contradiction_of(
            certificate.rows, slopes, curvature, terms.regularizer, np.asarray(w), convex, unseen
        )
        certificate = replace(certificate, contradiction=evidence)
    slack, convex = price_of(certificate.rows, terms, unseen.slack)
    convex = convex and unseen.convex
    (gradient, strong), h, at = first, terms.regularizer, np.asarray(w)
    if second:
        bend, pull = second
        gap = measure_gap(Curves(gradient, bend, pull, slack, float(strong), convex), h, at)
        certificate = replace(certificate, gap=gap.estimate, gap_bound=gap.bound, kind=gap.kind, gap_note=gap.note)
    elif convex and certificate.feasibility <= eps2:
        certificate = replace(certificate, gap_bound=ridge_bound(gradient, h, at, slack, float(strong)))
    if not second and certificate.gap_bound is None and _is_smooth(terms):
        note = f"{terms.dim} columns at {terms.clients} sites are too many for matrices"
        certificate = replace(certificate, gap_note=note)
    return float(objective), certificate


def measure(
    problem: Problem, w: Array, multipliers: Multipliers | None = None, eps1: float = 1e-3, eps2: float = 1e-3
) -> tuple[float, Certificate]:
    """f(w) + h(w) and the certificate of (w, μ); multipliers left out are zero."""
    terms, given = problem.terms, multipliers or {}
    one = problem.first_client
    counts = {scope: sum(len(c.labels(terms, one)) for c in _of(terms, scope)) for scope in ("local", "coupled")}
    mu = device_array(given.get("local", np.zeros((terms.clients, counts["local"]))))
    nu, w = device_array(given.get("coupled", np.zeros(counts["coupled"]))), device_array(w)
    parts = site_parts(terms, w, mu, nu, problem.data)
    objective, certificate = join_parts(terms, problem.names, w, parts, one, problem.server, given, eps1, eps2)
    if needs_products(terms):
        ask = ask_here(terms, w, mu, nu, problem.data, problem.by_size)
        certificate = widened(certificate, terms, problem.server, w, parts, given, ask)
    return objective, certificate


@partial(jax.jit, static_argnames=("terms",))
def _values(terms: Terms, w: Array, data: Data, own: Data) -> tuple[Array, Array, Array]:
    """f + h, ∇f, and by how much the worst row of all is broken."""

    def of_site(d: Data) -> tuple[Array, Array, Array, Array]:
        f, g = terms.value_and_gradient(w, d)
        return f, g, _broken(terms, "local", w, d), _rows(terms, "coupled", w, d)

    f, g, local, coupled = jax.vmap(of_site)(data)
    equal = [k.equality for k in _of(terms, "coupled") for _ in k.labels(terms, own)]
    means = jnp.mean(coupled, axis=0)
    broken = jnp.where(np.array(equal, bool), jnp.abs(means), means)
    worst = jnp.concatenate([local.ravel(), _broken(terms, "global", w, own), broken])
    return jnp.mean(f) + terms.regularizer.value(w), jnp.mean(g, axis=0), jnp.max(worst, initial=0.0)


def _broken(terms: Terms, scope: str, w: Array, data: Data) -> Array:
    """By how much each row of a scope is broken; negative where an inequality holds with room."""
    parts = [jnp.abs(c) if k.equality else c for k in _of(terms, scope) for c in [rows(terms, k, w, data)]]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def figures_at(problem: Problem, w: np.ndarray) -> dict[str, float]:
    """Return what is measured of a model after every round: objective, dist_∞(0, ∇f + ∂h), and the worst violation."""
    own = Data({"weight": np.ones(1)}) if problem.server is None else problem.server
    f, g, worst = _values(problem.terms, device_array(w), problem.data, own)
    away = problem.terms.regularizer.distance(device_array(w), g)
    figures = {"measured_objective": float(f), "measured_gradient": float(away)}
    return figures | ({"measured_violation": float(worst)} if problem.terms.constraints else {})


def needs_products(terms: Terms) -> bool:
    """Whether the gap is estimated from products with vectors, because there are too many columns for matrices."""
    return _is_smooth(terms) and not measures_gap(terms)


def widened(
    c: Certificate, terms: Terms, own: Data | None, w: Array, parts: SitePart, multipliers: Multipliers, ask: Ask,
    unseen_slack: float = 0.0, most: int = MOST,
) -> Certificate:  # fmt: skip
    """The certificate with an estimate of the gap from products with vectors, which the sites are asked for.

    `parts` are the sites' own, or one row with sums and means over all; `unseen_slack` is Σμ|c| of rows that are not
    among the certificate's; `most` is how often the sites are asked, one time after the other.
    """
    own_mu, nu = (
        device_array(multipliers.get(scope, np.zeros(terms.rows[k]))) for k, scope in ((1, "global"), (2, "coupled"))
    )
    gradient, slopes = np.sum(np.asarray(parts.gradient), axis=0), np.mean(np.asarray(parts.coupled_slopes), axis=0)
    slack, convex = price_of(c.rows, terms, unseen_slack)
    at = at_point(terms, own, device_array(w), nu, own_mu, gradient, slopes, ask, most)
    gap = measure_wide(at, terms.regularizer, slack, c.gap_bound, convex)
    return replace(c, gap=gap.estimate, gap_bound=gap.bound, kind=gap.kind, gap_note=gap.note)


def certified(
    terms: Terms, names: list[str], one: Data, own: Data, stationarity: float, c: dict[str, Any], caps: dict[str, Any],
    mu: dict[str, Any], eps1: float, eps2: float,
) -> Certificate:  # fmt: skip
    """The certificate from what was measured; of `one` client's data and the server's `own`, the shapes are used."""
    measurements: list[Row] = []
    left_out: list[tuple[str, str]] = []
    for scope in SCOPES:
        data = own if scope == "global" else one
        labels = [(label, k.kind) for k in _of(terms, scope) for label in k.labels(terms, data)]
        sites = names if scope == "local" else ["server" if scope == "global" else "all sites"]
        table = zip(sites, np.atleast_2d(c[scope]), np.atleast_2d(caps[scope]), np.atleast_2d(mu[scope]), strict=True)
        for site, values, limits, weights in table if labels else ():
            for (label, kind), value, cap, weight in zip(labels, values, limits, weights, strict=True):
                if cap == NO_CAP and value + cap == 0:
                    left_out.append((str(site), label))
                    continue
                measurements.append(Row(site, label, kind, float(value + cap), float(cap), float(weight)))
    inequalities = [row for row in measurements if row.kind == "<="]
    return Certificate(
        stationarity=stationarity,
        feasibility=float(np.max([row.violation for row in measurements], initial=0.0)),
        complementarity=float(np.max([row.complementarity for row in inequalities], initial=0.0)),
        distance=float(np.max([row.distance for row in measurements], initial=0.0)),
        eps1=eps1,
        eps2=eps2,
        rows=tuple(measurements),
        left_out=tuple(left_out),
    )
