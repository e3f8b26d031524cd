"""How much each client's f_i weighs in the objective Σ ω_i f_i, with Σ ω_i = 1.

Without weights ω_i = 1/n. With others, the factor n·ω_i lies beside a client's data, as a constraint's own arrays do,
and multiplies f_i wherever `Terms` evaluates it: the objective is then still a mean over clients, (1/n) Σ (n·ω_i) f_i,
for every algorithm and for the certificate. Rows of constraints are no part of f_i, and are not multiplied.

Weighed by rows, ω_i = d_i / Σ d_j, the objective is the mean over all examples: what a fit on the pooled rows makes
small. A client works its own factor out from its own number of examples and from their total, which is all that
anybody has to tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean

FACTOR = "weights.factor"  # the array that lies beside a client's data
ROUNDING = 1e-9  # by which a share of the rows may exceed 1


@dataclass(frozen=True)
class SiteWeights:
    """That clients weigh differently, and how: "rows", by their number of examples; "given", as the problem states.

    `total` is the number of examples of all clients, which "rows" needs. It takes no part in comparing two statements,
    so that problems which differ only in it share a compiled program.
    """

    kind: str
    total: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in ("rows", "given"):
            raise FoedusError(f"clients weigh by 'rows' or as 'given'. Got {self.kind!r} instead.")
        if (self.kind == "rows") != (self.total is not None):
            raise FoedusError("weights by rows, and no others, need the number of all rows.")
        if self.total is not None and not (isinstance(self.total, Real) and 0 < self.total < np.inf):
            raise FoedusError(f"the number of all rows must be a number > 0. Got {self.total!r} instead.")

    def factor(self, clients: int, count: float) -> float:
        """Return n·ω_i of a client with so many examples; raise where it has more than there are in all."""
        assert self.total is not None
        if count > self.total * (1 + ROUNDING):
            raise FoedusError(f"one client has more rows than the {self.total:g} that all of them are said to have.")
        return clients * float(count) / float(self.total)

    @property
    def words(self) -> str:
        """What reports say of the weights."""
        if self.kind == "rows":
            return f"averaged over all {self.total:,.0f} rows, so that a site weighs by its number of rows"
        return "averaged over the sites by the weights that the problem gives"


def in_words(record: Mapping[str, Any] | None) -> str | None:
    """Return what reports say of the weights in the settings of a run; None where all sites weigh the same."""
    return None if record is None else SiteWeights(record["kind"], record["total"]).words


Weights: TypeAlias = str | Mapping[str, float] | SiteWeights
"""What `Problem(weights=...)` takes: "sites", "rows", a number for each client by name, or rows of a known total."""


def site_weights(
    weights: Weights, names: Sequence[str], counts: np.ndarray
) -> tuple[SiteWeights | None, np.ndarray | None]:
    """Return the statement of the weights, and the factors n·ω_i of the clients; None for equal weights.

    Args:
        weights: as a user states them.
        names: of the clients.
        counts: the examples that count in each client's f_i.
    """
    if isinstance(weights, str) and weights == "sites":
        return None, None
    if isinstance(weights, str) and weights == "rows":
        weights = SiteWeights("rows", float(np.sum(counts)))
    if isinstance(weights, SiteWeights):
        return weights, np.array([weights.factor(len(names), count) for count in counts])
    if not isinstance(weights, Mapping):
        raise FoedusError(
            f"weights must be 'sites', 'rows' or a number for each client by name. Got {weights!r} instead."
            + (did_you_mean(weights, ("sites", "rows")) if isinstance(weights, str) else "")
        )
    for name in weights:
        if name not in names:
            raise FoedusError(
                f"weights are given for {name!r}, but there is no such client.{did_you_mean(name, names)}"
            )
    for name in names:
        if name not in weights:
            raise FoedusError(f"weights give nothing for client {name!r}.{did_you_mean(name, weights)}")
        value = weights[name]
        if isinstance(value, bool) or not (isinstance(value, Real) and 0 < float(value) < np.inf):
            raise FoedusError(f"client {name!r}: its weight must be a number > 0. Got {value!r} instead.")
    numbers = np.array([float(weights[name]) for name in names])
    return SiteWeights("given"), len(names) * numbers / numbers.sum()
