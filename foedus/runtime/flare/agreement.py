"""What a site checks in a server's words before it acts on them; none of these checks trusts the coordinator."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np

from foedus.algorithm import Algorithm, Fit, name_of
from foedus.errors import FoedusError
from foedus.files import Json
from foedus.pooled import Pooled
from foedus.privacy import sampling
from foedus.privacy.releasing import sound_noise
from foedus.problem import Problem
from foedus.pytrees import PyTree
from foedus.runtime.flare.gate import unfit
from foedus.runtime.flare.policy import Refusal
from foedus.terms import Data, Mask, Terms, Where

LARGEST = 1e6  # of a number in a message under privacy: noise must not drown in the rounding of what it is added to
MOST_ROUNDS = 10**6
EXTRA = re.compile(r"(cap\d+|linear\d+|robust)\.[A-Za-z_]+")  # the terms' own arrays; a site's have other names


def statement(header: Json) -> str:
    """What a greeting and a join must say alike."""
    return json.dumps([header[name] for name in ("algorithm", "terms", "max_rounds")], sort_keys=True)


def whole(value: object, least: int, most: int, name: str) -> int:
    """A whole number within its range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refusal("unknown", f"{name} must be a whole number from {least} to {most}")
    return value


def check_moderate(tree: PyTree, private: bool) -> None:
    """Refuse numbers that no honest run sends; under privacy also large ones, whose rounding could show through."""
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        if array.dtype.kind != "f":
            continue
        if np.any(np.isnan(array)) or (private and not np.all(np.abs(array) <= LARGEST)):
            raise Refusal("unknown", f"a message holds NaN or a number beyond {LARGEST if private else math.inf:g}")


def check_extra(names: Iterable[str], own: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays of the server's that are no part of the terms, or would take the place of the site's own."""
    for name in names:
        if not EXTRA.fullmatch(name) or name in own:
            raise Refusal("policy", f"the experiment brings an array {name!r}, which is no part of its terms")


def check_terms(terms: object) -> Terms:
    """The terms; refuse what is no statement of a problem, and subsets that are not named by a label or a group."""
    if not isinstance(terms, Terms):
        raise Refusal("unknown", "the experiment names no terms")
    for mask in _masks(terms):
        if isinstance(mask, Where) and mask.key not in ("y", "group"):
            raise Refusal("policy", "a subset of rows must be named by its label or its group")
    return terms


def fitting(algorithm: Algorithm, terms: Terms) -> Fit:
    """The algorithm made ready for the terms; whatever the coordinator has checked is checked here, without data."""
    try:
        fit = algorithm.fit(Problem.without_data(terms))
        algorithm = fit.algorithm
        if isinstance(fit.problem, Pooled):
            raise FoedusError(f"{name_of(algorithm)} works on all data in one place; data stay here")
        if sound_noise(algorithm) is not None:
            sampling.load()
            if not type(algorithm).__module__.startswith("foedus.algorithms."):
                raise FoedusError(f"{name_of(algorithm)} is no algorithm of foedus, so no noise of it has a proof")
    except FoedusError as error:
        raise Refusal("policy", str(error).removesuffix(".")) from None
    return fit


def check_subsets(terms: Terms, data: Data, least: int, note: Callable[[str], None]) -> None:
    """Refuse terms over fewer rows than `least`, or over all but so few: a difference of sums would be about those."""
    weight = np.asarray(data["weight"])
    for mask in _masks(terms):
        subset = np.asarray(mask(data))
        if subset.shape != weight.shape or not np.all((subset == 0) | (subset == 1)):
            raise unfit("a subset of the terms is not a choice of rows", note)
        inside = float(np.sum(weight * subset))
        outside = float(np.sum(weight)) - inside
        if inside < least or 0 < outside < least:
            raise unfit(f"a subset of the terms has {inside:g} rows here, the others {outside:g}", note)


def _masks(terms: Terms) -> tuple[Mask, ...]:
    """The subsets of a site's rows that the terms speak of."""
    own = () if terms.where is None else (terms.where,)
    return (*own, *(mask for c in terms.constraints if c.scope != "global" for mask in c.masks()))
