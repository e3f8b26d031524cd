"""A run by courier: how often files are carried and how large they are, beside requests over a network.

The sessions are those that NVIDIA FLARE carries, so a request here is one round trip of its messages to all sites.
"""

import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import foedus as fd
from foedus.federation.courier.coordinator import CourierPlan
from foedus.federation.courier.site import CourierSite
from foedus.federation.order import Order, Patience, Result, order_of, site_arrays
from foedus.federation.policy import SITE_FILE, SiteFile
from foedus.federation.server import ServerSession
from foedus.federation.site import SiteSession
from foedus.problem.problem import Problem
from foedus.protocol.algorithm import Algorithm
from foedus_lab.benchmarks.harness import Measurement

SITES, ROWS, DIM = 5, 200, 30
POLICY = "[policy]\nmin_subset = 1\n"


def exchanges(quick: bool) -> list[Measurement]:
    """Count exchanges and bytes of a few runs of 30 columns at five sites."""
    if find_spec("cryptography") is None:
        return []
    with_caps = Problem(_sites(), loss=fd.losses.logistic, constraints=[fd.constraints.LossCap(fd.label(1), 0.55)])
    free = Problem(_sites(), loss=fd.losses.logistic)
    cases: dict[str, tuple[Problem, Algorithm, bool]] = {
        "logistic, a cap at each site, InteriorPoint": (with_caps, fd.InteriorPoint(), False),
        "logistic, no terms, InteriorPoint": (free, fd.InteriorPoint(), False),
    }
    if not quick:
        cases["the first, under masks that sites check"] = with_caps, fd.InteriorPoint(), True
        cases["logistic, no terms, FedAvg, 20 rounds"] = free, fd.FedAvg(k0=2), False
    return [_one(what, *case) for what, case in cases.items()]


def _sites() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(0)
    centre = draw.normal(size=DIM) / 4
    sites = {}
    for k in range(SITES):
        X = draw.normal(size=(ROWS, DIM))
        sites[f"site-{k + 1}"] = (X, (X @ centre + draw.logistic(size=ROWS) > 0).astype(float))
    return sites


def _one(what: str, problem: Problem, algorithm: Algorithm, secure: bool) -> Measurement:
    start = np.zeros(problem.terms.dim)
    fit = algorithm.fit(problem.over(start))
    order = order_of(
        fit.problem, fit.algorithm, start, run="bench", sites=tuple(problem.names), seed=0,
        max_rounds=20 if isinstance(algorithm, fd.FedAvg) else 100, participation=fd.Fraction(), secure=secure,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="foedus-") as folder:
        place = Path(folder)
        for i, name in enumerate(order.sites):
            np.savez(place / f"{name}.npz", **site_arrays(fit.problem, i))  # pyright: ignore[reportArgumentType]
            settings = place / f"home-{name}" / "local" / SITE_FILE
            settings.parent.mkdir(parents=True)
            settings.write_text(f"[data]\nfile = '../../{name}.npz'\n{POLICY}")
        plan = CourierPlan.make(order, place / "plan")
        result, sizes = _carry(plan, {name: CourierSite(place / f"home-{name}") for name in order.sites})
        requests = "" if secure else str(_requests(order, place))
        count = len(plan.exchanges)
    extra = {
        "exchanges": count, "rounds": len(result.history["phase"]), "requests over a network": requests,
        "largest file, kB": f"{max(sizes) / 1000:.1f}", "all files, kB": f"{sum(sizes) / 1000:.0f}",
        "certified": result.conclusion.certificate.holds(),
    }  # fmt: skip
    return Measurement(what, float("nan"), extra=extra)


def _carry(plan: CourierPlan, sites: Mapping[str, CourierSite]) -> tuple[Result, list[int]]:
    """Carry files until there is a result; return it and the sizes of all files."""
    sizes = []
    progress = plan.next()
    while progress.result is None:
        for name in progress.missing:
            inbox = sites[name].look(plan.place(name), name, plan.keys.fingerprint)
            assert inbox.question is not None
            sizes += [len(inbox.question.content)]
            sizes += [len(sites[name].answer(inbox.question, plan.place(name)).read_bytes())]
        progress = plan.next()
        progress = plan.next(trust=progress.strangers) if progress.strangers else progress
    return progress.result, sizes


def _requests(order: Order, place: Path) -> int:
    """Return how many requests the same run makes of sessions over a network."""
    count = 0
    sessions = {
        name: SiteSession(name, SiteFile.read(place / f"home-{name}" / "local" / SITE_FILE), place / f"net-{name}")
        for name in order.sites
    }

    def ask(messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes]:
        nonlocal count
        count += 1
        return {name: sessions[name].answer(message) for name, message in messages.items()}

    ServerSession(order, place / "server", ask, Patience(hello=0.0, keep_every=float("inf"))).play()
    return count
