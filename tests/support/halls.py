"""A server and its sites as sessions in one process, over a problem."""

from pathlib import Path

import numpy as np

import foedus as fd
from foedus.federation import packing
from foedus.federation.order import Order, Patience, Result, order_of, site_arrays
from foedus.federation.policy import Policy, SiteFile, Source
from foedus.federation.server import ServerSession
from foedus.federation.site import SiteSession
from foedus.numerics.interpreter.random_bits import random_key
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.participation import as_participation

QUICK = Patience(timeout=1.0, hello=0.0, keep_every=1e9)


FREE: dict = {"min_subset": 1, "min_sites": 1}  # the tests' sites have few rows


class KnownSite(SiteSession):
    """A site whose own draws are those of a simulation."""

    seed = 0

    def _own_key(self, run):
        return random_key(self.seed)


class Hall:
    """All parties in one room: real sessions, and a hand that can take messages away or change them."""

    def __init__(self, folder: Path, problem: fd.Problem, algorithm: Algorithm, *, w0=None, policy=None, **told):
        self.folder = folder
        start = np.zeros(problem.terms.dim) if w0 is None else w0
        self.problem = problem.over(start)
        fit = algorithm.fit(self.problem)
        self.algorithm = fit.algorithm
        self.sites = tuple(f"site-{i + 1}" for i in range(problem.terms.clients))
        who = as_participation(told.pop("participation", 1.0))
        order = order_of(
            fit.problem, self.algorithm, start, run="r1", sites=self.sites, participation=who,
            **{"seed": 0, "max_rounds": 1000} | told,
        )  # fmt: skip
        self.order = Order.from_bytes(order.to_bytes(), modules=("constrained_cases",))
        self.policy = policy or Policy(modules=("constrained_cases",), **FREE)
        for i, site in enumerate(self.sites):
            np.savez(folder / f"{site}.npz", **site_arrays(self.problem, i))
        self.notes: list[str] = []
        self.open_sites()

    def open_sites(self):
        """Sites as after a restart: only their folders remain."""
        self.site = {
            s: KnownSite(s, SiteFile(Source(self.folder / f"{s}.npz"), self.policy), self.folder / s, self.notes.append)
            for s in self.sites
        }
        for site in self.site.values():
            site.seed = self.order.seed

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
    np.testing.assert_allclose(result.conclusion.w, run.w, rtol=0, atol=tolerance * scale)
    assert (run.converged, run.rounds, run.reason) == (
        result.conclusion.converged,
        len(result.history["phase"]),
        result.conclusion.reason,
    )
    np.testing.assert_allclose(result.conclusion.objective, run.objective, rtol=tolerance)
    for name in ("stationarity", "feasibility", "complementarity", "distance"):
        found, expected = getattr(result.conclusion.certificate, name), getattr(run.certificate, name)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=tolerance, err_msg=name)
    assert run.multipliers.keys() == result.conclusion.multipliers.keys()
    for name, values in run.multipliers.items():
        np.testing.assert_allclose(result.conclusion.multipliers[name], values, rtol=1e-6, atol=tolerance)


def tampered(hall: Hall, site: str, rounds: set[int], change):
    """An `ask` in which one site's replies of some rounds are changed, or lost where `change` gives None."""

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        header, payload = packing.unseal(replies[site]) if site in replies else ({}, b"")
        if header.get("ask") == "round" and header["round"] in rounds:
            changed = change(header, payload)
            replies = {k: v for k, v in replies.items() if k != site} | ({} if changed is None else {site: changed})
        return replies

    return ask
