"""What several tests share."""

import jax.numpy as jnp
import numpy as np
from hock_schittkowski import Stated

import foedus as fd

SITES = ("ash", "birch", "cedar")


SHARES = {"ash": 0.5, "birch": 1.0, "cedar": 1.5}  # of f: their mean is 1


def dealt(count: int, dealing: str) -> list[np.ndarray]:
    """For each site the matrix that picks its rows; those of a site with fewer rows than others are filled with 0."""
    own = {
        "one site": [list(range(count)), [], []],
        "one row a site": [list(range(k, count, 3)) for k in range(3)],
        "everywhere": [list(range(count))] * 3,
    }[dealing]
    height = max(len(rows) for rows in own)
    return [np.vstack([np.eye(count)[rows], np.zeros((height - len(rows), count))]) for rows in own]


def posed(stated: Stated, dealing: str) -> tuple[fd.Problem, dict[str, list[np.ndarray]]]:
    """The problem over three sites, and which of its rows each site has."""
    start = jnp.asarray(stated.start, float)
    picks = {
        "inequalities": dealt(stated.inequalities(start).shape[0], dealing),
        "equations": dealt(stated.equations(start).shape[0], dealing),
    }
    sites = {
        name: {"share": np.array([SHARES[name]]), **{what: pick[k] for what, pick in picks.items() if pick[k].size}}
        for k, name in enumerate(SITES)
    }

    def objective(w, data):
        return data["share"][0] * stated.f(w)

    def inequalities(w, data):  # a row that only fills up is −1
        pick = data["inequalities"]
        return pick @ stated.inequalities(w) - (1.0 - jnp.sum(pick, axis=1))

    def equations(w, data):
        return data["equations"] @ stated.equations(w)

    rows = []
    if picks["inequalities"][0].size:
        rows.append(fd.constraints.Custom(inequalities))
    if picks["equations"][0].size:
        rows.append(fd.constraints.Custom(equations, kind="=="))
    return fd.Problem(sites, objective=objective, constraints=rows), picks
