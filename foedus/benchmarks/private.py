"""ENS against a sort, local work of FedEPM and its peers, and the cost of clipping and noise in a round."""

import jax
import numpy as np

import foedus as fd
from foedus.benchmarks.harness import Measurement, in_turn
from foedus.benchmarks.speed import Rounds


def logistic_problem(clients: int, rows: int, dim: int) -> fd.Problem:
    """Return a problem of standard normal features and random labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, rows, dim))
    y = (rng.random((clients, rows)) < 0.5).astype(float)
    return fd.Problem(fd.data.Stacked({"x": x, "y": y}), loss=fd.losses.logistic)


def private(quick: bool) -> list[Measurement]:
    """Run all three benchmarks of this module."""
    return [*aggregation(quick), *local_work(quick), *mechanism(quick)]


def aggregation(quick: bool) -> list[Measurement]:
    """Time ENS of 1,000 clients' vectors of 10,000 numbers, against numpy.sort of the same array."""
    z = np.random.default_rng(0).standard_normal((1000, 2000 if quick else 10_000))
    on_device, program = jax.device_put(z), jax.jit(fd.ens)
    calls = {
        "ens": lambda: fd.ens(z, 0.5, 1.0),
        "solve": lambda: program(on_device, 0.5, 1.0).block_until_ready(),
        "sort": lambda: np.sort(z, axis=0),
    }
    times = in_turn(calls, repeats=3 if quick else 9)
    return [
        Measurement(f"ENS, {z.shape}", times["ens"], "numpy.sort", times["sort"], limit=3.0),
        Measurement(f"ENS inside a solve, {z.shape}", times["solve"], "numpy.sort", times["sort"], limit=3.0),
    ]


def local_work(quick: bool) -> list[Measurement]:
    """Time rounds of SFedAvg and SFedProx against FedEPM's, with k0 = 12 and the shape of Adult at 50 clients."""
    problem = logistic_problem(50, 904, 14)
    many, noise = 20, fd.PaperLaplace(0.1)
    algorithms = {
        "FedEPM": fd.FedEPM(k0=12, rho=1.0, stop=None, noise=noise),
        "SFedAvg": fd.SFedAvg(k0=12, rho=1.0, stop=None, noise=noise, lr=0.1),
        "SFedProx": fd.SFedProx(k0=12, rho=1.0, stop=None, noise=noise, lr=0.1),
    }
    rounds = {name: Rounds(problem, algorithm.resolve(problem.terms)) for name, algorithm in algorithms.items()}
    calls = {name: (lambda r=r: r.play(many)) for name, r in rounds.items()}
    times = in_turn(calls, repeats=3 if quick else 9)
    return [
        Measurement(
            f"{name} round, k0=12", times[name] / many, "FedEPM", times["FedEPM"] / many, limit=least, at_least=True
        )
        for name, least in (("SFedAvg", 3.0), ("SFedProx", 7.0))
    ]


def mechanism(quick: bool) -> list[Measurement]:
    """Time a round with clipping and noise against the same round without."""
    lines = []
    for shape in ((50, 904, 14), (128, 100, 100)):
        problem, many = logistic_problem(*shape), 20
        noise = fd.Laplace(epsilon=1.0, clip=1.0, rows=5.0)
        for name, plain, sound in (
            ("FedEPM", fd.FedEPM(rho=1.0, stop=None), fd.FedEPM(rho=1.0, noise=noise)),
            (
                "SFedAvg, k0=5",
                fd.SFedAvg(k0=5, rho=1.0, stop=None, lr=0.1),
                fd.SFedAvg(k0=5, rho=1.0, lr=0.1, noise=noise),
            ),
        ):
            calls = {
                "plain": Rounds(problem, plain),
                "sound": Rounds(problem, sound),
            }
            times = in_turn({k: (lambda r=r, n=many: r.play(n)) for k, r in calls.items()}, repeats=3 if quick else 9)
            what = f"{name}, {shape}, clipping and noise"
            lines.append(Measurement(what, times["sound"] / many, "without", times["plain"] / many, limit=2.0))
    return lines
