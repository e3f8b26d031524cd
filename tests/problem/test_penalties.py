"""Penalties against plain formulas and finite differences."""

import numpy as np
import oracles
import pytest
from cases import properties
from hypothesis import given
from hypothesis import strategies as st

import foedus as fd

SIZES = {"Ridge": lambda w: w**2, "Saturating": lambda w: w**2 / (1.0 + w**2)}
vectors = st.lists(st.floats(-5, 5), min_size=3, max_size=3).map(np.array)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("per_example", [True, False])
@properties
@given(w=vectors, mu=st.floats(0, 10), count=st.integers(1, 50))
def test_value_and_derivatives(name, per_example, w, mu, count):
    penalty = getattr(fd.penalties, name)(mu, per_example=per_example)
    scale = mu / count if per_example else mu

    def formula(v):
        return 0.5 * scale * np.sum(SIZES[name](v))

    count = np.float64(count)
    np.testing.assert_allclose(penalty.value(w, count), formula(w), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(penalty.gradient(w, count), oracles.numeric_gradient(formula, w), rtol=1e-6, atol=1e-7)
    slope = oracles.central_difference(lambda v: np.asarray(penalty.gradient(v, count)), w, step=1e-5)
    np.testing.assert_allclose(penalty.bend(w, count), slope, rtol=1e-5, atol=1e-7)
    assert np.all(np.abs(penalty.bend(w, count)) <= penalty.curvature(count) * (1 + 1e-12))


@pytest.mark.parametrize("mu", [-1e-9, float("nan"), float("-inf")])
def test_a_negative_weight_gets_a_sentence(mu):
    with pytest.raises(fd.FoedusError, match=r"'mu' parameter of Ridge must be >= 0\. Got"):
        fd.penalties.Ridge(mu)
