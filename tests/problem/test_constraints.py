"""Constraints: their values are NumPy's, every accepted form means the same, every mistake gets one sentence."""

import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import DIM as QUADRATIC_DIM
from constrained_cases import NAMES, Quadratic

import foedus as fd
from foedus.problem.terms import rows

own = fd.constraints
DIM, SIZES = 4, (6, 9, 8)
W = np.array([0.3, -0.8, 0.5, 0.1])


def site(seed: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, DIM)), np.arange(size) % 2.0, (np.arange(size) // 2) % 2.0


SITES = {name: site(i, size) for i, (name, size) in enumerate(zip(NAMES, SIZES, strict=True))}
SERVER = site(9, 7)


def made(*constraints, **more) -> fd.Problem:
    arguments = {"loss": fd.losses.logistic, "server": SERVER} | more
    return fd.Problem(SITES, constraints=constraints, **arguments)


def values(problem: fd.Problem, which: int = 0) -> np.ndarray:
    """The rows of one of the problem's constraints at W, party by party."""
    constraint = problem.terms.constraints[which]
    parties = [problem.server] if constraint.scope == "global" else [problem.client(i) for i in range(3)]
    return np.stack([rows(problem.terms, constraint, jnp.asarray(W), data) for data in parties])


def loss(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, -(2.0 * y - 1.0) * (X @ W))


# --- values ---


def test_a_cap_and_a_gap_are_of_mean_losses():
    cap = values(made(own.LossCap(fd.label(1), at_most=0.3)))
    expected = [np.mean(loss(X, y)[y == 1]) - 0.3 for X, y, _ in SITES.values()]
    np.testing.assert_allclose(cap[:, 0], expected, rtol=1e-12)
    gap = values(made(own.LossGap(fd.group(0), fd.group(1), at_most=0.1)))
    apart = [np.mean(loss(X, y)[g == 0]) - np.mean(loss(X, y)[g == 1]) for X, y, g in SITES.values()]
    np.testing.assert_allclose(gap, np.stack([apart, np.negative(apart)], axis=1) - 0.1, atol=1e-13)
    X, y, _ = SERVER
    other = made(own.LossCap(lambda d: d["x"][:, 0] > 0, 0.2, loss=fd.losses.least_squares, scope="global"))
    expected = 0.5 * np.mean((X @ W - y)[X[:, 0] > 0] ** 2) - 0.2
    np.testing.assert_allclose(values(other), [[expected]], rtol=1e-12)


def test_each_client_may_have_a_number_of_its_own():
    caps = {name: 0.1 * (i + 1) for i, name in enumerate(NAMES)}
    shared = values(made(own.LossCap(fd.label(1), at_most=0.0)))
    apart = np.array(list(caps.values()))[:, None]
    for given in (caps, list(caps.values()), np.array(list(caps.values()))):
        np.testing.assert_allclose(values(made(own.LossCap(fd.label(1), at_most=given))), shared - apart, rtol=1e-12)
    gaps = values(made(own.LossGap(fd.group(0), fd.group(1), at_most=caps)))
    np.testing.assert_allclose(gaps.sum(axis=1, keepdims=True), -2.0 * apart, rtol=1e-12)
    balls = values(made(own.NormBall(tuple(caps.values()))))
    np.testing.assert_allclose(balls, W @ W - apart**2, rtol=1e-12)


def test_problems_that_differ_only_in_a_cap_have_the_same_terms():
    """So that a run with another cap compiles nothing."""
    for make in (
        lambda cap: own.LossCap(fd.label(1), cap),
        lambda cap: own.LossGap(fd.group(0), fd.group(1), cap),
        lambda cap: own.NormBall(cap, scope="global"),
    ):
        one, other = made(make(0.2)), made(make(0.3))
        assert one.terms == other.terms
        assert hash(one.terms) == hash(other.terms)
        assert make(0.2) != make(0.3), "outside a problem the number is all there is"
        assert values(one)[0, 0] - values(other)[0, 0] == pytest.approx(0.05 if "Ball" in repr(make(1)) else 0.1)


def test_a_ball_is_a_smooth_row_and_a_function_is_taken_as_it_is():
    np.testing.assert_allclose(values(made(own.NormBall(0.5))), [[W @ W - 0.25]] * 3, rtol=1e-12)
    means = values(made(own.Custom(lambda w, d: d.mean(d["x"] @ w))))
    np.testing.assert_allclose(means[:, 0], [np.mean(X @ W) for X, _, _ in SITES.values()], rtol=1e-12)
    matrix = values(made(own.Custom(lambda w, d: jnp.outer(w[:2], w[:2]))))
    np.testing.assert_allclose(matrix, [np.outer(W[:2], W[:2]).ravel()] * 3)


C, D = np.random.default_rng(1).normal(size=(3, 2, DIM)), np.random.default_rng(2).normal(size=(3, 2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((C, D), C @ W - D),
        ((list(C), [list(d) for d in D]), C @ W - D),
        ((dict(zip(NAMES, C, strict=True)), dict(zip(NAMES, D, strict=True))), C @ W - D),
        ((C[0], D[0]), np.tile(C[0] @ W - D[0], (3, 1))),
        ((C[0, 0], 0.7), np.tile(C[0, 0] @ W - 0.7, (3, 1))),
        ((C[0], D), np.tile(C[0] @ W, (3, 1)) - D),
        ((C, D[0]), C @ W - D[0]),
        ((C[:, :1], [1.0, 2.0, 3.0]), C[:, :1] @ W - np.array([[1.0], [2.0], [3.0]])),
        ((C[0, 0], [1.0, 2.0, 3.0]), C[0, 0] @ W - np.array([[1.0], [2.0], [3.0]])),
    ],
    ids=["arrays", "lists", "dicts", "one", "one row", "one C", "one d", "a number each", "one row, a number each"],
)
def test_linear_rows_may_be_given_once_or_for_each_client(given, expected):
    np.testing.assert_allclose(values(made(own.Linear(*given))), expected, atol=1e-13)
    once = made(own.Linear(C[1], D[1], "==", scope="global"))
    np.testing.assert_allclose(values(once), [C[1] @ W - D[1]], atol=1e-13)
    assert once.terms.constraints[0].equality


def test_problems_that_differ_only_in_their_matrices_have_the_same_terms():
    first, second = made(own.Linear(C, D)), made(own.Linear(2.0 * C, D + 1.0))
    assert first.terms == second.terms
    assert hash(first.terms) == hash(second.terms)
    assert made(own.Linear(C, D, "==")).terms != first.terms
    assert made(own.Linear(C, D, scope="coupled")).terms != first.terms


def test_rows_are_counted_by_scope():
    problem = made(
        own.LossGap(fd.group(0), fd.group(1), at_most=0.1),
        own.Linear(C, D, scope="coupled"),
        own.NormBall(1.0, scope="global"),
        own.Custom(lambda w, d: w[:3]),
    )
    assert problem.terms.rows == (5, 1, 2)
    data = problem.client(0)
    labels = [label for c in problem.terms.constraints for label in c.labels(problem.terms, data)]
    assert labels[:2] == ["loss on group 0 − group 1", "loss on group 1 − group 0"]
    assert labels[2:5] == ["linear row 0", "linear row 1", "‖w‖²"]
    assert [c.convex for c in problem.terms.constraints] == [False, True, True, False]
    assert made(own.NormBall(1.0, scope="global"), server=None).terms.rows == (0, 1, 0), "a ball needs no data"


def test_an_objectives_parameters_may_have_another_length_than_a_row_of_x():
    clients = [{"x": X, "y": y} for X, y, _ in SITES.values()]
    problem = fd.Problem(
        clients,
        objective=lambda w, d: d.mean((d["x"] @ w[:DIM] + w[DIM] - d["y"]) ** 2),
        constraints=[own.Linear(np.ones(DIM + 1), 1.0)],
        regularizer=fd.regularizers.Group(0.1, (0, 0, 1, 1, -1)),
    )
    assert problem.over(np.zeros(DIM + 1)).terms.rows == (1, 0, 0)


# --- mistakes ---

logistic = {"loss": fd.losses.logistic}
label, cap = fd.label, own.LossCap


def square(w, d):
    return jnp.sum(w**2)


def solved(*constraints, clients=None, w0=W, **more):
    """A problem with its own objective learns its parameters' shape from w0."""
    held = clients or [{"x": X, "y": y} for X, y, _ in SITES.values()]
    return fd.Problem(held, objective=square, constraints=constraints, **more).over(w0)


MISTAKES = {
    "scope": (lambda: own.NormBall(1.0, scope="all"), r"The 'scope' of NormBall must be one of 'local', .* Got 'all'"),
    "kind": (lambda: own.Linear(W, 1.0, ">="), r"The 'kind' of Linear must be one of '<=', '=='\. Got '>=' instead"),
    "cap nan": (lambda: cap(label(1), float("nan")), r"'at_most' of LossCap must be a finite number\. Got nan"),
    "cap word": (lambda: cap(label(1), "low"), r"'at_most' of LossCap must be a finite number\. Got 'low'"),
    "cap where": (lambda: cap(1, 0.2), r"subgroup of LossCap must be fd\.label\(v\), .* Got 1 instead"),
    "cap loss": (lambda: cap(label(1), 0.2, loss="logistic"), r"loss must be one of fd\.losses .* Got 'logistic'"),
    "cap for nobody": (
        lambda: made(own.LossCap(label(1), {"ash": 0.1, "birch": 0.2, "cedr": 0.3})),
        r"The 'at_most' of LossCap gives nothing for client 'cedar'. Did you mean 'cedr'",
    ),
    "caps too few": (lambda: made(own.LossCap(label(1), [0.1, 0.2])), r"or one for each of the 3 clients. Got \(0.1,"),
    "caps coupled": (
        lambda: made(own.LossCap(label(1), [0.1, 0.2, 0.3], scope="coupled")),
        r"must be one number, as its scope is 'coupled'",
    ),
    "cap of one client": (lambda: own.LossCap(label(1), [0.1, "low", 0.3]), r"must be a finite number. Got 'low'"),
    "gap negative": (lambda: own.LossGap(label(0), label(1), -0.1), r"'at_most' of LossGap must be .* Got -0\.1"),
    "gap infinite": (lambda: own.LossGap(label(0), label(1), np.inf), r"'at_most' of LossGap must be .* Got inf"),
    "gap word": (lambda: own.LossGap(label(0), label(1), "low"), r"'at_most' of LossGap must be .* Got 'low'"),
    "gap equal": (lambda: own.LossGap(label(0), label(1), 0.1, kind="=="), r"A LossGap is an inequality"),
    "ball zero": (lambda: own.NormBall(0.0), r"'radius' of NormBall must be a number > 0\. Got 0\.0"),
    "ball word": (lambda: own.NormBall("wide"), r"'radius' of NormBall must be a number > 0\. Got 'wide'"),
    "ball equal": (lambda: own.NormBall(1.0, kind="=="), r"A NormBall is an inequality"),
    "fn": (lambda: own.Custom(3.0), r"'fn' of Custom must be a function of \(w, data\)\. Got 3\.0"),
    "linear columns": (lambda: made(own.Linear(np.ones((1, 5)), 1.0)), r"C must have 4 columns .* shape \(3, 1, 5\)"),
    "linear rows": (lambda: made(own.Linear(np.ones((2, DIM)), np.ones((3, 1)))), r"d one entry per row of C"),
    "linear ragged": (lambda: made(own.Linear([C[0], C[1, :1], C[2]], 1.0)), r"as many rows for each client"),
    "linear words": (lambda: made(own.Linear("abc", 1.0)), r"C and d must hold numbers"),
    "linear nan": (lambda: made(own.Linear(np.full(DIM, np.nan), 1.0)), r"C and d must be finite"),
    "linear missing": (lambda: made(own.Linear({"ash": C[0]}, 1.0)), r"Linear gives nothing for client 'birch'"),
    "linear unknown": (
        lambda: made(own.Linear({**dict(zip(NAMES, C, strict=True)), "oak": C[0]}, 1.0)),
        r"Linear is given for 'oak', but there is no such client",
    ),
    "not one": (lambda: made(square), r"constraints must come from fd\.constraints"),
    "no list": (lambda: fd.Problem(SITES, constraints=own.NormBall(1.0), **logistic), r"constraints must be a list"),
    "coupled kinds": (
        lambda: made(own.Linear(C, D, scope="coupled"), own.Linear(C, D, "==", scope="coupled")),
        r"coupled scope must be all '<=' or all '=='",
    ),
    "site without label": (
        lambda: fd.Problem(
            {**SITES, "oak": (SERVER[0], np.zeros(7), SERVER[2])}, constraints=[cap(label(1), 0.2)], **logistic
        ),
        r"client 'oak': no example has label 1, so its loss cap is undefined; .* merge the site",
    ),
    "site without group": (
        lambda: fd.Problem(
            {**SITES, "oak": (*SERVER[:2], np.zeros(7))},
            constraints=[own.LossGap(fd.group(0), fd.group(1), at_most=0.1)],
            **logistic,
        ),
        r"client 'oak': no example has group 1, so its loss gap is undefined",
    ),
    "no groups": (
        lambda: fd.Problem(
            [site[:2] for site in SITES.values()],
            constraints=[own.LossGap(fd.group(0), fd.group(1), at_most=0.1)],
            **logistic,
        ),
        r"the clients have no array 'group', which group 0 needs",
    ),
    "no server": (
        lambda: made(cap(label(1), 0.2, scope="global"), server=None),
        r"loss cap of global scope needs",
    ),
    "server without label": (
        lambda: made(cap(label(1), 0.2, scope="global"), server=(SERVER[0], np.zeros(7))),
        r"server: no example has label 1",
    ),
    "server without a property": (
        lambda: made(cap(lambda d: d["y"] > 5, 0.2, scope="global")),
        r"server: no example has the chosen property",
    ),
    "server without y": (
        lambda: made(cap(label(1), 0.2, scope="global"), server={"x": SERVER[0]}),
        r"the server has no array 'y'",
    ),
    "server without groups": (
        lambda: made(own.LossGap(fd.group(0), fd.group(1), 0.1, scope="global"), server=SERVER[:2]),
        r"the server has no array 'group', which group 0 needs",
    ),
    "server labels": (
        lambda: made(cap(label(1), 0.2, scope="global"), server=(SERVER[0], SERVER[1] + 1.0)),
        r"'server': y has the label 2",
    ),
    "no loss": (lambda: solved(cap(label(1), 0.2)), r"LossCap needs a loss of xᵀw"),
    "no x": (
        lambda: solved(cap(label(1), 0.2, **logistic), clients=[{"y": SERVER[1]}]),
        r"the clients have no array 'x', which a loss cap needs",
    ),
    "other parameters": (
        lambda: solved(cap(label(1), 0.2, **logistic), w0=np.zeros(5)),
        r"loss cap needs parameters like a row of X, 4 numbers\. Got 5",
    ),
    "not finite": (
        lambda: solved(own.Custom(lambda w, d: jnp.log(w[1]), name="log")),
        r"client '0': a row of Custom is not finite at w0",
    ),
    "filling rows": (
        lambda: solved(own.Custom(lambda w, d: jnp.mean(d["x"] @ w))),
        r"client '0': a Custom constraint changes when .* take means over examples with data\.mean",
    ),
    "first order": (lambda: fd.solve(made(own.NormBall(1.0)), fd.FedAvg()), r"FedAvg does not handle constraints"),
    "admm alone": (lambda: fd.solve(made(own.NormBall(1.0)), fd.InexactADMM()), r"InexactADMM does not handle constr"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake):
    make, words = MISTAKES[mistake]
    with pytest.raises(fd.FoedusError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_own_objectives_take_linear_rows_when_their_shape_is_known():
    case = Quadratic.random(0)
    problem = case.problem()
    assert problem.terms.dim == 0
    assert problem.over(np.zeros(QUADRATIC_DIM)).terms.rows == (3, 2, 0)
    with pytest.raises(fd.FoedusError, match="give solve a w0"):
        fd.solve(problem, fd.ProxAL())
