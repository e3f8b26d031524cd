"""Regularisers: prox and subdifferential distance against CVXPY, and against each other."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import properties
from hypothesis import given, settings
from hypothesis import strategies as st

import foedus as fd

DIM = 5
H = fd.regularizers
GROUPS = (0, 0, 2, 2, -1)

EVERY = [
    H.Zero(),
    H.L1(0.75),
    H.L2(0.5),
    H.ElasticNet(0.5, 2.0),
    H.Box(-1.0, 0.5),
    H.NonNegative(),
    H.Simplex(),
    H.Simplex(2.5),
    H.L2Ball(),
    H.L2Ball(2.0),
    H.L1Ball(),
    H.L1Ball(2.0),
    H.Group(0.8, GROUPS),
    H.Group(0.0, GROUPS),
]
every = pytest.mark.parametrize("h", EVERY, ids=str)

# eighths: zeros, ties and bounds are met exactly
vectors = st.lists(st.integers(-24, 24), min_size=DIM, max_size=DIM).map(lambda v: np.array(v) / 8.0)
steps = st.sampled_from([0.125, 1.0, 3.0])


@cache
def compiled(h):
    return jax.jit(h.value), jax.jit(h.prox), jax.jit(h.distance)


def name_of(h) -> str:
    return type(h).__name__


@every
@settings(properties, max_examples=10)
@given(v=vectors, step=steps)
def test_prox_is_cvxpys(h, v, step):
    _, prox, _ = compiled(h)
    # the oracle's gap of 1e-9 leaves its minimiser off by the root of that
    np.testing.assert_allclose(prox(v, step), oracles.prox(name_of(h), v, step, **vars(h)), atol=1e-4)


@every
@properties
@given(v=vectors, step=steps)
def test_prox_is_optimal_exactly(h, v, step):
    value, prox, distance = compiled(h)
    w = prox(v, step)
    assert np.isfinite(value(w))
    assert distance(w, (w - v) / step) <= 1e-12 * (1 + np.max(np.abs(v)) / step)


@every
@properties
@given(a=vectors, b=vectors, step=steps)
def test_prox_is_firmly_non_expansive(h, a, b, step):
    _, prox, _ = compiled(h)
    moved = np.asarray(prox(a, step)) - np.asarray(prox(b, step))
    assert moved @ moved <= moved @ (a - b) + 1e-10


@every
@settings(properties, max_examples=10)
@given(v=vectors, g=vectors, step=steps)
def test_distance_is_cvxpys(h, v, g, step):
    _, prox, distance = compiled(h)
    w = np.asarray(prox(v, step))  # a point of the domain, often on its boundary
    expected = oracles.subdifferential_distance(name_of(h), w, g, **vars(h))
    np.testing.assert_allclose(distance(w, g), expected, atol=1e-7)


@every
@properties
@given(v=vectors, g=vectors, other=vectors, step=steps)
def test_distance_bounds_how_far_any_other_point_is_below(h, v, g, other, step):
    """From the definition of ∂h alone: h(u) + gᵀu ≥ h(w) + gᵀw − distance·‖u − w‖₁."""
    value, prox, distance = compiled(h)
    w, u = np.asarray(prox(v, step)), np.asarray(prox(other, step))
    below = value(w) + g @ w - value(u) - g @ u
    assert below <= distance(w, g) * np.sum(np.abs(u - w)) + 1e-9


@pytest.mark.parametrize(
    ("h", "outside"),
    [
        (H.Box(-1.0, 0.5), [0.0, 0.6, 0, 0, 0]),
        (H.NonNegative(), [-1e-3, 0, 0, 0, 0]),
        (H.Simplex(), [0.5, 0.6, 0, 0, 0]),
        (H.Simplex(), [1.5, -0.5, 0, 0, 0]),
        (H.L2Ball(), [0.8, 0.8, 0, 0, 0]),
        (H.L1Ball(), [0.8, -0.8, 0, 0, 0]),
    ],
    ids=str,
)
def test_outside_the_domain_all_is_infinite(h, outside):
    w = np.array(outside, dtype=float)
    assert h.value(w) == np.inf
    assert h.distance(w, np.zeros(DIM)) == np.inf


@pytest.mark.parametrize("h", [H.Simplex(0.0), H.L2Ball(0.0), H.L1Ball(0.0), H.Box(0.0, 0.0)], ids=str)
def test_a_set_of_one_point_is_a_set(h):
    v = np.array([3.0, -2.0, 0.1, 0.0, 1.0])
    np.testing.assert_array_equal(h.prox(v, 1.0), np.zeros(DIM))
    assert h.value(np.zeros(DIM)) == 0
    assert h.distance(np.zeros(DIM), v) == 0, "the normal cone at the only point is everything"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: H.L1(-0.1), "'lam1' parameter of ElasticNet must be a number >= 0. Got -0.1"),
        (lambda: H.L2(float("nan")), "Got nan"),
        (lambda: H.L2Ball(-1.0), "'radius' parameter of L2Ball"),
        (lambda: H.L1Ball(float("inf")), "'radius' parameter of L1Ball"),
        (lambda: H.Simplex(-1.0), "'total' parameter of Simplex"),
        (lambda: H.Group(-1.0, (0,)), "'lam' parameter of Group"),
        (lambda: H.Box(1.0, -1.0), "Box needs low <= high. Got low=1.0, high=-1.0"),
    ],
)
def test_a_wrong_parameter_gets_a_sentence(make, words):
    with pytest.raises(fd.FoedusError, match=words):
        make()


def test_a_group_of_the_wrong_length_gets_a_sentence():
    clients = [(np.ones((2, 3)), np.ones(2))]
    with pytest.raises(fd.FoedusError, match="Group names 5 coordinates, but the parameters have 3"):
        fd.Problem(clients, loss=fd.losses.least_squares, regularizer=H.Group(1.0, GROUPS))


def test_groups_may_be_given_as_a_list_or_an_array():
    assert hash(H.Group(1.0, [0, 0, 1])) == hash(H.Group(1.0, (0, 0, 1)))
    assert H.Group(1.0, np.array([0, 0, 1])) == H.Group(1.0, (0, 0, 1))


# --- what a regulariser says beyond its prox: every one that says it is held to it ---

AT_POINTS = [*EVERY, H.Leading(H.L1(0.75), 3), H.Leading(H.Group(0.8, (0, 0, -1)), 3), H.L1Ball(0.0), H.Box(0.5, 0.5)]
at_points = pytest.mark.parametrize("h", AT_POINTS, ids=str)


@at_points
@settings(properties, max_examples=10)
@given(v=vectors, g=vectors)
def test_a_faces_residual_is_an_element_of_the_subdifferential(h, v, g):
    w = np.asarray(h.prox(v, 1.0))
    face = h.face(w, g)
    assert float(h.distance(w, g - face.r)) <= 1e-9 * (1 + np.max(np.abs(g)))
    assert np.all(face.free | (face.r == 0))


@at_points
@settings(properties, max_examples=10)
@given(v=vectors, u=vectors, pull=vectors)
@pytest.mark.slow
def test_no_point_of_the_domain_gains_more_than_is_said(h, v, u, pull):
    w, other = np.asarray(h.prox(v, 1.0)), np.asarray(h.prox(u, 1.0))
    most, room = float(h.most_gain(w, pull)), np.asarray(h.room(w, pull))
    assert pull @ (w - other) <= most + 1e-9
    assert np.all(np.sign(pull) * (w - other) <= room + 1e-9)


@at_points
@pytest.mark.slow
def test_an_epigraph_multiplies_by_the_jacobian_of_its_rows(h):
    if isinstance(h, H.Group | H.Leading):
        with pytest.raises(fd.FoedusError, match=f"does not handle the regulariser {h.name}; leave the choice to auto"):
            h.epigraph(DIM)
        return
    form = h.epigraph(DIM)
    rng, size = np.random.default_rng(0), DIM + form.extra
    x, dx, v = rng.normal(size=size), rng.normal(size=size), rng.normal(size=len(form.equal))
    J, D = jax.jacobian(form.rows)(x), rng.random(len(v)) + 0.1
    np.testing.assert_allclose(form.along(x, dx), J @ dx, atol=1e-12)
    np.testing.assert_allclose(form.pull(x, v), J.T @ v, atol=1e-12)
    assert np.max(np.abs(J), initial=0.0) <= form.steepness(x) + 1e-12
    slope = form.smooth(x)[1]
    np.testing.assert_allclose(slope, jax.grad(lambda x: form.smooth(x)[0])(x), atol=1e-12)
    curved = jax.hessian(lambda x: form.smooth(x)[0] + D @ form.rows(x))(x)
    blocks = form.blocks(x, D, D)
    np.testing.assert_allclose(blocks.dense(), J.T @ (D[:, None] * J) + curved, atol=1e-12)
    np.testing.assert_allclose(blocks.diagonal(), np.diag(blocks.dense()), atol=1e-12)
    # w with t = |w| meets the rows where h is finite, and what is no row has h's value there
    w = np.asarray(h.prox(rng.normal(size=DIM), 1.0))
    at = np.concatenate([w, np.abs(w)]) if form.extra else w
    c = np.asarray(form.rows(at))
    assert np.all(np.where(form.equal, np.abs(c), c) <= 1e-9)
    np.testing.assert_allclose(form.smooth(at)[0], h.value(w), atol=1e-12)
    near = form.snap(jnp.asarray(at + 1e-3 * rng.normal(size=size)), jnp.asarray(c >= -1e-9))[:DIM]
    assert np.isfinite(h.value(near))
    np.testing.assert_allclose(near, w, atol=0.01)


@at_points
def test_the_curvature_beside_kinks_is_hs_own(h):
    w = np.array([1.5, -0.5, 0.0, 0.25, 2.0])
    if (kinks := h.kinks(w)) is None:
        return
    at_zero, diagonal = kinks
    shift = np.where(at_zero, 0.0, 1e-4)
    second = (h.value(w + shift) - 2 * h.value(w) + h.value(w - shift)) / 1e-8
    np.testing.assert_allclose(second, np.sum(diagonal[~at_zero]), atol=1e-4)
