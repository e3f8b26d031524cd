"""ENS: the exact minimiser of a sum of elastic nets, coordinate by coordinate (EPM Lemma III.1, corrected).

For one coordinate the task is min_w Σ_i λ|z_i − w| + (η/2)(z_i − w)². With v_1 ≤ … ≤ v_m the sorted z_i, the derivative
where exactly k of them lie below w is ηm(w − mean) + λ(2k − m), which vanishes at
    q_k = mean + (λ/η)(m − 2k)/m;
the paper's (13) has the other sign. The v_{k+1} rise with k and the q_k fall, so the minimiser, whether inside a piece
(at q_k) or on a kink (at v_k), is where the two sequences cross:
    w = max_{k=0..m} min(v_{k+1}, q_k),   v_{m+1} = ∞.
Inside piece k, v_k ≤ q_k ≤ v_{k+1}: the k-th term is q_k, earlier ones are at most v_k and later ones below q_k. On a
kink, q_j ≤ v_j ≤ q_{j−1}: the (j−1)-th term is v_j, earlier ones are at most v_{j−1} and later ones at most q_j.

Compiled sorts are slow on a processor, and not all of the v_k are needed. With c(w) the number of z_i below w, c(q_k) −
k falls with k, so halving finds the first k with c(q_k) ≤ k in log2(m) counts. From there on v_{k+1} ≥ q_k, before it
v_{j+1} < q_j, hence w = max(q_k, v_k). Where k − c(q_k) = n > 0, v_k is the n-th smallest z_i from q_k on, and below
q_{k−1}: halving between the two, over the numbers a computer has, ends when n is 1 or no number lies between.
"""

from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree

LEAST_SEARCHED = 4096  # numbers; fewer are sorted as fast, and compiled sooner
BLOCK = 2**15  # numbers that are searched at a time
LARGEST_RATIO = 1e300  # of λ/η: finite, so that its product with 0 is 0

Numbers: TypeAlias = PyTree
"""An array of NumPy or of JAX, whose functions have the same names."""


@overload
def ens(z: Array, lam: float, eta: float) -> Array: ...
@overload
def ens(z: np.ndarray, lam: float, eta: float) -> np.ndarray: ...
def ens(z: Numbers, lam: float, eta: float) -> Numbers:
    """Averages the clients' models robustly: the w that minimises Σ_i λ‖z_i − w‖₁ + (η/2)‖z_i − w‖², exactly.

    It lies between the mean and the coordinate-wise median, and takes O(dim · m log m) operations.

    Args:
        z: one row per client, (clients, dim).
        lam: λ ≥ 0, the weight of the 1-norm. With λ = 0 the answer is the mean; as λ/η grows it tends to the median.
        eta: η > 0, the weight of the squares.

    Returns:
        w, (dim,): a NumPy array for a NumPy `z`, a JAX array inside compiled functions and for JAX arrays.

    Example:
        >>> import foedus as fd, numpy as np
        >>> fd.ens(np.array([[0.0], [1.0], [100.0]]), lam=50.0, eta=1.0).tolist()
        [17.0]
    """
    is_traced = any(isinstance(a, Tracer) for a in (z, lam, eta))
    if not is_traced:
        if np.ndim(z) != 2 or np.shape(z)[0] == 0:
            raise FoedusError(
                f"ens needs z of shape (clients, dim) with at least one client. Got {np.shape(z)} instead."
            )
        if not np.all(np.isfinite(z)):
            raise FoedusError("ens needs finite numbers in z.")
        if not lam >= 0 or not eta > 0 or not np.isfinite(lam + eta):
            raise FoedusError(f"ens needs lam >= 0 and eta > 0, both finite. Got lam={lam!r}, eta={eta!r} instead.")
    # NumPy's sort is several times faster than the compiled one on a processor, so it serves concrete arrays
    if is_traced:
        by_search = z.size >= LEAST_SEARCHED and z.dtype == jnp.float64  # whose order is that of whole numbers
        return _in_blocks(z, lam, eta) if by_search else _cross(jnp, z, lam, eta)
    w = _cross(np, np.asarray(z, dtype=float), float(lam), float(eta))
    return jnp.asarray(w) if isinstance(z, jax.Array) else w


def _cross(xp: ModuleType, z: Numbers, lam: float, eta: float) -> Numbers:
    """The crossing max_k min(v_{k+1}, q_k), in NumPy or in JAX."""
    m = z.shape[0]
    q = _stationary(xp, z, lam, eta)
    v = xp.sort(z, axis=0)
    inner = xp.max(xp.minimum(v, q(xp.arange(m)[:, None])), axis=0)
    return xp.maximum(inner, q(m))  # v_{m+1} = ∞ leaves q_m


def _stationary(xp: ModuleType, z: Numbers, lam: float, eta: float) -> Callable[[Numbers], Numbers]:
    """The q_k as a function of k; m − 2k is a whole number, so that λ/η enlarges no rounding error."""
    m, mean = z.shape[0], xp.mean(z, axis=0)
    with np.errstate(over="ignore"):
        ratio = xp.minimum(xp.asarray(lam / eta), LARGEST_RATIO)
    return lambda k: mean + ratio * ((m - 2.0 * k) / m)


def _in_blocks(z: Array, lam: float, eta: float) -> Array:
    """The result of `_search` for a few coordinates at a time, which fit into the processor's cache."""
    m, dim = z.shape
    width = max(1, BLOCK // m)
    if dim <= 2 * width:
        return _search(z, lam, eta)
    blocks = -(-dim // width)
    whole_blocks = jnp.pad(z, ((0, 0), (0, blocks * width - dim)))
    starts = width * jnp.arange(blocks)
    minimisers = jax.lax.map(
        lambda j: _search(jax.lax.dynamic_slice_in_dim(whole_blocks, j, width, axis=1), lam, eta), starts
    )
    return minimisers.ravel()[:dim]


def _search(z: Array, lam: float, eta: float) -> Array:
    """The minimiser max(q_k, v_k) for the first k with c(q_k) ≤ k, without sorting."""
    m = z.shape[0]
    z = jnp.asarray(z, float)
    q = _stationary(jnp, z, lam, eta)

    def below(w: Array) -> Array:
        return jnp.sum(z < w, axis=0, dtype=jnp.int32)

    def halve(_: int, at: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = at
        k = (low + high) // 2
        enough = below(q(k)) <= k
        return jnp.where(enough, low, k + 1), jnp.where(enough, k, high)

    none = jnp.zeros(z.shape[1], jnp.int32)
    k = jax.lax.fori_loop(0, m.bit_length(), halve, (none, none + m))[1]
    first = q(k)
    rank = k - below(first)

    def open_yet(at: tuple[Array, Array, Array]) -> Array:
        low, high, n = at
        return (n > 1) & (low + 1 < high)

    def narrow(at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, n = at
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        count = below(_number(middle))
        goes, beyond = open_yet(at), count < k
        return (
            jnp.where(goes & beyond, middle, low),
            jnp.where(goes & ~beyond, middle, high),
            jnp.where(goes & beyond, k - count, n),
        )

    start = _place(first), _place(q(k - 1)), rank
    low, _, _ = jax.lax.while_loop(lambda at: jnp.any(open_yet(at)), narrow, start)
    v = jnp.min(jnp.where(z >= _number(low), z, jnp.inf), axis=0)
    return jnp.where(rank > 0, jnp.maximum(first, v), first)


def _place(a: Array) -> Array:
    """The place of floating-point numbers among all of them, as whole numbers of the same order."""
    bits = jax.lax.bitcast_convert_type(a, jnp.int64)
    return bits ^ ((bits >> 63) & jnp.int64(2**63 - 1))


def _number(place: Array) -> Array:
    """The number at a place."""
    return jax.lax.bitcast_convert_type(place ^ ((place >> 63) & jnp.int64(2**63 - 1)), jnp.float64)
