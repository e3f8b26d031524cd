"""A certificate is measured at the point it is for, says what holds in a table, and survives being saved."""

import json
import math

import numpy as np
import pytest
from constrained_cases import DIM, NAMES, Quadratic, breast_cancer, capped_run, quadratic_run

import foedus as fd
from foedus.certificate.measure import Certificate, Row, measure


def row(value: float, cap: float = 0.5, multiplier: float = 0.0, kind: str = "<=") -> Row:
    return Row("ash", "loss on label 1", kind, value, cap, multiplier)


@pytest.mark.parametrize(
    ("made", "slack", "violation", "distance", "complementarity", "verdict"),
    [
        (row(0.4), 0.1, 0.0, 0.0, 0.0, "met"),
        (row(0.4, multiplier=2.0), 0.1, 0.0, 0.1, 0.2, "binding"),
        (row(0.75), -0.25, 0.25, 0.25, 0.0, "broken"),
        (row(0.75, multiplier=2.0), -0.25, 0.25, 0.25, 0.5, "broken"),
        (row(0.5, multiplier=2.0), 0.0, 0.0, 0.0, 0.0, "binding"),
        (row(0.4, multiplier=-1.0), 0.1, 0.0, math.inf, 0.1, "met"),
        (row(0.75, kind="=="), -0.25, 0.25, 0.25, 0.0, "broken"),
        (row(0.25, kind="==", multiplier=-2.0), -0.25, 0.25, 0.25, 0.5, "broken"),
        (row(0.5, kind="==", multiplier=-2.0), 0.0, 0.0, 0.0, 0.0, "binding"),
    ],
)
def test_a_row_measures_its_value_against_its_cap(made, slack, violation, distance, complementarity, verdict):
    assert made.slack == pytest.approx(slack)
    assert made.violation == pytest.approx(violation)
    assert made.distance == pytest.approx(distance)
    assert made.complementarity == pytest.approx(complementarity)
    assert made.verdict(1e-3) == verdict


def test_holding_needs_every_residual():
    good = Certificate(stationarity=1e-4, feasibility=2e-4, complementarity=3e-4, distance=4e-4, rows=(row(0.4),))
    assert good.holds()
    assert good.holds(1e-4, 4e-4), "the bounds are included"
    assert not good.holds(eps1=0.9e-4)
    assert not good.holds(eps2=3.9e-4)
    assert "certified (0.001, 0.001)" in good.verdict()
    for name, eps in (
        ("stationarity", "eps1"),
        ("feasibility", "eps2"),
        ("complementarity", "eps2"),
        ("distance", "eps2"),
    ):
        for value in (2e-3, math.inf, math.nan):
            bad = Certificate(**{**vars(good), name: value})
            assert not bad.holds(), (name, value)
            assert f"NOT certified: {name}" in bad.verdict()
        assert Certificate(**{**vars(good), name: 2e-3}).holds(**{eps: 2e-3})
    mine = Certificate(stationarity=0.05, eps1=0.1, eps2=0.1)
    assert mine.holds()
    assert not mine.holds(1e-3)


def test_a_row_that_is_not_a_number_is_broken():
    lost = row(math.nan)
    assert lost.verdict(1e-3) == "broken"
    assert math.isnan(lost.violation)


def test_the_certificate_is_of_the_given_point_and_multipliers():
    """Not of a solution: any (w, μ) is measured, here against NumPy."""
    rng = np.random.default_rng(0)
    for seed in range(3):
        case = Quadratic.random(seed)
        w = rng.normal(size=DIM)
        mu = {"local": np.abs(rng.normal(size=(3, 3))), "global": np.array([0.0, 0.7])}
        objective, found = measure(case.problem().over(w), w, mu)
        assert objective == pytest.approx(case.value(w), rel=1e-12)
        expected = case.residuals(w, mu)
        for name in ("stationarity", "feasibility", "complementarity", "distance"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-10), name
        assert not found.holds()
    _, without = measure(case.problem().over(w), w)
    assert {r.multiplier for r in without.rows} == {0.0}
    assert without.complementarity == 0.0


def test_the_printed_table_has_a_row_for_each_site_and_constraint():
    run = quadratic_run(1)
    head, body = str(run).split("\n-")
    titles = head.splitlines()[-1].split()
    assert titles == ["site", "constraint", "value", "cap", "slack", "multiplier", "verdict"]
    lines = body.strip("-").strip().splitlines()
    assert len(lines) == 3 * 3 + 2
    for name in NAMES:
        assert sum(line.startswith(name) for line in lines) == 3
    assert sum(line.startswith("server") for line in lines) == 2
    for line, r in zip(lines, run.certificate.rows, strict=True):
        assert line.endswith(r.verdict(1e-6))
        assert f"{r.value:.4f}" in line
        assert f"{r.multiplier:.4g}" in line
        assert ("= " in line) == (r.kind == "==")
    assert "certified (1e-6, 1e-6)" in head
    assert run.certificate.by_site().keys() == {*NAMES, "server"}
    assert [r.constraint for r in run.certificate.by_site()["ash"]] == ["linear", "linear row 0", "linear row 1"]


def test_a_capped_loss_is_printed_with_its_cap():
    run, case = capped_run("newton"), breast_cancer()
    _, losses = case.values(run.w)
    for r, site, loss, mu in zip(run.certificate.rows, NAMES, losses, run.multipliers["local"][:, 0], strict=True):
        assert (r.site, r.constraint, r.kind, r.cap) == (site, "loss on label 1", "<=", 0.2)
        assert r.value == pytest.approx(loss, rel=1e-12)
        assert r.multiplier == mu
    assert {r.verdict(1e-3) for r in run.certificate.rows} == {"binding", "met"}


def test_a_saved_run_has_the_same_certificate(tmp_path):
    run = quadratic_run(1)
    again = fd.load(run.save(tmp_path / "kept"))
    assert again.certificate == run.certificate
    assert str(again.certificate) == str(run.certificate)
    assert again.certificate.holds() == run.certificate.holds()
    for scope, mu in run.multipliers.items():
        np.testing.assert_array_equal(again.multipliers[scope], mu)
    assert Certificate.from_json(json.loads(json.dumps(run.certificate.to_json()))) == run.certificate


def test_a_run_without_constraints_has_stationarity_alone():
    X, y = breast_cancer().sites[NAMES[0]]
    w = np.full(X.shape[1], 0.1)
    objective, found = measure(fd.Problem([(X, y)], loss=fd.losses.logistic), w)
    assert found.rows == ()
    assert (found.feasibility, found.complementarity, found.distance) == (0.0, 0.0, 0.0)
    slope = X.T @ (1.0 / (1.0 + np.exp(-X @ w)) - y) / len(X)
    assert found.stationarity == pytest.approx(np.max(np.abs(slope)), rel=1e-10)
    assert "stationarity" in str(found)
    assert "site" not in str(found)
    assert objective == pytest.approx(np.mean(np.logaddexp(0.0, X @ w) - y * (X @ w)), rel=1e-12)
