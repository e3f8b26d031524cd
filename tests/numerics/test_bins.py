"""Clients of very different sizes in several rectangles give the run that one rectangle gives."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foedus as fd
from foedus.certificate.measure import measure
from foedus.problem import sizes
from foedus.runtime import bins

SIZES = (40, 3, 5, 12, 4, 3, 38, 6)


def ragged() -> fd.Problem:
    rng = np.random.default_rng(0)
    made = [(rng.normal(size=(rows, 4)), (rng.random(rows) < 0.5).astype(float)) for rows in SIZES]
    return fd.Problem({f"site {i}": client for i, client in enumerate(made)}, loss=fd.losses.logistic)


@pytest.mark.parametrize(
    "algorithm",
    [
        fd.FedGiA(k0=3, H="gram"),
        *(pytest.param(a, marks=pytest.mark.slow) for a in (fd.FedGiA(k0=3), fd.FedAvg(k0=5), fd.FedPD())),
        pytest.param(fd.LocalSGD(lr=0.1), marks=pytest.mark.slow),
        pytest.param(fd.FedEPM(noise=fd.PaperLaplace(1.0), mu0=20.0, eta=0.1, stop="gradient"), marks=pytest.mark.slow),
    ],
    ids=lambda a: f"{type(a).__name__} {getattr(a, 'H', '')}",
)
def test_bins_change_nothing(monkeypatch, tmp_path, algorithm):
    one = fd.solve(ragged(), algorithm, max_rounds=20, seed=3)
    monkeypatch.setattr(sizes, "LEAST_BYTES", 0)
    several = fd.solve(ragged(), algorithm, max_rounds=20, seed=3)
    assert several.rounds == one.rounds
    np.testing.assert_allclose(several.w, one.w, rtol=1e-9, atol=1e-12)
    for name, values in one.history.items():
        np.testing.assert_allclose(several.history[name], values, rtol=1e-8, atol=1e-13, err_msg=name)
    fd.solve(ragged(), algorithm, max_rounds=5, seed=3, checkpoint=tmp_path / "kept")
    resumed = fd.solve(ragged(), algorithm, max_rounds=20, seed=3, checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(resumed.w, several.w)


def test_the_gap_of_many_columns_is_the_same_in_several_rectangles(monkeypatch, many_columns):
    problem, w = ragged(), np.full(4, 0.1)
    _, one = measure(problem, w)
    monkeypatch.setattr(sizes, "LEAST_BYTES", 0)
    assert len(problem.by_size) > 1
    _, several = measure(problem, w)
    assert one.gap > 0
    assert several.gap == pytest.approx(one.gap, rel=1e-9)


def chosen(algorithm, participation=1.0, problem=None) -> tuple[bins.Bin, ...] | None:
    problem, who = problem or ragged(), fd.Fraction(participation)
    return bins.split_into_bins(algorithm, problem.terms, problem.data, problem.by_size, problem.stacked.uids(), who)


def test_bins_are_used_where_they_save_rows_and_everybody_answers(monkeypatch):
    assert chosen(fd.FedGiA()) is None, "too little data to compile for it"
    monkeypatch.setattr(sizes, "LEAST_BYTES", 0)
    found = chosen(fd.FedGiA())
    assert found is not None
    assert sorted(np.concatenate([b.index for b in found])) == list(range(len(SIZES)))
    for b in found:
        assert b.data["x"].shape[1] == max(SIZES[i] for i in b.index)
    assert chosen(fd.FedGiA(), 0.5) is None
    assert chosen(fd.ProxAL()) is None, "its clients' multipliers are handed on"
    alike = fd.Problem([(np.ones((5, 2)), np.ones(5))] * 4, loss=fd.losses.least_squares)
    assert chosen(fd.FedGiA(), problem=alike) is None


@pytest.mark.slow
def test_rectangles_that_the_data_come_with_are_used_and_share_a_program():
    whole = ragged()
    arrays = {key: np.asarray(value) for key, value in whole.data.items() if key != "weight"}
    made = [
        fd.Problem(fd.data.Stacked(arrays, counts=counts, rectangles=((3, 40), (5, 6))), loss=fd.losses.logistic)
        for counts in (whole.counts, np.minimum(whole.counts, 38))
    ]
    for problem in made:
        who, uids = fd.Fraction(1.0), problem.stacked.uids()
        found = bins.split_into_bins(fd.FedAvg(), problem.terms, problem.data, problem.by_size, uids, who)
        assert found is not None
        assert [b.data["x"].shape[:2] for b in found] == [(3, 40), (5, 6)]
    plain = fd.solve(fd.Problem(fd.data.Stacked(arrays, counts=whole.counts), loss=fd.losses.logistic), fd.FedAvg(k0=2))
    np.testing.assert_allclose(fd.solve(made[0], fd.FedAvg(k0=2)).w, plain.w, rtol=1e-9)


@pytest.mark.parametrize(
    ("rectangles", "words"), [(((3, 40),), "8 clients in all"), (((3, 40), (5, 5)), "do not hold")]
)
def test_rectangles_that_do_not_fit_are_refused(rectangles, words):
    whole = ragged()
    arrays = {key: np.asarray(value) for key, value in whole.data.items() if key != "weight"}
    with pytest.raises(fd.FoedusError, match=words):
        fd.data.Stacked(arrays, counts=whole.counts, rectangles=rectangles)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9))
def test_no_grouping_into_at_most_four_holds_fewer_rows(counts):
    counts = np.array(counts)
    found = sizes.row_groups(counts)
    assert sorted(np.concatenate(found)) == list(range(len(counts)))
    area = sum(len(group) * counts[group].max() for group in found)
    size, n = np.sort(counts)[::-1], len(counts)
    least = min(
        sum((b - a) * size[a] for a, b in zip((0, *cuts), (*cuts, n), strict=True))
        for many in range(min(4, n))
        for cuts in combinations(range(1, n), many)
    )
    assert area == least
