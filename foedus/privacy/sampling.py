"""Releases through OpenDP's samplers, for use outside simulations.

Adding floating-point Laplace noise to a floating-point number leaks: which results are possible at all depends on the
number (Mironov 2012). So do Gaussian draws. OpenDP adds noise from an exact discrete sampler on a fixed grid, fed by
the operating system's source of randomness, and rounds the sum once. Draws with jax.random are for simulation: they can
be repeated from the seed, which is what a simulation wants and what a release must never allow.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError


def load() -> Any:
    """Import OpenDP; raise a sentence on how to install it where it is missing."""
    try:
        import opendp.prelude as dp
    except ImportError:
        raise FoedusError("sampler='opendp' needs OpenDP; install it with: pip install 'foedus[privacy]'.") from None
    dp.enable_features("contrib")
    return dp


def measurement(kind: str, scale: float) -> Any:
    """Return OpenDP's measurement for a vector of numbers; `.map(sensitivity)` is the privacy loss by its own proof.

    The loss is ε for Laplace noise and ρ of zero-concentrated differential privacy for Gaussian noise.
    """
    dp = load()
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), _distance(dp, kind)
    make = dp.m.make_laplace if kind == "laplace" else dp.m.make_gaussian
    return make(*space, scale=scale)  # on the grid of all floating-point numbers, so that no rounding adds to the loss


def units_measurement(share: float) -> Any:
    """Return OpenDP's discrete Gaussian mechanism on whole numbers, whose noise has this standard deviation."""
    dp = load()
    return dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float), scale=share)


def release_units_inside(units: Array, share: Array) -> Array:
    """Return whole numbers with discrete Gaussian noise, drawn by OpenDP, inside a compiled function."""
    load()

    def draw(values: np.ndarray, shares: np.ndarray) -> np.ndarray:
        values, shares = np.asarray(values), np.asarray(shares)
        flat, each = values.reshape(-1, values.shape[-1]), np.broadcast_to(shares, values.shape[:-1]).ravel()
        rows = [units_measurement(float(s))(v.astype(np.int64).tolist()) for v, s in zip(flat, each, strict=True)]
        return np.asarray(rows, dtype=float).reshape(values.shape)

    return _called_in_python(draw, units, share)


def _distance(dp: Any, kind: str) -> Any:
    return dp.l1_distance(T=float) if kind == "laplace" else dp.l2_distance(T=float)


def release(kind: str, value: np.ndarray, scale: float) -> np.ndarray:
    """Return the value with noise of this scale, drawn by OpenDP."""
    if not scale > 0:
        raise FoedusError(f"a release needs noise of a scale > 0. Got {scale!r} instead.")
    return np.asarray(measurement(kind, float(scale))(np.asarray(value, dtype=float).tolist()))


def release_inside(kind: str, value: Array, scale: Array) -> Array:
    """Do what `release` does inside a compiled function, which calls back to Python for each client and round.

    A scale that is not > 0 raises: a value never leaves without noise.
    """
    load()

    def draw(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
        values, scales = np.asarray(values), np.asarray(scales)
        flat, each = values.reshape(-1, values.shape[-1]), np.broadcast_to(scales, values.shape[:-1]).ravel()
        rows = [release(kind, v, float(s)) for v, s in zip(flat, each, strict=True)]
        return np.stack(rows).reshape(values.shape)

    return _called_in_python(draw, value, scale)


def _called_in_python(draw: Callable[[np.ndarray, np.ndarray], np.ndarray], value: Array, scale: Array) -> Array:
    """The result of a function of NumPy, in a compiled function; it has the shape of the value.

    Doubles cross over as their 32-bit words. JAX calls back on a thread of its own, in which float64 may be off, and
    would round them there.
    """

    def of_words(*words: np.ndarray) -> np.ndarray:
        values, scales = (np.ascontiguousarray(one).view(float)[..., 0] for one in words)
        return np.ascontiguousarray(draw(values, scales))[..., None].view(np.uint32)

    words = [jax.lax.bitcast_convert_type(one.astype(float), np.uint32) for one in (value, scale)]
    result = jax.ShapeDtypeStruct(words[0].shape, np.uint32)
    return jax.lax.bitcast_convert_type(
        jax.pure_callback(of_words, result, *words, vmap_method="expand_dims"), value.dtype
    )
