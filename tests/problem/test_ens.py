"""ENS against brute force: no point of a fine candidate set does better, kinks, ties and extreme weights included."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foedus as fd
from foedus.algorithms.ens import _search


def best_by_brute_force(z: np.ndarray, lam: float, eta: float) -> float:
    """One coordinate's minimiser, among all kinks and all stationary points of all pieces; ties go to the first."""
    m = len(z)
    with np.errstate(over="ignore", invalid="ignore"):
        pieces = [np.mean(z) + lam / eta * (2 * s / m - 1) if 2 * s != m else np.mean(z) for s in range(m + 1)]
    candidates = np.concatenate([z, [p for p in pieces if np.isfinite(p)]])
    candidates = candidates[(candidates >= z.min()) & (candidates <= z.max())]
    # scaled so that neither weight overflows; a constant factor moves no minimiser
    a, b = lam / max(lam, eta), eta / max(lam, eta)
    gap = candidates[:, None] - z
    return float(candidates[np.argmin(np.sum(a * np.abs(gap) + 0.5 * b * gap**2, axis=1))])


def cost(w: float, z: np.ndarray, lam: float, eta: float) -> float:
    top = max(lam, eta)
    return float(np.sum(lam / top * np.abs(z - w) + 0.5 * (eta / top) * (z - w) ** 2))


def exact_cost(w: float, z: np.ndarray, lam: float, eta: float) -> Fraction:
    gaps = [abs(Fraction(float(v)) - Fraction(float(w))) for v in z]
    return sum((Fraction(lam) * gap + Fraction(eta) * gap**2 / 2 for gap in gaps), Fraction(0))


def draws(seed: int, cases: int):
    """Random cases: sizes from 1, ties, rounded numbers, scales from 1e-8 to 1e8, weights from 1e-12 to 1e12."""
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        m = int(rng.choice([1, 2, 3, 4, 5, 8, 13]))
        z = rng.normal(size=m) * 10.0 ** rng.integers(-8, 9)
        kind = rng.integers(4)
        if kind == 0:
            z = np.round(z / np.max(np.abs(z)) * 3)  # ties
        elif kind == 1:
            z[rng.integers(m)] = z[rng.integers(m)]
        elif kind == 2:
            z = np.abs(z) + 1.0
        lam, eta = 10.0 ** rng.uniform(-12, 12, size=2) if rng.random() < 0.5 else 10.0 ** rng.uniform(-1, 1, size=2)
        yield z, 0.0 if rng.random() < 0.05 else float(lam), float(eta)


def test_ten_thousand_cases_by_brute_force():
    """Many of them lie on a kink, which the paper's lemma leaves out."""
    kinks = 0
    for z, lam, eta in draws(0, 10_000):
        (w,) = fd.ens(z[:, None], lam, eta)
        expected = best_by_brute_force(z, lam, eta)
        size = np.max(np.abs(z)) + 1e-300
        assert cost(w, z, lam, eta) <= cost(expected, z, lam, eta) * (1 + 1e-12) + 1e-300
        if abs(w - expected) > 1e-9 * size:  # floats cannot tell the costs of the two apart; rational numbers can
            assert exact_cost(w, z, lam, eta) <= exact_cost(expected, z, lam, eta), (z, lam, eta, w, expected)
        kinks += w in z
    assert kinks > 2000


def test_all_coordinates_at_once_are_those_one_by_one_and_the_compiled_form_agrees():
    rng = np.random.default_rng(1)
    z = np.round(rng.normal(size=(7, 40)), 1)
    together = fd.ens(z, 0.5, 1.0)
    np.testing.assert_array_equal(together, [fd.ens(z[:, [j]], 0.5, 1.0)[0] for j in range(40)])
    np.testing.assert_allclose(jax.jit(fd.ens)(z, 0.5, 1.0), together, rtol=1e-14, atol=1e-15)
    assert isinstance(fd.ens(jnp.asarray(z), 0.5, 1.0), jax.Array)


@pytest.mark.parametrize("m", [1, 6, *(pytest.param(m, marks=pytest.mark.slow) for m in (2, 3, 13))])
def test_the_search_without_a_sort_finds_the_same(m):
    """Ten thousand coordinates in all, with ties, zeros of both signs, and weights from 1e-300 to 1e300."""
    rng, search = np.random.default_rng(m), jax.jit(_search)
    for trial in range(20):
        z = rng.normal(size=(m, 100)) * 10.0 ** rng.integers(-8, 9, size=100)
        z[:, ::3] = np.round(z[:, ::3] / np.max(np.abs(z[:, ::3]), axis=0) * 3)
        z[rng.integers(m)] = z[rng.integers(m)]
        lam, eta = 10.0 ** rng.uniform(-1, 1, size=2) if trial % 2 else 10.0 ** rng.uniform(-12, 12, size=2)
        lam, eta = {0: (0.0, eta), 1: (1e300, 1e-300), 2: (1e-300, 1e300)}.get(trial, (lam, eta))
        found, size = np.asarray(search(z, lam, eta)), np.max(np.abs(z), axis=0)
        # means are summed in another order, and λ/η moves them by its own rounding where it is no kink that counts
        np.testing.assert_array_less(np.abs(found - fd.ens(z, lam, eta)), 1e-14 * size + 1e-300)


def test_many_clients_and_coordinates_are_searched_in_blocks():
    rng = np.random.default_rng(4)
    z = np.round(rng.normal(size=(400, 173)), 2)
    compiled = jax.jit(fd.ens)
    for lam in (0.0, 0.01, 0.5, 1e9):
        np.testing.assert_allclose(compiled(z, lam, 1.0), fd.ens(z, lam, 1.0), rtol=1e-13, atol=1e-15)
    assert np.isnan(np.asarray(compiled(np.where(np.arange(173) == 5, np.nan, z), 0.5, 1.0))).nonzero()[0].tolist() == [
        5
    ]


def test_the_limits_are_the_mean_the_median_and_the_only_client():
    rng = np.random.default_rng(2)
    z = rng.normal(size=(5, 6))
    np.testing.assert_allclose(fd.ens(z, 0.0, 1.0), z.mean(axis=0), rtol=1e-14)
    np.testing.assert_array_equal(fd.ens(z, 1e200, 1e-200), np.median(z, axis=0))
    np.testing.assert_array_equal(fd.ens(z[:1], 3.0, 0.1), z[0])
    # of the many medians of an even number the squares choose the one nearest to the mean
    np.testing.assert_allclose(fd.ens(np.array([[0.0], [1.0], [3.0], [10.0]]), 1e9, 1e-9), [3.0])


def test_the_papers_lemma_mostly_misses_the_minimiser():
    """Lemma III.1 with (13) as printed, on standard normal draws, λ = η/2, m = 10: no s*, or a worse point at it."""
    rng, wrong, kinks, trials = np.random.default_rng(3), 0, 0, 500
    for _ in range(trials):
        z = rng.normal(size=10)
        down = np.append(np.sort(z)[::-1], -np.inf)
        at = [np.mean(z) - 0.5 * (2 * s / 10 - 1) for s in range(1, 11)]
        found = [w for s, w in enumerate(at) if down[s] >= w > down[s + 1]]
        ours = fd.ens(z[:, None], 0.5, 1.0)[0]
        kinks += ours in z
        wrong += not found or cost(found[0], z, 0.5, 1.0) > cost(ours, z, 0.5, 1.0) + 1e-12
    assert wrong / trials > 0.55
    assert 0.2 < kinks / trials < 0.4


@pytest.mark.parametrize(
    ("z", "lam", "eta", "words"),
    [
        (np.zeros(3), 1.0, 1.0, "shape (clients, dim)"),
        (np.zeros((0, 3)), 1.0, 1.0, "at least one client"),
        (np.array([[np.nan]]), 1.0, 1.0, "finite numbers"),
        (np.zeros((2, 2)), -1.0, 1.0, "lam >= 0"),
        (np.zeros((2, 2)), 1.0, 0.0, "eta > 0"),
    ],
)
def test_wrong_inputs_get_a_sentence(z, lam, eta, words):
    with pytest.raises(fd.FoedusError) as caught:
        fd.ens(z, lam, eta)
    assert words in str(caught.value)
