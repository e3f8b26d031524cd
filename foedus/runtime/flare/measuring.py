"""What the server makes of the measuring round: the objective and the certificate, from the sites' parts."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.certificate import Certificate, SitePart, join_parts
from foedus.runtime.flare import packing
from foedus.runtime.flare.order import Order
from foedus.terms import Data


def part(content: bytes, plan: Any, finite: bool) -> Any:
    """A site's part of the measurement; at a model that has not diverged its numbers are finite."""
    found = packing.from_bytes(content, plan)
    if finite:
        packing.check_finite(found, packing.unbounded(plan))
    return found


def joined(
    order: Order, party: Data, parts: Mapping[str, SitePart | None], w: Array, multipliers: dict[str, np.ndarray]
) -> tuple[float, Certificate, np.ndarray]:
    """The objective, the certificate and the sites' multipliers; none of them where a site does not measure (None)."""
    terms, algorithm = order.terms, order.algorithm
    eps1, eps2 = getattr(algorithm, "eps1", 1e-3), getattr(algorithm, "eps2", 1e-3)
    private = [name for site, name in zip(order.sites, order.names, strict=True) if parts[site] is None]
    if private:
        nothing = np.full((terms.clients, terms.rows[0]), np.nan)
        return math.nan, Certificate.unmeasured(private, terms.clients, eps1, eps2), nothing
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(parts[site] for site in order.sites))
    objective, certificate = join_parts(terms, list(order.names), w, stacked, party, order.own, multipliers, eps1, eps2)
    return objective, certificate, np.asarray(stacked.mu)
