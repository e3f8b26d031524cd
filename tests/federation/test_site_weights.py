"""Weights by rows over real sites: each works its own factor out, and nobody is told another's number of rows."""

import dataclasses

import numpy as np
import pytest
from scipy.optimize import minimize
from uneven_wards import BY_ROWS, KEPT, UnevenMaskedWard, UnevenWard

import foedus as fd
from foedus.app.experiment import build
from foedus.federation import packing
from foedus.federation.exchange import Missing, Paused
from foedus.federation.policy import Policy

RIDGE = 0.1


def pooled_fit(ward) -> np.ndarray:
    """The ridge logistic fit of the pooled rows by SciPy; the intercept, the last number, is not penalised."""
    setup = build.build(ward.case.settings, ward.cohort)
    parts = [setup.problem.client(i) for i in range(len(ward.names))]
    X, y = (np.concatenate([np.asarray(part[key]) for part in parts]) for key in ("x", "y"))
    ridge = len(parts) * RIDGE / len(y)  # Σ (d_i/N)·μ/d_i

    def f(w):
        return np.mean(np.logaddexp(0, X @ w) - y * (X @ w)) + ridge / 2 * np.sum(w[:-1] ** 2)

    def slope(w):
        return X.T @ (1 / (1 + np.exp(-X @ w)) - y) / len(y) + ridge * np.append(w[:-1], 0.0)

    return minimize(f, np.zeros(X.shape[1]), jac=slope, method="BFGS", options={"gtol": 1e-12}).x


def heard(ward, kind: str) -> list[dict]:
    return [header for header, _ in map(packing.unseal, ward.heard) if header["ask"] == kind]


def test_over_messages_the_answer_is_the_fit_of_the_pooled_rows(tmp_path):
    ward = UnevenWard(tmp_path)
    result = ward.play()
    np.testing.assert_allclose(result.conclusion.w, pooled_fit(ward), atol=1e-6)
    assert sum(header["rows"] for header in heard(ward, "rows")) == sum(KEPT) == result.rules["total_rows"]
    simulated = build.build(ward.case.settings, ward.cohort)
    run = fd.solve(simulated.problem, simulated.algorithm)
    np.testing.assert_allclose(result.conclusion.w, run.w, atol=1e-9)
    assert result.conclusion.objective == pytest.approx(run.objective, abs=1e-9)


def test_under_masks_only_the_total_of_the_rows_is_seen(tmp_path):
    pytest.importorskip("cryptography")
    ward = UnevenMaskedWard(tmp_path)
    result = ward.play()
    np.testing.assert_allclose(result.conclusion.w, pooled_fit(ward), atol=1e-6)
    assert result.rules["total_rows"] == sum(KEPT)
    answers = heard(ward, "rows")
    assert len(answers) == len(KEPT)
    assert not any("rows" in header for header in answers)


def test_a_site_tells_its_number_of_rows_only_where_the_plan_weighs_by_it(tmp_path):
    ward = UnevenWard(tmp_path, BY_ROWS.replace('weights = "rows"\n', ""))

    asked = []
    honest = ward.ask

    def ask(messages, timeout):
        answers = honest(messages, timeout)
        if packing.unseal(next(iter(messages.values())))[0]["ask"] == "columns":
            name = ward.names[0]
            header = {"ask": "rows", "run": "r1", "round": None}
            asked.append(packing.unseal(ward.site[name].answer(packing.seal(header)))[0])
        return answers

    ward.ask = ask
    ward.play()
    assert "rows" not in asked[0]
    assert any("its number of rows, which the plan does not need" in note for note in ward.notes)
    assert not heard(ward, "rows")


@pytest.mark.parametrize("total", [20.0, 1e-3, -5.0, float("nan")])
def test_a_total_below_a_sites_own_rows_is_refused(tmp_path, total, monkeypatch):
    """With a small total the server would make a site's numbers as large as it likes."""
    from foedus.federation.preparation import Apart

    ward = UnevenWard(tmp_path)
    monkeypatch.setattr(Apart, "rows", lambda self: total)
    with pytest.raises((Missing, Paused, fd.FoedusError)):
        ward.play()
    assert not heard(ward, "round")


def test_noise_and_weights_are_refused_at_the_site_too(tmp_path):
    """A coordinator that goes round its own checks gets the refusal from the site."""
    from foedus.federation.agreement import fitting
    from foedus.federation.policy import Refusal
    from foedus.privacy.releasing import make_private
    from foedus.problem.weights import SiteWeights

    problem = fd.Problem([(np.eye(2), np.array([0.0, 1.0]))] * 3, loss=fd.losses.logistic)
    noise = fd.Gaussian(epsilon=1.0, delta=1e-5, clip=1.0)
    private = make_private(fd.FedAvg(lr=0.1, k0=1), noise, None, problem, 10)
    fitting(private, problem.terms)
    with pytest.raises(Refusal, match="leave weights= out, or the noise"):
        fitting(private, dataclasses.replace(problem.terms, weights=SiteWeights("rows", 6.0)))


def test_where_a_policy_asks_for_privacy_the_number_of_rows_stays(tmp_path):
    ward = UnevenWard(tmp_path, policy=Policy(min_subset=1, ranges=True, max_epsilon=1.0, max_epsilon_total=5.0))
    with pytest.raises((Missing, Paused)):
        ward.play()
    assert not any("rows" in header for header in heard(ward, "rows"))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('weights = "rows"', 'weights = "row"', r"\[problem\] weights must be 'sites', 'rows', or a table"),
        ('weights = "rows"', 'weights = "rows"\nwhere = "label 1"', "counts all rows of a site; leave where out"),
    ],
)
def test_wrong_weights_in_a_file_get_a_sentence(tmp_path, old, new, sentence):
    from foedus.app.experiment import file
    from foedus.app.experiment.plan import Plan

    (tmp_path / "study.toml").write_text(BY_ROWS.replace(old, new))
    with pytest.raises(fd.FoedusError, match=sentence):
        Plan.of(file.load(tmp_path / "study.toml").cases[0].settings)


def test_weights_by_site_in_a_file_reach_the_sites(tmp_path):
    table = "weights = { city = 1.0, lakeside = 2.0, st-mary = 0.5, valley = 1.5 }"
    ward = UnevenWard(tmp_path, BY_ROWS.replace('weights = "rows"', table))
    result = ward.play()
    setup = build.build(ward.case.settings, ward.cohort)
    run = fd.solve(setup.problem, setup.algorithm)
    np.testing.assert_allclose(result.conclusion.w, run.w, atol=1e-9)
