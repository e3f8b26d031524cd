"""Robust runs on few and degenerate rows: copies, weights of 0, equal labels, constant columns, balls of radius 0.

Each run is held against CVXPY on the pooled program. It reaches that optimum, and where it does not call itself
converged, its sentence says that the proof is missing.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from robust_cases import LINEAR, LOSSES, METRICS, NORMS, polyhedron
from robust_degenerate_setup import KNOWN, Case

import foedus as fd
from foedus.robust.bound import _direction
from foedus.robust.stress import SMALL_GAP

QUICK = ("separable", "columns of zeros")  # the others compile programs of their own


@pytest.mark.parametrize("name", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KNOWN])
def test_a_degenerate_problem_is_solved_with_a_proof(name):
    run, best = KNOWN[name].run(), KNOWN[name].best()
    assert run.converged, run.reason
    assert run.rounds <= 45
    assert run.worst_case.value <= best + 1e-6 * max(best, 0.01)
    assert run.worst_case.gap <= 1e-5 * max(best, 0.01)


@st.composite
def degenerate(draw, losses=tuple(LOSSES)) -> Case:
    """Two to four sites of one to five rows, of which some are copies, weightless, or alike in label or column."""
    name, dim = draw(st.sampled_from(losses)), draw(st.integers(1, 3))
    classifies = fd.losses.as_loss(LOSSES[name][0]).kind == "classification"
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    sites = []
    for _ in range(draw(st.integers(2, 4))):
        rows = draw(st.integers(1, 5))
        x = np.round(rng.normal(size=(rows, dim)), draw(st.sampled_from([1, 8])))
        y = np.where(rng.random(rows) < 0.5, -1.0, 1.0) if classifies else rng.normal(size=rows)
        if draw(st.booleans()):
            y[:] = y[0]
        if draw(st.booleans()):
            x[:, draw(st.integers(0, dim - 1))] = draw(st.sampled_from([0.0, 1.0]))
        if draw(st.booleans()):
            x[-1], y[-1] = x[0], y[0]
        weight = rng.integers(0, 3, size=rows).astype(float) if draw(st.booleans()) else np.ones(rows)
        sites.append((x, y, weight if weight.sum() > 0 else np.ones(rows)))
    return Case(
        name, sites, draw(st.sampled_from([0.0, 1e-3, 0.05, 0.5])), draw(st.sampled_from([0.3, 1.0, np.inf])),
        draw(st.sampled_from(METRICS)), draw(st.sampled_from([0.0, 0.3, 2.0])), draw(st.sampled_from(NORMS)),
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150)
@given(case=degenerate())
def test_few_and_degenerate_rows_end_at_cvxpys_optimum_or_say_why_not(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=12)
@given(case=degenerate(LINEAR))
def test_they_do_so_in_a_polyhedron_too(case):
    dim = case.sites[0][0].shape[1]
    C, d = polyhedron(dim)
    check(replace(case, support=(C, d * max(1.0, *(np.max(np.abs(x)) for x, _, _ in case.sites)))))


def check(case: Case) -> None:
    run, best = case.run(), case.best()
    assert -1e-6 <= (run.worst_case.value - best) / max(best, 0.01) <= 1e-5, run.reason
    if run.converged:
        assert run.worst_case.gap <= SMALL_GAP * max(best, 0.01)
    else:
        assert "may be" in run.reason
        assert "above the best possible" in run.reason


@pytest.mark.parametrize("w", [[1e20, -1e20, 3.0], [2e16, 1.0, 0.0], [0.3, -0.2, 0.1]])
def test_the_direction_of_the_norm_attains_it_however_large_the_model_is(w):
    g = _direction(np.array(w), "l1", 1e-6)
    assert np.sum(np.abs(g)) <= 1.0 + 1e-12
    assert g @ w == pytest.approx(np.max(np.abs(w)), rel=1e-5)
