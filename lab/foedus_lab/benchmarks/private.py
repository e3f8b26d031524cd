"""ENS against a sort, local work of FedEPM, the cost of clipping and noise, and private models beside others'."""

import time
import warnings
from importlib.util import find_spec

import jax
import numpy as np

import foedus as fd
from foedus.base.errors import FoedusError
from foedus.protocol.algorithm import Algorithm
from foedus_lab.benchmarks import dp_sgd
from foedus_lab.benchmarks.harness import Measurement, in_turn
from foedus_lab.benchmarks.speed import Rounds
from foedus_lab.datasets import adult_b

DELTA = 1e-5
CENTRAL, ASKED = "PrivateNewton, Central and secure, {} sites", 0.840  # the mean that is asked at ε = 1
ROW_NORM = 7.0  # the length that diffprivlib cuts rows to; 39 standardised columns have about 6.2


def logistic_problem(clients: int, rows: int, dim: int) -> fd.Problem:
    """Return a problem of standard normal features and random labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, rows, dim))
    y = (rng.random((clients, rows)) < 0.5).astype(float)
    return fd.Problem(fd.data.Stacked({"x": x, "y": y}), loss=fd.losses.logistic)


def private(quick: bool) -> list[Measurement]:
    """Run all benchmarks of this module."""
    return [*aggregation(quick), *local_work(quick), *mechanism(quick), *accuracy(quick)]


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
    rounds = {name: Rounds(problem, algorithm.fit(problem).algorithm) for name, algorithm in algorithms.items()}
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


def accuracy(quick: bool) -> list[Measurement]:
    """Measure the share of Adult's test rows that private models get right, and the seconds of training.

    With `fd.Central` the sum over sites keeps (ε, 1e-5), with `fd.Local` each of ten sites does by itself, both for
    replacing a row. DP-SGD and diffprivlib have all rows in one place: the first keeps (ε, 1e-5) for adding or removing
    a row, the second (ε, 0). Columns are standardised for all by the training rows, which is not counted.
    """
    try:
        table = adult_b()
    except FoedusError as error:
        return [Measurement(f"private models of Adult: left out, {error}", float("nan"))]
    train = table.training
    X = (table.X - table.X[train].mean(axis=0)) / table.X[train].std(axis=0)
    X, y = np.column_stack([X, np.ones(len(X))]), np.asarray(table.y)
    own: dict[str, tuple[int, Algorithm, type[fd.Local]]] = {
        CENTRAL.format(10): (10, fd.PrivateNewton(), fd.Central),
        CENTRAL.format(200): (200, fd.PrivateNewton(), fd.Central),
        "PrivateNewton, Local, 10 sites": (10, fd.PrivateNewton(), fd.Local),
        "FedAvg(k0=1), Local, 10 sites": (10, fd.FedAvg(k0=1), fd.Local),
    }
    peers = {
        name: call for name, package, call in (
            ("DP-SGD, pooled", "dp_accounting", _dp_sgd),
            ("diffprivlib's LogisticRegression, pooled", "diffprivlib", _diffprivlib),
        )
        if find_spec(package) is not None
    }  # fmt: skip
    lines = []
    for epsilon, seeds in ((1.0, 1 if quick else 20),) if quick else ((1.0, 20), (8.0, 5)):
        results: dict[str, list[tuple[float, float]]] = {}
        for seed in range(seeds):
            for name, (clients, algorithm, total) in own.items():
                sites = fd.data.split(X[train], y[train], clients=clients, seed=seed)
                problem = fd.Problem(sites, loss=fd.losses.logistic)
                privacy, tick = total(epsilon=epsilon, delta=DELTA), time.perf_counter()
                run = fd.solve(problem, algorithm, privacy=privacy, secure=total is fd.Central, seed=seed)
                seconds = time.perf_counter() - tick
                right = float(np.mean((X[~train] @ np.asarray(run.w) > 0) == y[~train]))
                results.setdefault(f"{name}, {run.rounds} rounds", []).append((right, seconds))
            for name, call in peers.items():
                results.setdefault(name, []).append(call(X[train], y[train], X[~train], y[~train], epsilon, seed))
        for name, pairs in results.items():
            right, seconds = np.array(pairs).T
            words = f"{right.mean():.4f} ({right.min():.4f} to {right.max():.4f} over {len(right)} seeds)"
            line = Measurement(f"Adult at ε = {epsilon:g}, {name}", float(seconds.min()))
            line.extra["right on the test rows"] = words
            if epsilon == 1.0 and name.startswith(CENTRAL[:20]):
                line.extra["asked"] = f"{ASKED}: {'yes' if right.mean() >= ASKED else 'NO'}"
            lines.append(line)
    if len(peers) < 2:
        lines[-1].extra["peers:"] = "diffprivlib or dp-accounting is not installed"
    return lines


def _dp_sgd(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, epsilon: float, seed: int
) -> tuple[float, float]:
    """The share of test rows that DP-SGD gets right, and its seconds without those of the accounting."""
    sigma, tick = dp_sgd.noise_multiplier(epsilon, DELTA), time.perf_counter()
    w = dp_sgd.dp_sgd(X, y, sigma, seed)
    return float(np.mean((X_test @ w > 0) == y_test)), time.perf_counter() - tick


def _diffprivlib(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, epsilon: float, seed: int
) -> tuple[float, float]:
    """The share of test rows that diffprivlib gets right, and its seconds."""
    from diffprivlib.models import LogisticRegression  # pyright: ignore[reportMissingImports]

    tick = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on rows that are cut to the norm, and on other versions of scikit-learn
        model = LogisticRegression(epsilon=epsilon, data_norm=ROW_NORM, fit_intercept=False, random_state=seed)
        model.fit(X, y)
    return float(np.mean(model.predict(X_test) == y_test)), time.perf_counter() - tick
