"""Held-out figures as masked sums: those of plain sums, nothing of a single site, and servers that lie."""

import re
from dataclasses import replace
from fractions import Fraction

import jax
import numpy as np
import pytest
from evaluated_wards import simulated
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_wards import HELD, SECURE, MaskedWard, kept_out, rows
from wards import FREE, QUICK

import foedus as fd
from foedus.app.experiment import build, figures
from foedus.app.report import card
from foedus.app.report import evidence as pages
from foedus.base.errors import FoedusError
from foedus.data.holdout import split_cohort
from foedus.federation import packing
from foedus.federation.exchange import Missing, Paused
from foedus.federation.order import Result
from foedus.federation.play import play
from foedus.federation.policy import Policy
from foedus.statistics import rates, umbrella
from foedus.statistics.evaluate import Evaluation, evaluation_of, here
from foedus.statistics.figures import ALL_ROWS
from foedus.statistics.questions import FiguresQuestion
from foedus.statistics.tally import Rule, is_count, shapes, tally
from foedus.sums.fixed_point import MOST_TERMS, exact
from foedus.sums.messages import MaskedVector, MaskOrder
from foedus.sums.questions import Coding, Form

pytest.importorskip("cryptography")
OVER_FLARE = HELD.replace("[run]\n", '[run]\nruntime = { name = "flare", secure = true }\n')


def near(one: Evaluation, other: Evaluation) -> None:
    """The same figures over all rows: rates and areas, which are counts, to the bit, and means to rounding."""
    assert one.overall.keys() == other.overall.keys()
    for name in one.overall:
        mine, theirs = vars(one[name]), vars(other[name])
        if name in ("accuracy", "miss_rate", "false_alarms", "auc"):
            assert mine == theirs, name
        np.testing.assert_allclose(list(mine.values()), list(theirs.values()), rtol=1e-9, atol=1e-12)
    assert one.auc_error == other.auc_error


def test_the_figures_are_those_of_plain_sums_and_name_no_site(tmp_path):
    ward = MaskedWard(tmp_path)
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.evaluation is not None
    figures = Evaluation.from_json(result.evaluation)
    near(figures, simulated(ward, result.conclusion.w))
    assert (figures.sites, figures.rows) == ({}, None)
    assert "squares" not in {packing.unseal(raw)[0]["ask"] for raw in ward.heard}  # nothing is asked about columns
    question, answers, arrays = ward.answers(result.conclusion.w)
    # the simulator's integers, to the bit
    joint = evaluation_of(here(arrays, secure=True), question.terms, result.conclusion.w, groups=("F", "M"))
    assert figures == joint
    assert joint.groups.keys() == {"F", "M"}
    numbers = {n.tobytes() for own in answers.values() for value in own.values() for n in value.ravel()[:, None]}
    coding = Coding.of(question.form, len(ward.names))
    words = {w.tobytes() for own in answers.values() for w in coding.words_of(own) if w}
    for raw in ward.heard:
        header, content = packing.unseal(raw)
        if header["ask"] == "evaluate":
            vector = MaskedVector.from_bytes(content).words
            assert not (numbers | words) - {bytes(8)} & {vector[k : k + 8] for k in range(0, len(vector), 8)}


@pytest.mark.parametrize("text", [SECURE, OVER_FLARE], ids=["here", "flare"])
@pytest.mark.slow
def test_an_experiment_with_all_files_in_one_place_shows_the_same_figures(tmp_path, text):
    if text == OVER_FLARE:
        pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")
    ward = MaskedWard(tmp_path, text)
    cohort, kept_out = split_cohort(ward.cohort, ward.shares)
    setup = replace(build.build(ward.case.settings, cohort), kept_out=kept_out)
    run = fd.solve(setup.problem, setup.algorithm, max_rounds=2, secure=True)
    figures.add(run, setup)
    assert run.evaluation is not None
    result = ward.play()
    np.testing.assert_allclose(result.conclusion.w, run.w, rtol=0, atol=1e-10)
    near(run.evaluation, Evaluation.from_json(result.evaluation))
    assert run.evaluation.sites == {}


def test_a_site_whose_policy_allows_masked_sums_alone_evaluates_under_masks_alone(tmp_path):
    only = Policy(**FREE, secure=True, secure_min=3)
    with pytest.raises(Missing, match="lets exact replies leave as masked sums alone"):
        MaskedWard(tmp_path, HELD, only).play()
    assert MaskedWard(tmp_path, SECURE, only).play().evaluation is not None
    never = Policy(**FREE, secure_min=3, evaluate=False)
    with pytest.raises(Missing, match=r"its policy \(evaluate\) lets no figures"):
        MaskedWard(tmp_path, SECURE, never).play()


class Liar(MaskedWard):
    """A ward whose server changes the messages of the evaluation, and notes what the first site says to them."""

    def __init__(self, folder, change):
        super().__init__(folder)
        self.change, self.sentences = change, []

    def ask(self, messages, timeout):
        forged = {}
        for name, message in messages.items():
            header, payload = packing.unseal(message)
            if header.get("ask") == "evaluate" and name == self.names[0]:
                header, payload = self.change(header, payload)
            forged[name] = packing.seal(header, payload)
        replies = super().ask(forged, timeout)
        if (first := replies.get(self.names[0])) is not None:
            header = packing.unseal(first)[0]
            if header["ask"] == "evaluate" and header["code"] != "ok":
                self.sentences.append((header["code"], header["sentence"]))
        return replies


def _order(header, **more):
    order = MaskOrder.from_bytes(bytes.fromhex(header["mask"]))
    return header | {"mask": MaskOrder(**vars(order) | more).to_bytes().hex()}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h, p: ({k: v for k, v in h.items() if k != "mask"}, p), "in no form that it knows"),
        (lambda h, p: (_order(h, round=0), p), "the sum is of another round than the message"),
        (lambda h, p: (_order(h, sites=MaskOrder.from_bytes(bytes.fromhex(h["mask"])).sites[:3]), p), "over all sites"),
        (lambda h, p: (h, np.full(10, np.nan).tobytes()), "no message of the server holds a model"),
    ],
    ids=["no masks", "another round", "fewer sites", "nan"],
)  # fmt: skip
def test_a_site_sends_its_tally_under_the_masks_of_this_sum_alone(tmp_path, change, sentence):
    ward = Liar(tmp_path, change)
    with pytest.raises((Paused, Missing), match=f"client {ward.names[0]!r}"):
        ward.play()
    assert ward.sentences
    assert all(re.search(sentence, said) for _, said in ward.sentences)


def test_a_second_model_is_refused_and_the_same_one_gets_the_same_bytes(tmp_path):
    ward = MaskedWard(tmp_path)
    request, real, answers = ward.request(), ward.ask, []

    def ask(messages, timeout):
        replies = real(messages, timeout)
        for name in ward.names[:1]:
            header, payload = packing.unseal(messages.get(name, packing.seal({})))
            if header.get("ask") == "evaluate":
                other = np.full(10, 1e-9).tobytes()
                answers.append(replies[name] == ward.site[name].answer(messages[name]))
                for one in (header, _order(header, attempt=1), _order(header, round=4)):
                    answers.append(packing.unseal(ward.site[name].answer(packing.seal(one, other)))[0]["sentence"])
                threshold = packing.seal(header | {"cut": 0.5}, payload)
                answers.append(packing.unseal(ward.site[name].answer(threshold))[0]["sentence"])
        return replies

    assert play(request, tmp_path / "server", ask, QUICK, ward.notes.append, lambda: False).evaluation
    assert answers == [
        True,
        *["in a checked run no message of the server holds a model: it follows from the sums"] * 3,
        "it answers one question about a model in a run, and was asked another",
    ]


def test_a_site_that_vanishes_after_masking_is_in_the_figures(tmp_path):
    ward = MaskedWard(tmp_path)
    request, real, has_masked = ward.request(), ward.ask, []

    def ask(messages, timeout):
        replies = dict(real(messages, timeout))
        kind = packing.unseal(next(iter(messages.values())))[0]["ask"]
        if kind == "evaluate":
            has_masked.append(kind)
        if has_masked and kind in ("reveal", "end"):
            replies.pop(ward.names[1], None)
        return replies

    result = play(request, tmp_path / "server", ask, QUICK, ward.notes.append, lambda: False)
    figures = Evaluation.from_json(result.evaluation)
    assert figures.total == sum(round(0.3 * 60) for _ in ward.names)


def test_a_site_that_is_silent_in_the_evaluation_pauses_the_run_which_can_be_resumed(tmp_path):
    ward = MaskedWard(tmp_path)
    request, real = ward.request(), ward.ask

    def ask(messages, timeout):
        replies = dict(real(messages, timeout))
        if packing.unseal(next(iter(messages.values())))[0]["ask"] == "evaluate":
            replies.pop(ward.names[1], None)
        return replies

    with pytest.raises(Paused, match=f"client {ward.names[1]!r} does not answer in round 3"):
        play(request, tmp_path / "server", ask, QUICK, ward.notes.append, lambda: False)
    result = ward.play()
    near(Evaluation.from_json(result.evaluation), simulated(ward, result.conclusion.w))


def test_figures_that_are_not_finite_leave_the_run_without_an_evaluation(tmp_path, monkeypatch):
    ward, real = MaskedWard(tmp_path), FiguresQuestion.answer
    broken = [True]

    def answer(self, data):
        own = real(self, data)
        return own | {"loss": own["loss"] * np.nan} if broken and broken.pop() else own

    monkeypatch.setattr(FiguresQuestion, "answer", answer)
    result = ward.play()
    assert result.evaluation is None
    assert np.all(np.isfinite(result.conclusion.w))
    assert "the model is not evaluated: 1 of the sites have figures that are not finite." in ward.notes


# --- the arithmetic ---


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1, max_size=20
    )
)
def test_the_exact_form_adds_up_every_float_as_fractions_do(values):
    point = exact(len(values))
    words = [point.encode(np.array(row)) for row in values]
    assert sum(int(clip_count) for _, clip_count in words) == 0
    total = point.decode(sum(row for row, _ in words))
    for mine, column in zip(total, zip(*values, strict=True), strict=True):
        whole = sum(map(Fraction, column))
        try:
            assert mine == float(whole)
        except OverflowError:
            assert mine == (np.inf if whole > 0 else -np.inf)


def test_whole_numbers_beyond_a_floats_digits_are_added_up_exactly():
    coding = Coding.of(Form({"cells": jax.ShapeDtypeStruct((2,), int)}), MOST_TERMS)
    one = np.array([2**48 - 1, -(2**48) + 1])
    total, clip_count, broken = coding.tree_of(MOST_TERMS * coding.words_of({"cells": one}))
    assert (total["cells"].tolist(), clip_count, broken) == ([MOST_TERMS * int(n) for n in one], 0, 0)
    assert coding.tree_of(coding.words_of({"cells": np.array([2**62, 0])}))[1] == 1


@pytest.mark.parametrize("kind", ["logistic", "least_squares"])
def test_in_python_the_figures_are_those_of_plain_sums(kind):
    draw = np.random.default_rng(1)
    caps = [
        fd.constraints.LossCap(at_most=0.9, where=fd.group(0)),
        fd.constraints.LossGap(fd.group(0), fd.group(1), at_most=0.5),
    ]
    wide = [fd.constraints.LossCap(at_most=0.9, where=fd.group(1), scope="coupled")]
    problem = fd.Problem(
        {s: rows(draw, 40, kind) for s in "abcd"}, loss=getattr(fd.losses, kind), constraints=[*caps, *wide]
    )
    new = {s: rows(draw, 150, kind) for s in "abcd"}
    w = np.array([0.8, 0.2]) if kind == "logistic" else np.array([9e4, 4.1e5])
    plain, masked = fd.evaluate(problem, w, new), fd.evaluate(problem, w, new, secure=True)
    near(masked, plain)
    assert masked.sites == {}
    expected = [t for t in plain.terms if t.site in (ALL_ROWS, "all sites")]
    assert [(t.site, t.constraint, t.cap) for t in masked.terms] == [(t.site, t.constraint, t.cap) for t in expected]
    assert {t.site for t in masked.terms} == {ALL_ROWS, "all sites"}
    for mine, theirs in zip(masked.terms, expected, strict=True):
        np.testing.assert_allclose(list(vars(mine.figure).values()), list(vars(theirs.figure).values()), rtol=1e-9)
    assert ALL_ROWS in str(masked)
    assert "a  " not in str(masked)
    assert masked.overall == plain.overall  # to the bit
    total = tally(problem.terms, w, tuple(np.concatenate(part) for part in zip(*new.values(), strict=True)), Rule())
    joint = here(new, secure=True).total(FiguresQuestion(problem.terms, w))
    for name in shapes(problem.terms):
        np.testing.assert_allclose(joint[name], total[name], rtol=1e-12)
        if is_count(name):
            assert np.array_equal(joint[name], total[name])


def test_few_sites_and_broken_sums_are_refused(monkeypatch):
    draw = np.random.default_rng(2)
    sites = {s: rows(draw, 30, "logistic")[:2] for s in "abc"}
    problem = fd.Problem(sites, loss=fd.losses.logistic)
    with pytest.raises(FoedusError, match=r"need at least 4 sites.*Got 3 instead"):
        fd.evaluate(problem, np.zeros(2), sites, secure=True)
    question, four = FiguresQuestion(problem.terms, np.zeros(2)), dict.fromkeys("abcd", sites["a"])
    total = here(four, secure=True).total(question)
    for name, value, sentence in (("outcomes", -1, "a negative count"), ("loss", np.nan, "NaN or inf")):
        with pytest.raises(FoedusError, match=sentence):
            question.check(total | {name: total[name] * 0 + value})
    monkeypatch.setattr(FiguresQuestion, "answer", lambda self, data: total | {"loss": total["loss"] * np.inf})
    with pytest.raises(FoedusError, match="4 of the sites have figures that are not finite"):
        here(four, secure=True).total(question)


def test_pages_show_the_figures_over_all_rows():
    draw = np.random.default_rng(3)
    sites = {s: rows(draw, 80, "logistic") for s in ("north", "south", "east", "west")}
    loose, tight = (fd.constraints.LossCap(at_most=cap, where=fd.group(0)) for cap in (5.0, 0.01))
    run = fd.solve(fd.Problem(sites, loss=fd.losses.logistic), fd.FedAvg(), max_rounds=2)
    for terms, words in (
        ([loose], "Every constraint holds on these rows too, over all sites (single ones are not seen)"),
        ([loose, tight], "Not every constraint holds on these rows: "),
    ):
        problem = fd.Problem(sites, loss=fd.losses.logistic, constraints=terms)
        run.evaluations["held-out rows"] = fd.evaluate(problem, run.w, sites, secure=True, source="held-out rows")
        first = " ".join(pages.sentences(run))
        assert words in first
        assert "over all rows" in first or len(terms) == 1
        for text in (pages.section(run), "\n".join(card._evidence(run)), first):
            assert not any(name in text for name in sites)
        assert "all rows" in pages.section(run)
        assert "| all rows | 320 |" in "\n".join(card._evidence(run))


# --- thresholds ---


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_from_sums_is_that_of_the_umbrella_rule_on_the_sites_counts(seed):
    arrays, w = kept_out(seed=seed), np.ones(1)
    terms = [rates.MissRate(0.1), rates.FalseAlarmRate(0.4)]
    plain, masked = (rates.decide(here(arrays, secure=secure), terms, w) for secure in (False, True))
    assert masked.cut == plain.cut
    for mine, theirs in zip(masked.terms, plain.terms, strict=True):
        assert (mine.cut, mine.holds) == (theirs.cut, theirs.holds)
        assert mine.sites == (ALL_ROWS,)
        assert (mine.rows, mine.wrong, mine.allowed) == tuple(
            (sum(figure),) for figure in (theirs.rows, theirs.wrong, theirs.allowed)
        )
    for term, record in zip(terms, plain.terms, strict=True):
        scores = {s: rates.scores_for(term, X[:, 0], y) for s, (X, y) in arrays.items()}
        rule = umbrella.calibrate(scores, term.at_most, term.confidence)
        assert record.cut == (rule.cut if term.positive else umbrella.STEP - rule.cut)
        assert (record.sites, record.rows, record.wrong) == (rule.sites, rule.held_out, rule.missed)
        assert record.allowed == tuple(rank - 1 for rank in rule.ranks)


def test_a_secure_run_with_a_term_on_a_rate_names_no_site(tmp_path):
    term = '[[constraints]]\ntype = "MissRate"\nat_most = 0.5\nconfidence = 0.6\n'
    ward = MaskedWard(tmp_path, SECURE + term)
    cohort, kept = split_cohort(ward.cohort, ward.shares)
    figures.check_counts(ward.case.settings, kept)
    setup = replace(build.build(ward.case.settings, cohort), kept_out=kept)
    decision = figures.decision_of(figures.rates_of(ward.case.settings), setup, kept, np.zeros(10))
    assert decision is not None
    assert [record.sites for record in decision.terms] == [(ALL_ROWS,)]
    strict = replace(figures.rates_of(ward.case.settings)[0], at_most=0.001)
    with pytest.raises(FoedusError, match=r"^4 of the sites keep fewer than \d+ positives out of training") as no:
        rates.check_sums(strict, dict.fromkeys(ward.names, 20))
    assert not any(name in str(no.value) for name in ward.names)
