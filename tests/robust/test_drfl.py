"""DRFL against CVXPY's optimum of program (4): losses, metrics, supports, norms of Q; silent clients; settings."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robust_oracles as oracle
from robust_cases import CLOSED, LOSSES, NORMS, OPEN, clients, support

import foedus as fd
from foedus.algorithms.minimax import ProjectionReply
from foedus.protocol.algorithm import Present
from foedus.robust.weights import ball_projection, heaviest, weights_projection

KAPPA, THETA, RHO = 0.5, 0.3, 0.03


def shares(sites) -> np.ndarray:
    sizes = np.array([len(y) for _, y in sites], dtype=float)
    return sizes / sizes.sum()


def gap(name, metric, kind, p, sites, algorithm, rho=RHO, theta=THETA, kappa=KAPPA) -> tuple[float, fd.Run]:
    """How far the minimax value at the returned w is above CVXPY's optimum, as a share of it; both by CVXPY."""
    loss, eps = LOSSES[name]
    theirs = support(kind, sites[0][0].shape[1])[1]
    run = fd.solve(fd.Problem(sites, loss=loss), algorithm)
    given = (rho, kappa, metric, theirs, theta, p, shares(sites))
    best = oracle.program(name, eps, sites, *given)
    if run.worst_case.gap is not None:  # no optimum is below what the duality gap leaves
        assert run.worst_case.value - run.worst_case.gap <= best + 1e-6 * abs(best)
    return oracle.minimax(name, eps, run.w, sites, *given) / best - 1.0, run


def drfl(metric, kind, p, dim=4, **more) -> fd.DRFL:
    given = {"radius": RHO, "kappa": KAPPA, "theta": THETA} | more
    return fd.DRFL(metric=metric, support=support(kind, dim)[0], p=p, **given)


# each metric, support and p at least once; all losses with all of them are in the slow test below
SOME = [
    ("hinge", "l1", "box", 1),
    ("smooth_hinge", "l2", None, 2),
    pytest.param("logistic", "l1", None, "inf", marks=pytest.mark.slow),
    pytest.param("huber", "linf", None, 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "metric", "kind", "p"), SOME)
def test_the_minimax_value_is_cvxpys_optimum(name, metric, kind, p):
    above, run = gap(name, metric, kind, p, clients(name, 1), drfl(metric, kind, p))
    assert run.converged, run.reason
    assert -1e-7 <= above <= 1e-5
    assert run.worst_case.gap <= 1e-6 * run.worst_case.value
    # the worst case that the run reports is CVXPY's too
    assert run.worst_case.value == pytest.approx(run.history["worst_case"][-1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize(("name", "metric", "kind"), CLOSED)
@pytest.mark.parametrize("method", ["interior", "splitting"])
def test_every_loss_metric_support_and_norm(method, name, metric, kind, p):
    """3 to 10 clients of 20 to 200 samples with 3 to 15 features."""
    for seed, (sites, dim, sizes) in enumerate([(3, 3, (20, 60)), (10, 6, (20, 40)), (5, 15, (60, 200))]):
        made = clients(name, seed + 10, sites, dim, sizes)
        above, run = gap(name, metric, kind, p, made, drfl(metric, kind, p, dim, method=method))
        assert run.converged, run.reason
        # below its optimum CVXPY can only be by its own error, which exponential cones make 2e-6 on one instance
        assert (-1e-5 if name == "logistic" else -1e-7) <= above <= (1e-6 if method == "interior" else 1e-5)
        assert method == "splitting" or run.worst_case.gap <= 2e-4 * run.worst_case.value


@pytest.mark.slow
@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize(("name", "metric", "kind"), OPEN)
@pytest.mark.parametrize(("seed", "sites", "dim", "sizes"), [(10, 3, 3, (20, 60)), (11, 10, 6, (20, 40))])
def test_every_support_without_a_closed_form(name, metric, kind, p, seed, sites, dim, sizes):
    above, run = gap(name, metric, kind, p, clients(name, seed, sites, dim, sizes), drfl(metric, kind, p, dim))
    assert run.converged, run.reason
    assert -1e-7 <= above <= 1e-6
    assert run.rounds <= 60
    assert run.worst_case.gap <= 1e-5 * run.worst_case.value


@pytest.mark.slow
@pytest.mark.parametrize(("k", "name", "metric", "kind"), [(k, *case) for k, case in enumerate(OPEN)])
def test_large_instances_without_a_closed_form(k, name, metric, kind):
    """Every loss, metric and support, with the norms of Q in turn."""
    p, sites = NORMS[k % 3], clients(name, 12, 5, 15, (60, 200))
    above, run = gap(name, metric, kind, p, sites, drfl(metric, kind, p, 15))
    assert run.converged, run.reason
    assert -1e-7 <= above <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric", "kind"), [("hinge", "l2", "box"), ("epsilon_insensitive", "l1", "polyhedron")]
)
def test_the_splitting_method_goes_over_these_supports_too(name, metric, kind):
    sites = clients(name, 10, 3, 3, (20, 60))
    above, run = gap(name, metric, kind, 2, sites, drfl(metric, kind, 2, 3, method="splitting"))
    assert run.converged, run.reason
    assert -1e-7 <= above <= 1e-5


@pytest.mark.slow
def test_a_polyhedron_goes_through_the_same_rounds():
    sites = clients("pinball", 3, 3, 3, (17, 25))
    above, run = gap("pinball", "linf", "polyhedron", 1, sites, drfl("linf", "polyhedron", 1, 3))
    assert run.converged, run.reason
    assert -1e-7 <= above <= 1e-6
    assert run.rounds <= 60
    assert run.worst_case.gap <= 1e-6 * run.worst_case.value
    # where samples go is told for every site, and comes to the worst case that the rounds ended at
    assert run.worst_case.value == pytest.approx(run.history["worst_case"][-1], rel=1e-6)
    for case in run.worst_case.clients.values():
        assert case.distribution.loss == pytest.approx(case.value, rel=1e-6)


@pytest.mark.parametrize("constants", ["tight", pytest.param("paper", marks=pytest.mark.slow)])
def test_algorithm_one_as_printed_reaches_the_same_value(constants):
    algorithm = drfl("l1", None, "inf", method="splitting", splitting="linearised", constants=constants, tol=1e-6)
    above, run = gap("logistic", "l1", None, "inf", clients("logistic", 1), algorithm)
    assert run.converged, run.reason
    assert -1e-7 <= above <= 1e-5


# --- the server's step, by itself ---


def server_of(algorithm: fd.DRFL, **fields) -> tuple[fd.Problem, Any, Any, Present]:
    """A problem over four clients, a server's state with the fields given, drawn replies, and who answered: all."""
    problem = algorithm.restate(fd.Problem(clients("logistic", 1), loss=LOSSES["logistic"][0]).over(np.zeros(4)))
    rng = np.random.default_rng(0)
    server = replace(algorithm.init(problem.terms, jnp.zeros(4), problem.server), **fields)
    replies = ProjectionReply(jnp.asarray(rng.normal(size=(4, 4))), jnp.asarray(rng.normal(size=4)))
    return problem, server, replies, Present(jnp.arange(4), jnp.ones(4, bool))


@pytest.mark.parametrize(
    ("constants", "near", "far"), [("tight", 2.0, 5.0), ("paper", 8.0, 8.0)], ids=["tight", "paper"]
)
def test_the_servers_step_of_algorithm_one_has_the_printed_constants(constants, near, far):
    """With S = 4 clients c' = 2c and c'' = (S+1)c, or 2Sc both; each of (6) to (10) solves its proximal problem."""
    algorithm = drfl(
        "l1", None, "inf", method="splitting", splitting="linearised", constants=constants, adapt=False, c=0.7
    )
    rng = np.random.default_rng(1)
    drawn = {name: rng.normal(size=4) for name in ("z", "t", "sigma", "zeta")} | {"eta": rng.random(4)}
    problem, server, replies, all_here = server_of(algorithm, gamma=jnp.asarray(0.3), **drawn)
    after = jax.jit(lambda at, heard: algorithm.aggregate(problem.terms, at, heard, all_here))(server, replies)
    c, z, t, eta, gamma = 0.7, drawn["z"], drawn["t"], drawn["eta"], 0.3
    sigma = drawn["sigma"] + c * (t - z - gamma - eta)  # the duals move first
    zeta = drawn["zeta"] + c * (np.asarray(replies.v) - z)
    q_hat, new = np.asarray(server.q_hat), {k: np.asarray(getattr(after, k)) for k in ("z", "t", "eta", "gamma")}
    apart, between = t - z - gamma - eta, new["t"] - new["z"] - gamma - eta
    # z: its own quadratic term, the linearised one, and c'/2 times the squared way from the last z
    slope = c * (new["z"] - np.asarray(replies.v)) - zeta - sigma - c * apart + near * c * (new["z"] - z)
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)
    # t: what is left of the slope is a subgradient of θ‖t‖₁, p being "inf"
    slope = q_hat + sigma + c * apart + near * c * (new["t"] - t)
    np.testing.assert_allclose(slope[new["t"] != 0], -THETA * np.sign(new["t"][new["t"] != 0]), atol=1e-12)
    assert np.max(np.abs(slope)) <= THETA + 1e-12
    # η >= 0 and γ, with c''
    np.testing.assert_allclose(new["eta"], np.maximum(eta + (sigma + c * between) / (far * c), 0.0), atol=1e-12)
    assert new["gamma"] == pytest.approx(gamma + (1.0 + np.sum(sigma + c * between)) / (far * c), abs=1e-12)


def test_c_moves_often_at_first_seldom_later_and_never_in_the_end():
    """Every 10 rounds by a factor 2 up to round 400, then every 100 by what is missing, and not after round 4000."""
    algorithm = drfl("l1", None, "inf")
    problem, server, replies, all_here = server_of(algorithm)
    # what the clients answer is far from w, and has hardly moved: the primal residual is the larger one
    server = replace(server, w_hat=replies.w_hat, v=replies.v - 0.03, z=replies.v, t=replies.v)
    step = jax.jit(lambda k: algorithm.aggregate(problem.terms, replace(server, k=k), replies, all_here))
    moved = {k + 1: float(step(jnp.asarray(k)).c / server.c) for k in (9, 10, 389, 409, 499, 699, 3999, 4099)}
    after = step(jnp.asarray(9))
    assert float(after.primal) > 10.0 * float(after.dual)
    missing = min(float(jnp.sqrt(after.primal / after.dual)), 10.0)
    assert missing > 3.0
    expected = {10: 2.0, 11: 1.0, 390: 2.0, 410: 1.0, 500: missing, 700: missing, 4000: missing, 4100: 1.0}
    assert moved == pytest.approx(expected)


def test_one_program_serves_every_radius_and_theta():
    """The numbers that travel are data: an algorithm that differs in them alone is equal, and answers differently."""
    one, two = (drfl("l1", None, "inf", radius=r, theta=t) for r, t in ((RHO, THETA), ((0.0, 0.1, 0.2, 0.3), 0.0)))
    assert (one, hash(one)) == (two, hash(two))
    assert one != drfl("l1", None, "inf", radius=0.0)
    assert one != drfl("l1", None, "inf", kappa=float("inf"))
    sites = clients("logistic", 1)
    above, _ = gap("logistic", "l1", None, "inf", sites, two, rho=np.array([0.0, 0.1, 0.2, 0.3]), theta=0.0)
    assert -1e-7 <= above <= 1e-5


def test_clients_that_drop_out_do_not_change_the_answer():
    sites, algorithm = clients("logistic", 1), drfl("l1", None, "inf", method="splitting", tol=1e-6)
    problem = fd.Problem(sites, loss=LOSSES["logistic"][0])
    full = fd.solve(problem, algorithm)
    plan = np.ones((3000, 4), bool)
    plan[10:40, 1] = False  # away in the middle
    plan[5:15, 2] = False
    run = fd.solve(problem, algorithm, participation=fd.Schedule(plan), max_rounds=3000)
    assert run.converged, run.reason
    assert np.max(np.abs(run.w - full.w)) <= 1e-3
    assert run.history["answered"][20] == 3


@pytest.mark.slow
def test_a_sampled_step_stays_near_the_answer():
    sites = clients("logistic", 1)
    run = fd.solve(
        fd.Problem(sites, loss=LOSSES["logistic"][0]),
        drfl("l1", None, "inf", method="splitting", sample=0.5),
        max_rounds=60,
    )
    theirs = (RHO, KAPPA, "l1", None, THETA, "inf", shares(sites))
    best = oracle.program("logistic", 0.0, sites, *theirs)
    assert oracle.minimax("logistic", 0.0, run.w, sites, *theirs) <= 1.15 * best
    assert not run.converged


def test_only_the_model_and_one_number_go_up():
    run = fd.solve(
        fd.Problem(clients("logistic", 1), loss=LOSSES["logistic"][0]),
        drfl("l1", None, "inf", method="splitting"),
        max_rounds=2,
    )
    assert run.traffic.up == 2 * 4 * 8 * (4 + 1)


@pytest.mark.parametrize("p", NORMS)
def test_projections_onto_balls_and_weights_are_cvxpys(p):
    import cvxpy as cp

    rng = np.random.default_rng(0)
    order = {1: 1, 2: 2, "inf": "inf"}[p]
    for theta in (0.0, 0.1, 0.5, 3.0):
        u, q_hat, values = rng.normal(size=6), rng.dirichlet(np.ones(6)), rng.normal(size=6)
        values[:3] = 2.0 + 1e-6 * values[:3]  # as at an optimum, where the heaviest clients are all but alike
        x = cp.Variable(6)
        for held, found in (
            ([cp.norm(x, order) <= theta], ball_projection(jnp.asarray(u), jnp.asarray(theta), p)),
            (
                [x >= 0, cp.sum(x) == 1, cp.norm(x - q_hat, order) <= theta],
                weights_projection(jnp.asarray(u), jnp.asarray(q_hat), jnp.asarray(theta), p),
            ),
        ):
            oracle.solved(cp.Problem(cp.Minimize(cp.sum_squares(x - u)), held))
            np.testing.assert_allclose(found, x.value, atol=1e-6)
        q = heaviest(values, q_hat, theta, p)
        assert values @ q == pytest.approx(oracle.heaviest(values, q_hat, theta, p), abs=1e-8)
        assert q.min() >= -1e-12
        assert q.sum() == pytest.approx(1.0, abs=1e-9)
        assert np.linalg.norm(q - q_hat, order if p != "inf" else np.inf) <= theta + 1e-9


def test_the_worst_case_is_printed_saved_and_read_back(tmp_path):
    sites = dict(zip("abcd", clients("logistic", 1), strict=True))
    run = fd.solve(fd.Problem(sites, loss=LOSSES["logistic"][0]), drfl("l1", None, "inf"))
    assert "weight q" in str(run)
    again = fd.load(run.save(tmp_path / "run"))
    assert again.worst_case.value == run.worst_case.value
    assert again.worst_case.q == run.worst_case.q
    assert sum(run.worst_case.q.values()) == pytest.approx(1.0)
    assert all(c.value >= c.nominal for c in run.worst_case.clients.values())


@pytest.mark.parametrize(
    ("algorithm", "loss", "words"),
    [
        (fd.DRFL(), fd.losses.least_squares, "least_squares has no finite worst case"),
        (fd.DRFL(radius=(0.1, 0.1)), fd.losses.huber(1.0), "one entry for each of 4 clients. Got 2"),
        (fd.DRFL(support=(-1.0, 1.0)), fd.losses.huber(1.0), "a bounded support is known for hinge"),
        (fd.DRFL(support=(-0.2, 0.2)), fd.losses.pinball(0.5), "client '0': row .* lies outside the support"),
        (fd.DRFL(support=([-1.0] * 3, [1.0] * 3)), fd.losses.pinball(0.5), "one end for each of 4 columns. Got 3"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(algorithm, loss, words):
    with pytest.raises(fd.FoedusError, match=words):
        fd.solve(fd.Problem(clients("huber", 1), loss=loss), algorithm)


def test_supports_are_checked_when_stated():
    for wrong in ((1.0, -1.0), (1.0,), "box", (np.ones((2, 3)), np.ones(3))):
        with pytest.raises(fd.FoedusError, match="The 'support' setting of DRFL must be"):
            fd.DRFL(support=wrong)
