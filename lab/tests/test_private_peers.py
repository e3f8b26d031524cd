"""What private models are compared with: DP-SGD keeps its ε, and without noise finds the optimum."""

import numpy as np
import pytest
from scipy.optimize import minimize

from foedus_lab.benchmarks import private
from foedus_lab.benchmarks.dp_sgd import CLIP, dp_sgd, noise_multiplier


def rows(seed: int = 0, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, 3))
    return x, (x @ [1.0, -1.0, 0.5] + draw.logistic(size=count) > 0) * 1.0


@pytest.mark.slow
def test_the_noise_of_dp_sgd_is_no_larger_than_moments_ask_for_and_no_smaller_than_one_step_does():
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    sigma = noise_multiplier(1.0, 1e-5)
    one = accounting.PoissonSampledDpEvent(0.03, accounting.GaussianDpEvent(sigma))
    by_moments = RdpAccountant().compose(one, 300).get_epsilon(1e-5)
    assert 1.0 <= by_moments < 1.2  # Rényi moments are a little loose, on the safe side
    smaller = accounting.PoissonSampledDpEvent(0.03, accounting.GaussianDpEvent(0.8 * sigma))
    assert RdpAccountant().compose(smaller, 300).get_epsilon(1e-5) > 1.3


def test_without_noise_and_sampling_dp_sgd_is_gradient_descent():
    x, y = rows()
    best = minimize(lambda w: np.mean(np.logaddexp(0, x @ w) - y * (x @ w)), np.zeros(3), tol=1e-12).x
    np.testing.assert_allclose(dp_sgd(x, y, 0.0, 0, rate=1.0, steps=800, clip=1e9, length=2.0), best, atol=1e-5)


def test_a_row_moves_a_step_of_dp_sgd_by_no_more_than_the_clip():
    x, y = rows()
    far = np.concatenate([x, [[1e6, -1e6, 1e6]]]), np.concatenate([y, [1.0]])
    settings = {"sigma": 0.0, "seed": 0, "rate": 1.0, "steps": 1, "length": 1.0}
    without, within = (w * count for w, count in ((dp_sgd(x, y, **settings), 200), (dp_sgd(*far, **settings), 201)))
    np.testing.assert_allclose(np.linalg.norm(without - within), CLIP, rtol=1e-9)


@pytest.mark.slow
def test_the_lines_on_speed_are_measured():
    lines = [*private.local_work(quick=True), *private.mechanism(quick=True)]
    assert len(lines) == 6
    assert all(line.seconds > 0 and line.limit is not None for line in lines)
