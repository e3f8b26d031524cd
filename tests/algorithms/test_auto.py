"""solve without an algorithm chooses one that fits, and says which and why."""

import numpy as np
import pytest
from cases import classification, problem

import foedus as fd
from foedus.algorithms.auto import choose


def test_the_choice_solves_the_problem_and_is_named():
    run = fd.solve(problem("logistic"))
    assert run.converged
    assert run.settings["algorithm"]["name"] == "InteriorPoint"
    assert run.reason.endswith("InteriorPoint was chosen because it takes the fewest rounds in the study")


BALL, GROUPS = fd.constraints.NormBall(1.0), fd.regularizers.Group(0.1, (0, 0, 1, -1))
WIDE_GROUP = fd.regularizers.Group(0.1, (0,) * 501)


def wide(columns: int, **terms) -> fd.Problem:
    return fd.Problem([(np.eye(4, columns), np.array([0.0, 1.0, 0.0, 1.0]))] * 2, **terms).over(np.zeros(columns))


def own(w, data):
    return data.mean((data["x"] @ w - data["y"]) ** 2)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (lambda: wide(4, loss=fd.losses.hinge), fd.AFL(theta=0.0, q_hat="uniform")),
        (lambda: wide(501, loss=fd.losses.logistic), fd.InteriorPoint()),
        (lambda: wide(501, objective=own), fd.Scaffold()),
        (lambda: wide(4, loss=fd.losses.logistic, regularizer=GROUPS), fd.ProxAL()),
        (lambda: wide(501, loss=fd.losses.logistic, regularizer=WIDE_GROUP), fd.InexactADMM()),
        (lambda: wide(4, loss=fd.losses.logistic, regularizer=GROUPS, constraints=[BALL]), fd.ProxAL()),
        (lambda: wide(501, loss=fd.losses.logistic, constraints=[BALL]), fd.InteriorPoint()),
        (lambda: wide(200_001, loss=fd.losses.logistic), fd.FedGiA()),
        (lambda: wide(4, loss=fd.losses.logistic, constraints=[BALL]), fd.InteriorPoint()),
    ],
    ids=[
        "hinge",
        "columns",
        "own objective",
        "groups",
        "wide groups",
        "groups, rows",
        "columns, rows",
        "too many",
        "rows",
    ],
)
def test_each_kind_of_problem_gets_an_algorithm_that_fits_it(stated, expected):
    algorithm, why = choose(stated())
    assert algorithm == expected
    assert why
    algorithm.fit(stated())


def test_what_no_algorithm_finishes_is_refused_with_a_sentence():
    with pytest.raises(fd.FoedusError, match="no algorithm takes constraints together with the loss Hinge"):
        fd.solve(wide(4, loss=fd.losses.hinge, constraints=[fd.constraints.NormBall(1.0)]))


def test_with_privacy_the_choice_adds_noise():
    sites = classification()
    run = fd.solve(fd.Problem(sites, loss=fd.losses.logistic), privacy=fd.Local(epsilon=2.0, delta=1e-5), max_rounds=3)
    assert run.settings["algorithm"]["name"] == "FedAvg"
    assert run.ledger is not None


@pytest.mark.parametrize("algorithm", [fd.InteriorPoint(), fd.ProxAL()], ids=["InteriorPoint", "ProxAL"])
@pytest.mark.parametrize("where", ["objective", "row"])
def test_kinks_are_refused_where_second_derivatives_are_needed(algorithm, where):
    """The objective, or a row alone, is a hinge."""
    loss = fd.losses.hinge if where == "objective" else fd.losses.logistic
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.5, loss=fd.losses.hinge)
    stated = wide(4, loss=loss, constraints=[BALL if where == "objective" else cap])
    with pytest.raises(
        fd.FoedusError, match=r"needs second derivatives, and the loss Hinge has kinks; use a smooth loss"
    ):
        algorithm.fit(stated)
