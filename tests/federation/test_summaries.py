"""Standard errors over messages and under masks: the same table as in a simulation, where the plan has named it."""

from dataclasses import replace

import numpy as np
import pytest
from masked_wards import POLICY
from uneven_wards import BY_ROWS, SECURE, UnevenMaskedWard, UnevenWard

import foedus as fd
from foedus.app.experiment import build, figures, file, remote
from foedus.federation import packing
from foedus.federation.exchange import Missing, Paused
from foedus.federation.order import Result
from foedus.federation.policy import Policy
from foedus.federation.server import ServerSession
from foedus.statistics import sandwich

EXACT = 'name = "InteriorPoint"\neps1 = 1e-10'
PLAIN = BY_ROWS.replace('name = "InteriorPoint"', EXACT)
CLUSTERED = 'errors = "cluster"\ncluster = "previous_stays"\n'


def asking(text: str, errors: str) -> str:
    return f"{text}[summary]\n" + (CLUSTERED if errors == "cluster" else f'errors = "{errors}"\n')


def submitted(ward) -> fd.Run:
    request, result = ward.request(), Result.from_bytes(ward.play().to_bytes())
    rules = remote.Preprocessing.from_json(result.rules)
    return remote.run_of(request.plan, rules, result, request)


def simulated(ward) -> fd.Run:
    setup = build.build(ward.case.settings, ward.cohort)
    run = fd.solve(setup.problem, setup.algorithm)
    run.coefficients = figures.coefficients_of(run, setup)
    return run


def same(one: fd.Run, other: fd.Run) -> None:
    mine, theirs = one.summary(), other.summary()
    size = max(row.error for row in theirs.rows)
    for name in ("value", "error"):
        a, b = ([getattr(row, name) for row in table.rows] for table in (mine, theirs))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * size)
    assert mine.figures.deviance == pytest.approx(theirs.figures.deviance, rel=1e-9)
    assert (mine.errors, mine.clusters) == (theirs.errors, theirs.clusters)


@pytest.mark.parametrize(
    "errors", ["hessian", pytest.param("HC3", marks=pytest.mark.slow), pytest.param("cluster", marks=pytest.mark.slow)]
)
def test_a_submitted_run_has_the_table_of_a_simulation(tmp_path, errors):
    ward = UnevenWard(tmp_path, asking(PLAIN, errors))
    run = submitted(ward)
    same(run, simulated(ward))
    assert str(run.coefficients) in str(run)
    again = fd.load(run.save(tmp_path / "kept"))
    assert again.summary() == run.coefficients
    asked = [header for header, _ in map(packing.unseal, ward.heard) if header["ask"] == "errors"]
    assert len(asked) == len(ward.names) * (2 if errors == "HC3" else 1)


@pytest.mark.parametrize("errors", ["HC0", "HC2"])
def test_under_masks_the_table_is_the_same(tmp_path, errors):
    pytest.importorskip("cryptography")
    text = asking(SECURE.replace('name = "InteriorPoint"', EXACT), errors)
    ward = UnevenMaskedWard(tmp_path, text, POLICY)
    same(submitted(ward), simulated(ward))


def test_a_site_answers_no_question_about_errors_that_its_plan_does_not_name(tmp_path, monkeypatch):
    honest = ServerSession._finish

    def asks_for_more(session, *arguments):
        session.order = replace(session.order, summary="HC0")
        return honest(session, *arguments)

    ward = UnevenWard(tmp_path, PLAIN)
    monkeypatch.setattr(ServerSession, "_finish", asks_for_more)
    with pytest.raises((Missing, Paused)):
        ward.play()
    assert any("the plan of this run does not name" in note for note in ward.notes)


def test_a_bread_without_a_sites_own_part_is_refused(tmp_path, monkeypatch):
    """With a small bread the row of the largest leverage would outweigh all others in the sum."""
    honest = sandwich.Sandwich

    def smaller(terms, w, nu, errors, bread=None):
        return honest(terms, w, nu, errors, None if bread is None else 0.2 * bread)

    ward = UnevenWard(tmp_path, asking(PLAIN, "HC3"))
    monkeypatch.setattr(sandwich, "Sandwich", smaller)
    with pytest.raises((Missing, Paused)):
        ward.play()
    assert any("does not hold this site's own part" in note for note in ward.notes)


def _share(note: str) -> float:
    return float(note.split("share of ")[1].partition(". ")[0].rstrip("."))


def test_where_a_policy_limits_answers_those_of_a_summary_count(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    plain = UnevenWard(tmp_path / "a", PLAIN, Policy(min_subset=1, ranges=True, max_answers=200.0))
    plain.play()
    shares = [note for note in plain.notes if note.startswith("Numbers: ")]
    asked = UnevenWard(tmp_path / "b", asking(PLAIN, "HC3"), Policy(min_subset=1, ranges=True, max_answers=200.0))
    asked.play()
    more = [note for note in asked.notes if note.startswith("Numbers: ")]
    assert shares
    assert all(_share(b) > _share(a) for a, b in zip(shares, more, strict=True))


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ('errors = "HC4"', r"\[summary\] errors must be one of"),
        ('errors = "cluster"', "go together"),
        ('cluster = "ward"\nerrors = "HC1"', "go together"),
        ('errors = "hessian"\n[privacy]\nepsilon = 1.0', r"\[summary\]: the sites would send exact sums"),
    ],
)
def test_a_wrong_section_gets_a_sentence(tmp_path, section, sentence):
    (tmp_path / "study.toml").write_text(f"{PLAIN}[summary]\n{section}\n")
    with pytest.raises(fd.FoedusError, match=sentence):
        file.load(tmp_path / "study.toml")


def test_a_loss_without_a_likelihood_is_refused_before_any_data_are_read(tmp_path):
    text = asking(PLAIN, "hessian").replace('loss = "logistic"', 'loss = "smooth_hinge"')
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(fd.FoedusError, match=r"\[summary\]: SmoothHinge is no likelihood"):
        file.load(tmp_path / "study.toml")
