"""The ledger counts what was released, adds it up as dp-accounting does, and a budget ends a client's part."""

import numpy as np
import pytest
from cases import DIM, NAMES, problem

import foedus as fd
from foedus.privacy.beside_training import with_preparation
from foedus.privacy.composition import total

LAPLACE = fd.Laplace(epsilon=0.5, clip=1.0)
GAUSSIAN = fd.Gaussian(epsilon=0.5, delta=1e-6, clip=1.0)
ONE_STEP = fd.FedAvg(k0=1, lr=0.1)


def solved(noise=LAPLACE, **more):
    arguments = {"max_rounds": 6} | more
    return fd.solve(problem("logistic"), ONE_STEP, privacy=noise, **arguments)


def test_every_release_is_entered_with_its_sensitivity_and_scale():
    plan = np.zeros((3, len(NAMES)), bool)
    plan[0], plan[1, [0, 2]], plan[2, 4] = True, True, True
    run = solved(participation=plan, max_rounds=3)
    np.testing.assert_array_equal(run.ledger.scale > 0, plan)
    np.testing.assert_array_equal(run.ledger.releases, plan.sum(axis=0))
    entries = run.ledger.entries("c")
    assert [(e.round, e.epsilon) for e in entries] == [(1, 0.5), (2, 0.5)]
    # one step of 0.1 on the mean of 15 gradients clipped at 1
    assert entries[0].sensitivity == pytest.approx(0.1 * 2.0 / 15)
    assert entries[0].scale == pytest.approx(0.1 * 2.0 / 15 / 0.5)
    assert len(run.ledger.entries()) == plan.sum()
    assert run.ledger.total("e") == pytest.approx(1.0)
    assert run.ledger.total("b") == pytest.approx(0.5)


def test_a_reply_that_is_lost_has_been_released():
    run = solved(participation=fd.Fraction(1.0, dropout=0.5), max_rounds=6)
    assert np.all(run.ledger.releases == 6)
    assert run.history["answered"].sum() < 6 * len(NAMES)


@pytest.mark.parametrize("neighbours", ["replace", "add-or-remove"])
def test_totals_are_those_of_dp_accounting(neighbours):
    from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NeighboringRelation
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    times = 1.0 if neighbours == "replace" else 0.5
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE  # a pair of distributions; the sensitivity is in the multiplier
    laplace = solved().ledger
    assert laplace.total(0, "basic", neighbours=neighbours) == pytest.approx(6 * 0.5 * times)
    events = {"laplace": (laplace, LaplaceDpEvent(2.0 / times)), "gaussian": (solved(GAUSSIAN).ledger, None)}
    for ledger, event in events.values():
        event = event or GaussianDpEvent(GAUSSIAN.multiplier / times)
        rdp = RdpAccountant(neighboring_relation=relation).compose(event, 6).get_epsilon(1e-5)
        pld = PLDAccountant(relation).compose(event, 6).get_epsilon(1e-5)
        assert ledger.total(0, "rdp", neighbours=neighbours) == pytest.approx(rdp, rel=1e-6)
        # for Laplace noise on vectors a release counts as the worst mechanism of its epsilon
        assert ledger.total(0, "pld", neighbours=neighbours) >= pld * (1 - 1e-6)
        if ledger is not laplace:
            assert ledger.total(0, "pld", neighbours=neighbours) == pytest.approx(pld, rel=1e-6)
    e = 0.5 * times
    advanced = e * np.sqrt(2 * 6 * np.log(1e5)) + 6 * e * np.expm1(e)
    assert laplace.total(0, "advanced", neighbours=neighbours) == pytest.approx(advanced)


def test_no_method_is_below_what_the_releases_really_have():
    """Gaussian releases have an exact curve; composition by any method must not fall below it."""
    exact = total("gaussian", {1.0 / (2.0 * np.sqrt(1 / 16)): 1}, 1e-5, "basic")  # 16 releases at σ = 2 are one at 1/2
    for method in ("basic", "advanced", "rdp", "pld"):
        assert total("gaussian", {0.5: 16}, 1e-5, method) >= exact * (1 - 1e-3)
    assert total("gaussian", {0.5: 16}, 0.0, "rdp") == np.inf
    assert total("laplace", {}, 1e-5, "pld") == 0.0


@pytest.mark.parametrize(
    ("noise", "budget", "most"),
    [
        (LAPLACE, 2.0, 4),
        (LAPLACE, 2.2, 4),
        (LAPLACE, fd.Budget(2.0), 4),
        (fd.Laplace(epsilon=0.5, clip=1.0, most=2), 2.0, 2),
    ],
)
def test_a_budget_ends_a_clients_part(noise, budget, most):
    run = solved(noise, budget=budget, max_rounds=9)
    assert np.all(run.ledger.releases == most)
    assert run.rounds == most
    assert run.reason == "every client's privacy budget is spent"
    assert "have spent their budget" in str(run)
    assert f"budget: {most} releases a client; 5 of 5 clients have spent theirs" in str(run.ledger)


def test_a_budget_by_rdp_allows_more_and_is_kept():
    budget = fd.Budget(2.0, 1e-5, "rdp")
    most = budget.limit(GAUSSIAN).most
    ratio = 1 / GAUSSIAN.multiplier
    assert total("gaussian", {ratio: most}, 1e-5, "rdp") <= 2.0 < total("gaussian", {ratio: most + 1}, 1e-5, "rdp")
    assert most > fd.Budget(2.0, 1e-5).limit(GAUSSIAN).most


def test_a_client_without_budget_sends_nothing_new_while_others_go_on():
    """Client a has taken part in all rounds, the others in every second one."""
    plan = np.ones((8, len(NAMES)), bool)
    plan[1::2, 1:] = False
    run = solved(budget=1.5, participation=plan, max_rounds=8)
    np.testing.assert_array_equal(run.ledger.releases, [3] * len(NAMES))
    assert run.ledger.scale[3, 0] == 0
    assert run.ledger.scale[4, 1] > 0
    assert run.rounds == 5, "the run ends when nobody can speak any more"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fd.Budget(0), "'epsilon' of a Budget must be a number > 0"),
        (lambda: fd.Budget(1.0, 1.0), "'delta' of a Budget must be a number >= 0 and < 1"),
        (lambda: fd.Budget(1.0, composition="magic"), "'basic', 'advanced', 'rdp', 'pld'"),
        (lambda: fd.Budget(0.1).limit(LAPLACE), "one release costs epsilon 0.5"),
        (lambda: fd.Budget(1.0).limit(GAUSSIAN), "needs Budget(delta=...)"),
        (lambda: fd.Budget(1.0, composition="rdp").limit(LAPLACE), "needs Budget(delta=...)"),
        (lambda: solved().ledger.entries("nobody"), "no client 'nobody'"),
        (lambda: solved().ledger.total(0, "magic"), "Got 'replace', 'magic'"),
    ],
)
def test_wrong_budgets_and_questions_get_a_sentence(make, words):
    with pytest.raises(fd.FoedusError) as caught:
        make()
    assert words in str(caught.value)


def test_the_printed_ledger_says_what_it_covers():
    text = str(solved().ledger)
    for words in (
        "replace: one example is replaced by another",
        "basic, leave out",
        "tight, replace",
        "pld, replace",
        "no amplification by sampling is claimed",
        "treated as public",
        "has protected nobody",
        "Laplace noise, gradients clipped at 1 in the 1-norm: epsilon 0.5 a release, for replacing one example",
    ):
        assert words in text


def test_a_ledger_is_kept_with_its_run(tmp_path):
    run = solved()
    again = fd.load(run.save(tmp_path / "run"))
    assert str(again.ledger) == str(run.ledger)
    assert str(again) == str(run)
    np.testing.assert_array_equal(again.ledger.scale, run.ledger.scale)
    assert fd.solve(problem("logistic"), ONE_STEP, max_rounds=2).ledger is None


@pytest.mark.parametrize(
    "noise", [LAPLACE, pytest.param(GAUSSIAN, marks=pytest.mark.slow)], ids=["Laplace", "Gaussian"]
)
def test_what_prepared_the_data_is_entered_and_adds_to_every_total(noise, tmp_path):
    run = solved(noise)
    plain = run.ledger
    figures = (("the number of values of age", 1.0, 8.0), ("the sum of age above 0", 120.0, 960.0))
    run.ledger = with_preparation(plain, figures)
    entries = run.ledger.entries("c")
    assert [e.round for e in entries] == [0, 0, *range(1, 7)]
    assert entries[1].released == "preprocessing: the sum of age above 0"
    assert (entries[1].sensitivity, entries[1].scale, entries[1].epsilon) == (120.0, 960.0, 0.125)
    for neighbours in ("replace", "add-or-remove"):
        for method in ("basic", "advanced", "rdp", "pld"):
            asked = {"method": method, "neighbours": neighbours}
            assert run.ledger.total("c", **asked) == pytest.approx(plain.total("c", **asked) + 0.25)
    assert "epsilon 0.25 of it, by basic composition, went to preparing the data" in str(run)
    assert "epsilon 0.25 of every total went to preparing the data" in str(run.ledger)
    again = fd.load(run.save(tmp_path / "run")).ledger
    assert again.entries() == run.ledger.entries()
    exact = with_preparation(plain, (), ("age", "ward"))
    assert exact.total("c") == plain.total("c")
    assert "NOT covered: to prepare the data, clients sent exact sums, ranges or words of 2 columns" in str(exact)
    assert "exact, and is not covered" in exact.summary()


def test_a_resumed_run_has_the_whole_ledger(tmp_path):
    kept = tmp_path / "run.ckpt"
    first = solved(checkpoint=kept, max_rounds=3)
    second = solved(checkpoint=kept, max_rounds=6)
    assert (len(first.ledger.scale), len(second.ledger.scale)) == (3, 6)
    np.testing.assert_array_equal(second.ledger.scale, solved().ledger.scale)
    np.testing.assert_array_equal(second.w, solved().w)
    assert second.w.shape == (DIM,)
