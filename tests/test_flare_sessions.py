"""Sessions of server and sites in one process, without FLARE: the simulator's iterates, faults, refusals, resuming."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from cases import problem as five
from constrained_cases import CAPPED, Coupled, Quadratic, breast_cancer

import foedus as fd
from foedus.algorithm import Algorithm
from foedus.runtime.flare import packing
from foedus.runtime.flare.order import Order, Result, order_of, site_arrays
from foedus.runtime.flare.policy import Policy, SiteFile, Source
from foedus.runtime.flare.server import Missing, Patience, Paused, ServerSession
from foedus.runtime.flare.site import SiteSession
from foedus.runtime.participation import as_participation

QUICK = Patience(timeout=1.0, hello=1.0, keep_every=0.0)


class Hall:
    """All parties in one room: real sessions, and a hand that can take messages away or change them."""

    def __init__(self, folder: Path, problem: fd.Problem, algorithm: Algorithm, *, w0=None, policy=None, **told):
        self.folder = folder
        start = np.zeros(problem.terms.dim) if w0 is None else w0
        self.problem = problem.over(start)
        self.algorithm = algorithm.resolve(self.problem.terms)
        self.sites = tuple(f"site-{i + 1}" for i in range(problem.terms.clients))
        who = as_participation(told.pop("participation", 1.0))
        order = order_of(
            self.problem, self.algorithm, start, run="r1", sites=self.sites, participation=who,
            **{"seed": 0, "max_rounds": 1000} | told,
        )  # fmt: skip
        self.order = Order.from_bytes(order.to_bytes(), allowed=("constrained_cases",))
        self.policy = policy or Policy(modules=("constrained_cases",))
        for i, site in enumerate(self.sites):
            np.savez(folder / f"{site}.npz", **site_arrays(self.problem, i))
        self.notes: list[str] = []
        self.open_sites()

    def open_sites(self):
        """Sites as after a restart: only their folders remain."""
        self.site = {
            s: SiteSession(s, SiteFile(Source(self.folder / f"{s}.npz"), self.policy), self.folder / s, self.notes.append)
            for s in self.sites
        }

    def ask(self, messages, timeout):
        return {name: self.site[name].answer(message) for name, message in messages.items()}

    def play(self, ask=None, patience=QUICK) -> Result:
        session = ServerSession(self.order, self.folder / "server", ask or self.ask, patience, self.notes.append)
        return Result.from_bytes(session.play().to_bytes())


def agree(run: fd.Run, result: Result, tolerance: float = 1e-9) -> None:
    assert run.history.keys() == result.history.keys()
    for name, values in run.history.items():
        np.testing.assert_allclose(result.history[name], values, rtol=tolerance, atol=tolerance, err_msg=name)
    scale = 1.0 + np.max(np.abs(run.w))
    np.testing.assert_allclose(result.w, run.w, rtol=0, atol=tolerance * scale)
    assert (run.converged, run.rounds, run.reason) == (result.converged, len(result.history["phase"]), result.reason)
    np.testing.assert_allclose(result.objective, run.objective, rtol=tolerance)
    for name in ("stationarity", "feasibility", "complementarity", "distance"):
        found, expected = getattr(result.certificate, name), getattr(run.certificate, name)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=tolerance, err_msg=name)
    assert run.multipliers.keys() == result.multipliers.keys()
    for name, values in run.multipliers.items():
        np.testing.assert_allclose(result.multipliers[name], values, rtol=1e-6, atol=tolerance)


SAME = {
    "FedAvg": (fd.FedAvg(k0=2), {"max_rounds": 12}),
    "FedAvg, some": (fd.FedAvg(k0=2), {"max_rounds": 12, "participation": fd.Fraction(0.6, dropout=0.2)}),
    "FedGiA": (fd.FedGiA(), {"max_rounds": 12, "seed": 3}),
    "FedGiA, gram, some": (fd.FedGiA(H="gram"), {"max_rounds": 12, "participation": fd.Fraction(0.6, dropout=0.2)}),
    "LocalSGD": (fd.LocalSGD(batch=4, k0=2), {"max_rounds": 8, "seed": 1}),
    "Scaffold, plan": (fd.Scaffold(), {"max_rounds": 8, "participation": np.eye(5, dtype=bool)[[0, 1, 2]] | [1, 0, 0, 0, 1]}),
}


@pytest.mark.parametrize("name", SAME)
def test_the_iterates_are_the_simulators(tmp_path, name):
    algorithm, told = SAME[name]
    run = fd.solve(five(), algorithm, **told)
    agree(run, Hall(tmp_path, five(), algorithm, **told).play())


@pytest.mark.parametrize("inner", ["admm", "newton"])
def test_the_certified_answer_is_the_simulators(tmp_path, inner):
    case = breast_cancer()
    run = fd.solve(case.problem(), CAPPED[inner], max_rounds=400)
    result = Hall(tmp_path, case.problem(), CAPPED[inner], max_rounds=400).play()
    agree(run, result)
    assert result.certificate.holds()
    assert [r.site for r in result.certificate.rows] == [r.site for r in run.certificate.rows]
