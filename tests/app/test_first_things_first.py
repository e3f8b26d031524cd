"""A report says first what matters: figures on new rows, whether constraints hold there, then training."""

import dataclasses
import math
import re

import numpy as np
import pytest
import runs
from page_reader import Reader

import foedus as fd
from foedus.app.report import card, cohort, evidence, html, words
from foedus.data.baseline import ALL, FEW, baseline
from foedus.data.columns import Words
from foedus.data.sites import Cohort, Roles
from foedus.data.tables import Table
from foedus.statistics.evaluate import HELD_OUT, Evaluation
from foedus.statistics.figures import TermFigure
from foedus.statistics.intervals import Figure
from foedus.statistics.rates import Decision, RateRecord


def evaluated(*losses: tuple[float, float, float]) -> fd.Run:
    """A certified run whose capped loss has these values and intervals at its sites on new rows."""
    run = runs.certified()
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.5)
    problem = fd.Problem(runs.sites(), loss=fd.losses.logistic, where=fd.label(0), constraints=[cap])
    figures = fd.evaluate(problem, np.asarray(run.w), runs.sites(), source=HELD_OUT)
    terms = tuple(
        TermFigure(site, "loss on label 1", 0.5, Figure(*loss, 100))
        for site, loss in zip(run.names, losses, strict=True)
    )
    return dataclasses.replace(run, evaluations={HELD_OUT: dataclasses.replace(figures, terms=terms)})


HOLDS, OPEN, BROKEN = (0.3, 0.2, 0.4), (0.45, 0.4, 0.6), (0.8, 0.7, 0.9)


@pytest.mark.parametrize(
    ("losses", "level", "title"),
    [
        ((HOLDS, HOLDS, HOLDS), "good", "Certified, and confirmed on new rows"),
        ((HOLDS, OPEN, HOLDS), "training", "Certified in training, not confirmed on new rows"),
        ((HOLDS, HOLDS, BROKEN), "training", "Certified in training, not confirmed on new rows"),
    ],
)
def test_the_seal_says_whether_new_rows_confirm_the_certificate(losses, level: str, title: str):
    run = evaluated(*losses)
    head = evidence.head(run)
    assert (head.level, head.title) == (level, title)
    page = html.page({"a": run}, {})
    assert f'class="hero {level}"' in page
    assert ('class="open"' in page) is (level == "training")  # the broken ring of the second seal
    assert title in card.card("a", run)


def test_no_seal_is_whole_where_nothing_was_measured_on_new_rows():
    head = evidence.head(runs.certified())
    assert (head.level, head.title) == ("training", "Certified in training, not measured on new rows")
    assert "holdout = 0.2" in head.advice[0]
    assert evidence.head(runs.unconstrained()["FedAvg"]).title == words.verdict(runs.unconstrained()["FedAvg"]).title


def test_a_constraint_that_new_rows_do_not_speak_of_is_not_confirmed():
    run = evaluated(HOLDS, HOLDS, HOLDS)
    rows = (*run.certificate.rows, dataclasses.replace(run.certificate.rows[0], constraint="another"))
    more = dataclasses.replace(run, certificate=dataclasses.replace(run.certificate, rows=rows))
    assert not evidence.confirmed(more)


def test_new_rows_come_before_training_and_the_gap_is_a_footnote():
    run = evaluated(HOLDS, HOLDS, BROKEN)
    text = Reader(html.page({"a": run}, {})).text
    order = ["On 36 rows that took no part in training: sensitivity", "Not every constraint holds on these rows"]
    order += ["In training every constraint holds at every site", "binding", "It is optimal: no small change"]
    order += ["above the best possible objective", "Constraints on new rows"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert evidence.head(run).footnotes[0].endswith("(an estimate).")
    far = dataclasses.replace(run, certificate=dataclasses.replace(run.certificate, gap=0.1 * run.objective))
    assert not evidence.head(far).footnotes  # a gap that matters is a sentence
    assert any("above the best possible objective" in one for one in evidence.head(far).sentences)


def test_a_broken_run_says_first_what_is_broken():
    head = evidence.head(runs.infeasible())
    assert head.level == "bad"
    assert head.sentences[0].startswith("Loss on label 1 is ")
    assert "above the cap of 0.5; constraints are violated at 3 of 3 sites" in head.sentences[0]


def test_a_bound_on_a_rate_is_a_guarantee_and_is_called_one():
    plain = runs.unconstrained()["FedAvg"]
    record = RateRecord("MissRate", 0.3, 0.8, -0.4, tuple(plain.names), (40, 40, 40), (3, 2, 1), (4, 4, 4))
    run = dataclasses.replace(plain, converged=True, decision=Decision(-0.4, (record,), 3, 10, 10))
    text = Reader(html.page({"a": run}, {})).text
    for said in ("Certified in training", "Miss rate at most 0.3 with confidence 0.8, at every site.", "40.1 %"):
        assert said in text
    for page in (text, card.card("a", run)):
        assert "No constraints were set" not in page
        assert "No promise is made" not in page


def test_charts_for_developers_are_folded_away():
    run = runs.certified()
    history = run.history | {"barrier": np.geomspace(1, 1e-9, run.rounds), "step": np.linspace(0, 1, run.rounds)}
    page = html.page({"a": dataclasses.replace(run, history=history)}, {})
    before, _, after = page.partition("For developers")
    assert 'data-chart="objective"' in before
    assert 'data-chart="barrier"' not in before
    assert 'data-chart="barrier"' in after
    assert 'data-chart="step"' in after


def test_curves_and_subgroups_are_drawn():
    run = evaluated(HOLDS, HOLDS, HOLDS)
    problem = fd.Problem(runs.sites(), loss=fd.losses.logistic)
    rows = {name: (X, y, (np.arange(len(y)) % 2).astype(float)) for name, (X, y) in runs.sites().items()}
    figures = fd.evaluate(problem, np.asarray(run.w), rows, source=HELD_OUT, groups=("F", "M"))
    text = html.page({"a": dataclasses.replace(run, evaluations={HELD_OUT: figures})}, {})
    page = Reader(text)
    assert page.open == []
    for said in ("ROC curve", "Decision curve", "Calibration", "Subgroups", "PPV", "NPV", "Calibration slope"):
        assert said in page.text
    assert page.text.index("Sensitivity") < page.text.index("Brier score")
    assert "| group | rows | Sensitivity |" in card.card("a", dataclasses.replace(run, evaluations={HELD_OUT: figures}))


def table(ages: list[float], words: list[str], label: list[str]) -> Table:
    columns = {"age": np.array(ages), "ward": Words.of(words), "ill": Words.of(label)}
    return Table("a table", columns, np.arange(len(ages)))


def cohort_of(**tables: Table) -> Cohort:
    roles = Roles("ill", "yes")
    return Cohort(tables, roles, ("age", "ward"), frozenset({"ward"}), ("no", "yes"), (), dropped={"north": 2})


def test_table_one_has_counts_means_and_deviations_and_hides_small_cells():
    draw = np.random.default_rng(0)
    ages = {name: draw.normal(60, 10, 40).tolist() for name in ("north", "south")}
    ages["south"][:6] = [np.nan] * 6
    north = table(ages["north"], ["a"] * 30 + ["b"] * 10, ["no"] * 20 + ["yes"] * 20)
    south = table(ages["south"], ["a"] * 37 + ["b"] * 3, ["no"] * 25 + ["yes"] * 15)
    content = baseline(cohort_of(north=north, south=south), {"north": 8, "south": 0})
    assert content["sites"] == ["north", "south", ALL]
    lines = {title: cells for title, *cells in content["lines"]}
    assert lines["Rows"] == ["40", "40", "80"]
    assert lines["of these held out to evaluate the model"] == ["8", "0", "8"]
    assert lines["Left out before: a value is missing"] == ["2", "0", "2"]
    assert lines["ill = yes"] == ["20 (50.0 %)", "15 (37.5 %)", "35 (43.8 %)"]
    assert lines["ward = b"] == ["10 (25.0 %)", FEW, FEW]
    assert lines["ward = a"] == ["30 (75.0 %)", FEW, FEW]  # the other level would tell
    mean, deviation = np.mean(ages["north"]), np.std(ages["north"], ddof=1)
    assert lines["age, mean (SD)"][0] == f"{mean:.4g} ({deviation:.4g})"
    pooled = np.array([*ages["north"], *ages["south"]])
    assert lines["age, mean (SD)"][2] == f"{np.nanmean(pooled):.4g} ({np.nanstd(pooled, ddof=1):.4g})"
    assert lines["age, missing"] == ["0 (0.0 %)", "6 (15.0 %)", "6 (7.5 %)"]
    page = Reader(cohort.section({"cohort": content}))
    assert page.open == []
    assert "too few" in page.text
    assert cohort.section({}) == ""


def test_evaluations_of_many_sites_keep_their_names_escaped():
    run = evaluated(HOLDS, HOLDS, HOLDS)
    assert isinstance(run.evaluation, Evaluation)
    text = html.page({"a": run}, {})
    assert runs.NASTY in Reader(text).text
    assert runs.NASTY not in text


@pytest.mark.parametrize("change", [{"kind": "saddle point"}, {"kind": "maximum"}, {"gap": None}, {"gap": math.inf}])
def test_a_point_of_the_first_order_is_called_optimal_only_where_the_curvature_says_a_minimum(change):
    run = runs.certified()
    assert any("It is optimal" in text for text in words.verdict(run).sentences)
    other = dataclasses.replace(run, certificate=dataclasses.replace(run.certificate, **change))
    sentences = " ".join(words.verdict(other).sentences)
    assert "It is optimal" not in sentences
    assert "first-order conditions of optimality" in sentences


def test_nobody_is_sent_to_the_algorithm_that_has_just_failed():
    run = runs.unconstrained()["FedAvg"]
    assert "auto" in words.verdict(run).advice[0]
    interior = dataclasses.replace(run, settings=run.settings | {"algorithm": {"name": "InteriorPoint"}})
    assert words.verdict(interior).advice == ("Allow more rounds.",)


PLURAL_OF_ONE = (
    r"(?<![\d.,])1 (rounds|iterations|sites|clients|constraints|caps|runs|rows|columns|releases|steps|seeds)\b"
)


@pytest.mark.parametrize("algorithm", [fd.InteriorPoint(), fd.FedAvg(lr=0.5), fd.ProxAL()])
def test_one_of_a_thing_is_not_written_in_the_plural(algorithm):
    x, y = runs.sites(("only",))["only"]
    caps = [] if isinstance(algorithm, fd.FedAvg) else [fd.constraints.LossCap(fd.label(1), at_most=0.6)]
    problem = fd.Problem({"only": (x, y)}, loss=fd.losses.logistic, constraints=caps)
    run = fd.solve(problem, algorithm, seed=0, max_rounds=1)
    run = dataclasses.replace(
        run, evaluations={HELD_OUT: fd.evaluate(problem, np.asarray(run.w), {"only": (x[:1], y[:1])})}
    )
    for text in (html.page({"a": run}, {}), card.card("a", run), str(run), str(run.evaluation)):
        assert not re.search(PLURAL_OF_ONE, Reader(text).text if text.startswith("<!") else text)
