"""The checks of a site on what a server tells it, made before the site acts on it; none trusts the coordinator."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax.numpy as jnp
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation.gate import unfit
from foedus.federation.policy import Refusal
from foedus.privacy import sampling
from foedus.privacy.central import NoiseShares
from foedus.privacy.clipping import check_arrays
from foedus.privacy.releasing import check_weights, sound_noise
from foedus.problem.constraints import Capped, Linear, LossRows
from foedus.problem.pooled import Pooled
from foedus.problem.problem import Problem
from foedus.problem.terms import Constraint, Data, Mask, Terms, Where, subsets_of
from foedus.problem.weights import FACTOR
from foedus.protocol.algorithm import Algorithm, Fit, name_of

VARYING = ("ask", "round", "receipt", "signed")  # parts of a header that are no part of what is stated
OF_ONE_SITE = ("index", "uid", "extra", "client", "arrays")  # parts of a greeting that are for one site
MOST_ROUNDS = 10**6  # that a run may announce
LEAST_NUMBER, MOST_NUMBER = 1e-20, 1e12  # in size, of the numbers of a plan that are not 0
WHOLE = 2**64  # above the whole numbers of a plan, its seed among them
EXTRA = re.compile(r"(cap\d+|linear\d+|robust|weights)\.[A-Za-z_]+")  # the terms' own arrays; a site's have other names


def statement(header: Json) -> str:
    """Return all that a greeting states, as text: what a join must repeat, and what a person approves.

    It is the whole header but for what is known to vary, so a setting that is added later is a part of it.
    """
    return json.dumps({name: value for name, value in header.items() if name not in VARYING}, sort_keys=True)


ANEW = ("index", "uid", "arrays", "names", "parties")  # what a run that goes on without a site states anew


def without_count(header: Json) -> str:
    """Return what a greeting states but for how many sites there are, and where the rounds begin.

    A run without masks may go on without a wrong site, from its last model: all else stays as it was agreed.
    """
    terms = header.get("terms") or {}
    terms = terms | {"fields": (terms.get("fields") or {}) | {"clients": None}}
    return statement({k: v for k, v in header.items() if k not in ANEW} | {"terms": terms})


def check_extra(names: Iterable[str], own: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays of the server's that are no part of the terms, or would take the place of the site's own."""
    for name in names:
        if not EXTRA.fullmatch(name) or name in own:
            raise Refusal("policy", f"the experiment brings an array {name!r}, which is no part of its terms")


def check_numbers(stated: object) -> None:
    """Refuse a plan with a number outside the range of plans, for itself, whatever it is about."""
    for number in _numbers(stated):
        size = abs(number)
        is_fit = size == 0 or LEAST_NUMBER <= size <= MOST_NUMBER or size == math.inf
        if not (size < WHOLE if isinstance(number, int) else is_fit):
            raise Refusal(
                "policy",
                f"the plan holds the number {number:g}, and those of a plan are 0 or from {LEAST_NUMBER:g} to "
                f"{MOST_NUMBER:g} in size",
            )


def _numbers(stated: object) -> Iterator[int | float]:
    if isinstance(stated, dict):
        stated = list(stated.values())
    if isinstance(stated, list | tuple):
        for one in stated:
            yield from _numbers(one)
    elif isinstance(stated, int | float):
        yield stated


def check_terms(terms: object) -> Terms:
    """The terms; refuse what is no statement of a problem, and subsets that are not named by a label or a group."""
    if not isinstance(terms, Terms):
        raise Refusal("unknown", "the experiment names no terms")
    for mask in _masks(terms):
        if isinstance(mask, Where) and mask.key not in ("y", "group"):
            raise Refusal("policy", "a subset of rows must be named by its label or its group")
    return terms


def fitting(algorithm: Algorithm, terms: Terms) -> Fit:
    """Return the algorithm made ready for the terms; the coordinator's checks are made again here, without data."""
    try:
        fit = algorithm.fit(Problem.without_data(terms))
        algorithm = fit.algorithm
        if isinstance(fit.problem, Pooled):
            raise FoedusError(f"{name_of(algorithm)} works on all data in one place; data stay here")
        check_weights(algorithm, terms)
        if (noise := sound_noise(algorithm)) is not None:
            sampling.load()
            if not type(algorithm).__module__.startswith("foedus.algorithms."):
                raise FoedusError(f"{name_of(algorithm)} is no algorithm of foedus, so no noise of it has a proof")
            if not type(noise).__module__.startswith("foedus.privacy."):
                raise FoedusError(f"{type(noise).__name__} is no noise of foedus, so nothing is proved of it")
    except FoedusError as error:
        raise Refusal("policy", str(error).removesuffix(".")) from None
    return fit


def checked_data(name: str, terms: Terms, algorithm: Algorithm, arrays: dict[str, np.ndarray]) -> Data:
    """Return the data of a problem with this client alone, which checks them as a simulation would.

    No number of the server is looked at, its start neither, so that it cannot ask by refusals. Under privacy only what
    follows from the file as a whole is checked, and not how many rows the terms' subsets have here, which would be an
    exact figure that no ledger knows.
    """
    if (noise := sound_noise(algorithm)) is not None:
        problem = Problem({name: arrays}, loss=terms.loss, objective=terms.objective)
        if terms.loss is not None and problem.terms.dim != terms.dim:
            raise FoedusError(f"X has {problem.terms.dim} columns, and the terms are about {terms.dim}.")
        check_arrays(problem)
        if isinstance(noise, NoiseShares):
            noise.check_counts(problem)
        return Data({k: v[0] for k, v in problem.data.items()})
    problem = Problem(
        {name: arrays},
        loss=terms.loss,
        objective=terms.objective,
        where=terms.where,
        penalty=terms.penalty,
        regularizer=terms.regularizer,
        constraints=[
            c.at(name) if isinstance(c, Capped) else c
            for c in terms.constraints
            if c.scope != "global" and not isinstance(c, Linear)
        ],
    )
    if terms.linear:
        problem = problem.over(np.zeros(terms.dim))
    return Data({k: v[0] for k, v in problem.data.items()})


def factor_of(terms: Terms, data: Data, extra: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the factor by which this site's f_i weighs, where sites do not weigh the same.

    By rows, the site works it out from its own rows. A given one must be that of a weight, from 0 to n.
    """
    if terms.weights is None:
        return {}
    if terms.weights.kind == "rows":
        try:
            return {FACTOR: np.asarray(terms.weights.factor(terms.clients, float(jnp.sum(terms.counting(data)))))}
        except FoedusError as error:
            raise Refusal("policy", str(error).removesuffix(".")) from None
    given = np.asarray(extra.get(FACTOR, np.nan))
    if given.shape != () or not 0 <= float(given) <= terms.clients:
        raise Refusal("policy", "the weight of this site must be a part of the sum of all weights")
    return {}


def check_subsets(terms: Terms, data: Data, least: int, note: Callable[[str], None]) -> None:
    """Refuse a subset with fewer rows than `least`, or with so few rows left out.

    In the second case the difference between the sum over all rows and that over the subset would be about those few.
    """
    weight = np.asarray(data["weight"])
    left_out = [mask for c in terms.constraints if _is_left_out(c, data) for mask in c.masks()] if least <= 1 else []
    for mask in _masks(terms):
        if mask in left_out:
            continue
        subset = np.asarray(mask(data))
        if subset.shape != weight.shape or not np.all((subset == 0) | (subset == 1)):
            raise unfit("a subset of the terms is not a choice of rows", note)
        inside = float(np.sum(weight * subset))
        outside = float(np.sum(weight)) - inside
        if inside < least or 0 < outside < least:
            raise unfit(f"a subset of the terms has {inside:g} rows here, the others {outside:g}", note)


def _is_left_out(constraint: Constraint, data: Data) -> bool:
    """Whether a constraint may be left out at sites without rows in its subgroups, of which this site is one."""
    return isinstance(constraint, LossRows) and bool(constraint.skip) and not constraint.applies(data)


def _masks(terms: Terms) -> tuple[Mask, ...]:
    """Return the subsets of a site's rows that occur in the terms."""
    own = (*(() if terms.where is None else (terms.where,)), *subsets_of(terms.objective))
    return (*own, *(mask for c in terms.constraints if c.scope != "global" for mask in c.masks()))
