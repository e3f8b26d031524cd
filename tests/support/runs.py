"""Small runs that tests of the report share: one certified, one whose terms cannot be met, some without terms."""

from dataclasses import replace
from functools import cache

import numpy as np

import foedus as fd
from foedus.certificate.measure import Certificate, Row
from foedus.problem.stacked import Stacked
from foedus.protocol.participation import Fraction, attendance, describe_participation
from foedus.runtime.run import Run, Traffic

NASTY = "<script>alert('st. \"Mary\" & co')</script>"


def sites(names: tuple[str, ...] = ("north", "south", NASTY)) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Twelve patients at each site, of whom a third are ill; two features tell them apart in part."""
    made = {}
    for seed, name in enumerate(names):
        draw = np.random.default_rng(seed)
        y = (np.arange(12) % 3 == 0).astype(float)
        x = draw.normal(size=(12, 2)) + 0.8 * y[:, None]
        made[name] = (np.column_stack([x, np.ones(12)]), y)
    return made


@cache
def certified() -> Run:
    """A loss cap on the ill, met at every site."""
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.5)
    problem = fd.Problem(sites(), loss=fd.losses.logistic, where=fd.label(0), constraints=[cap])
    return fd.solve(problem, fd.ProxAL(beta=30), seed=0)


@cache
def infeasible() -> Run:
    """The same figures with a value over its cap, as a run that gave up reports it."""
    run = certified()
    rows = tuple(replace(row, value=row.value + 0.3) for row in run.certificate.rows)
    worst = max(row.violation for row in rows)
    reason = f"no feasible point was found: the smallest violation found is {worst:.3g}, at client 'north'"
    certificate = replace(run.certificate, rows=rows, feasibility=worst, distance=worst)
    return replace(run, converged=False, reason=reason, certificate=certificate)


@cache
def unconstrained() -> dict[str, Run]:
    """Two methods without terms; half of the sites are asked, and some replies are lost."""
    problem = fd.Problem(sites(), loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1, per_example=False))
    some = fd.Fraction(0.6, dropout=0.2)
    return {
        "FedAvg": fd.solve(problem, fd.FedAvg(lr=0.5), seed=0, max_rounds=30, participation=some),
        "Scaffold": fd.solve(problem, fd.Scaffold(lr=0.2), seed=0, max_rounds=30),
    }


def large(rounds: int = 10_000, clients: int = 100) -> Run:
    """A run as long and as wide as reports have to be fast for; its figures are drawn, not computed."""
    draw = np.random.default_rng(0)
    names = [f"clinic-{i:03d}" for i in range(clients)]
    who = Fraction(0.3, dropout=0.1)
    uids = Stacked({"y": np.zeros((clients, 1))}, names=tuple(names)).uids()
    asked, answered = (part.sum(axis=1) for part in attendance(who, 0, uids, rounds))
    k = np.arange(rounds)
    history = {
        "phase": np.zeros(rounds, int),
        "asked": asked,
        "answered": answered,
        "objective": 0.3 + np.exp(-k / 1500) + 0.01 * draw.normal(size=rounds),
        "feasibility": np.maximum(0.0, np.exp(-k / 900) * draw.random(rounds) - 1e-4),
        "residual": np.exp(-k / 1200) * (1 + draw.random(rounds)),
        "bytes_up": answered * 248,
        "bytes_down": asked * 256,
    }
    values = np.minimum(0.2, 0.05 + 0.2 * draw.random(clients))
    rows = tuple(
        Row(name, "loss on label 1", "<=", float(v), 0.2, 0.1 if v == 0.2 else 0.0)
        for name, v in zip(names, values, strict=True)
    )
    return Run(
        w=np.zeros(3),
        objective=0.3,
        rounds=rounds,
        converged=True,
        reason="the stopping test holds",
        certificate=Certificate(2e-4, rows=rows),
        history=history,
        traffic=Traffic(int(history["bytes_up"].sum()), int(history["bytes_down"].sum())),
        seconds=60.0,
        compile_seconds=4.0,
        settings=certified().settings | {"participation": describe_participation(who, True)},
        names=names,
    )
