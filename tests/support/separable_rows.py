"""Rows that a plane separates."""

import jax.numpy as jnp
import numpy as np

import foedus as fd


def sites() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    out = {}
    for name in ("ash", "birch", "cedar"):
        x = np.column_stack([rng.normal(size=(40, 3)), np.ones(40)])
        out[name] = (x, (x @ np.array([1.0, -1.0, 0.5, 0.0]) + rng.normal(size=40) > 0).astype(float))
    return out


def logistic(*terms, **more) -> fd.Problem:
    return fd.Problem(sites(), loss=fd.losses.logistic, constraints=list(terms), **more)


def slope(w, data):
    return jnp.dot(data["b"], w)
