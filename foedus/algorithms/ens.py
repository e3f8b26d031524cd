"""ENS: the exact minimiser of a sum of elastic nets, coordinate by coordinate (EPM Lemma III.1, corrected).

For one coordinate the task is min_w Σ_i λ|z_i − w| + (η/2)(z_i − w)². With v_1 ≤ … ≤ v_m the sorted z_i, the derivative
where exactly k of them lie below w is ηm(w − mean) + λ(2k − m), which vanishes at
    q_k = mean + (λ/η)(1 − 2k/m);
the paper's (13) has the other sign. The v_{k+1} rise with k and the q_k fall, so the minimiser, whether inside a piece
(at q_k) or on a kink (at v_k), is where the two sequences cross:
    w = max_{k=0..m} min(v_{k+1}, q_k),   v_{m+1} = ∞.
Inside piece k, v_k ≤ q_k ≤ v_{k+1}: the k-th term is q_k, earlier ones are at most v_k and later ones below q_k. On a
kink, q_j ≤ v_j ≤ q_{j−1}: the (j−1)-th term is v_j, earlier ones are at most v_{j−1} and later ones at most q_j.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from foedus.errors import FoedusError


def ens(z: Any, lam: float, eta: float) -> Any:
    """The vector w that minimises Σ_i λ‖z_i − w‖₁ + (η/2)‖z_i − w‖², exactly; O(dim · m log m).

    Args:
        z: one row per client, (clients, dim).
        lam: λ ≥ 0, the weight of the 1-norm. With λ = 0 the answer is the mean; as λ/η grows it tends to the median.
        eta: η > 0, the weight of the squares.

    Returns:
        w, (dim,): a NumPy array for a NumPy `z`, a JAX array inside compiled functions and for JAX arrays.
    """
    traced = any(isinstance(a, Tracer) for a in (z, lam, eta))
    if not traced:
        if np.ndim(z) != 2 or np.shape(z)[0] == 0:
            raise FoedusError(
                f"ens needs z of shape (clients, dim) with at least one client. Got {np.shape(z)} instead."
            )
        if not np.all(np.isfinite(z)):
            raise FoedusError("ens needs finite numbers in z.")
        if not lam >= 0 or not eta > 0 or not np.isfinite(lam + eta):
            raise FoedusError(f"ens needs lam >= 0 and eta > 0, both finite. Got lam={lam!r}, eta={eta!r} instead.")
    # NumPy's sort is several times faster than the compiled one on a processor, so it serves concrete arrays
    if traced:
        return _cross(jnp, z, lam, eta)
    w = _cross(np, np.asarray(z, dtype=float), float(lam), float(eta))
    return jnp.asarray(w) if isinstance(z, jax.Array) else w


def _cross(xp: Any, z: Any, lam: Any, eta: Any) -> Any:
    """max_k min(v_{k+1}, q_k), in NumPy or in JAX."""
    m = z.shape[0]
    mean = xp.mean(z, axis=0)
    with np.errstate(over="ignore"):
        ratio = xp.minimum(xp.asarray(lam / eta), 1e300)  # finite, so that its product with 0 below is 0
    tilt = ratio * (1.0 - 2.0 * xp.arange(m + 1)[:, None] / m)
    v = xp.sort(z, axis=0)
    inner = xp.max(xp.minimum(v, mean + tilt[:-1]), axis=0)
    return xp.maximum(inner, mean + tilt[-1])  # v_{m+1} = ∞ leaves q_m
