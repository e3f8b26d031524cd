"""The adversary that the multipliers of the interior-point method propose, read off one site's variables."""

import numpy as np

from foedus.problem import losses
from foedus.robust.form import EpigraphForm
from foedus.robust.interior_polyhedron import PolyhedronPosition
from foedus.robust.interior_rows import Multipliers
from foedus.robust.interior_site import SitePosition
from foedus.robust.proposal import Proposal


def propose(
    form: EpigraphForm, dim: int, place: SitePosition | PolyhedronPosition, shared: Multipliers | None
) -> Proposal:
    """The proposal of one site, whose arrays are NumPy's.

    Args:
        form: the program that the site solves.
        dim: the number of columns of X.
        place: where the site ended.
        shared: the multipliers of the rows in λ where λ is the server's, and then counts with weight 1.
    """
    weight = float(place.m)
    if isinstance(place, PolyhedronPosition):
        z, metric = place.iterate.z, form.ball.metric
        lane, side = (np.asarray(pair[0]) - np.asarray(pair[1]) for pair in (z.lane, z.side))
        parts = {"l1": [lane], "l2": [-np.asarray(z.cone)[1:], lane], "linf": [side, lane]}[metric]
        return Proposal(weight, np.asarray(z.piece) / weight, None, np.zeros((1, 0)), np.concatenate(parts) / weight)
    mass, slope = np.asarray(place.z) / weight, None
    if len(mass) and not isinstance(form.ball.loss, losses.Pinball):
        mass = mass[1:]  # the first piece is 0, or what the sample would lose anyway
    if isinstance(form.ball.loss, losses.Huber):
        slope = np.asarray(place.alpha)[0]
    rows, unit = (place.rows, weight) if shared is None else (shared, 1.0)
    return Proposal(weight, mass, slope, total_way(form, dim, np.asarray(rows.z), np.asarray(rows.q)) / unit, None)


def total_way(form: EpigraphForm, dim: int, z: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Mass times displacement, from the multipliers of the rows ‖r‖_* ≤ λ as `EpigraphForm.maps` orders them."""
    width, ball = dim - form.ball.intercept, form.ball
    if not form.robust:
        return np.zeros((1, width))
    first = int(not ball.classifies)
    if form.box:
        starts = [first + 4 * width * k for k in range(form.clips)]
        return np.stack([z[k : k + width] - z[k + width : k + 2 * width] for k in starts])
    if ball.metric == "l2":
        return -q[None, 1:]
    up, down = z[first : first + width], z[first + width : first + 2 * width]
    return (up - down)[None] / (ball.lipschitz if ball.metric == "linf" else 1.0)
