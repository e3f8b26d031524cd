"""The pieces of DRFL's figures: data as stated, the radii of Example 4.1, and a whole small figure."""

import numpy as np
import pytest

from foedus_lab.papers import EXPERIMENTS, Options, drfl_examples
from foedus_lab.papers.drfl_examples import TwoClientExample, wasserstein


def setting(**changes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = (X @ np.array([1.0, -1.0, 0.5]) > 0).astype(float)
    return drfl_examples.replace(drfl_examples.HEART, name="drawn", load=lambda: (X, y), **changes)


def test_wasserstein_on_the_line_is_scipys():
    from scipy.stats import wasserstein_distance

    rng = np.random.default_rng(1)
    atoms = np.sort(rng.uniform(size=5))
    p, q = rng.dirichlet(np.ones(5), size=2)
    assert wasserstein(atoms, p, q) == pytest.approx(wasserstein_distance(atoms, atoms, p, q), rel=1e-12)
    example = TwoClientExample.draw(0)
    apart, mixed = example.least_radii(example.p, example.q, example.p[::-1], example.q)
    both = [wasserstein_distance(a, a, u, v) for a, u, v in zip(example.atoms, example.p, example.p[::-1], strict=True)]
    assert apart == pytest.approx(max(both), rel=1e-12)
    weights = [(example.q[:, None] * part).ravel() for part in (example.p, example.p[::-1])]
    flat = example.atoms.ravel()
    assert mixed == pytest.approx(wasserstein_distance(flat, flat, *weights), rel=1e-12)


def test_rows_are_divided_scaled_and_disturbed_as_stated():
    train, test = drfl_examples.split_rows(setting(), 0)
    assert [len(y) for _, y in train] == [24, 24, 24]
    assert sum(len(y) for _, y in test) == 48
    X = np.concatenate([X for X, _ in train + test])
    assert (X.min(), X.max()) == (-1.0, 1.0)
    quiet, _ = drfl_examples.split_rows(setting(train_noise=(0.0, 0.0)), 0)
    assert not np.allclose(quiet[0][0], train[0][0])
    np.testing.assert_array_equal(quiet[1][0], train[1][0])
    fewer, _ = drfl_examples.split_rows(setting(imbalanced=True), 0)
    for s, (part, whole) in enumerate(zip(fewer, train, strict=True)):
        counts = [min(np.sum(y > 0), np.sum(y < 0)) for _, y in (part, whole)]
        assert counts[0] == ((counts[1] + 1) // 2 if s < 2 else counts[1])


@pytest.mark.slow
def test_figure_one_is_drawn(tmp_path):
    said = []
    EXPERIMENTS["drfl-fig1"].run(Options(trials=2, seed=0, quick=True, out=tmp_path, echo=said.append))
    assert (tmp_path / "drfl-fig1.png").stat().st_size > 10_000
    assert any("of 2 drawn examples" in line for line in said)


@pytest.mark.slow
def test_a_figure_of_noise_is_drawn_and_says_who_is_ahead(tmp_path):
    from foedus_lab.papers import drfl

    said = []
    drfl._panels(Options(trials=2, seed=0, quick=True, out=tmp_path, echo=said.append), "drawn", (setting(),))
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
    assert any("of 3 panels" in line for line in said)
    assert len((tmp_path / "drawn.csv").read_text().splitlines()) == 1 + 3 * 5 * 6
