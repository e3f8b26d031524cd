"""The benchmark's FedAvg round in other frameworks, those that are installed."""

import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.benchmarks.harness import Measurement, best

STEPS, LR = 5, 0.01  # as in `speed.fedavg_round`, which the frameworks are compared with


class NodeContext(Protocol):
    """The part of Flower's context that a client reads."""

    node_config: dict[str, object]


def fedjax_round(x: np.ndarray, y: np.ndarray) -> float:
    """Return the seconds of a round of least squares by FedJAX's for_each_client."""
    import fedjax  # pyright: ignore[reportMissingImports]

    def start(model: Array, client_input: object) -> Array:
        return model

    def step(u: Array, batch: dict[str, Array]) -> Array:
        return u - LR * jnp.mean((batch["x"] @ u - batch["y"])[:, None] * batch["x"], axis=0)

    each = fedjax.for_each_client(start, step, lambda model, u: u)
    clients = [
        (str(i), [{"x": features, "y": targets}] * STEPS, jax.random.PRNGKey(i))
        for i, (features, targets) in enumerate(zip(x, y, strict=True))
    ]
    return best(lambda: np.mean([out for _, out in each(jnp.zeros(x.shape[2]), clients)], axis=0), repeats=3)


def flower_round(x: np.ndarray, y: np.ndarray, rounds: int = 4) -> float:
    """Return the seconds of the fastest round of least squares, after the first, in Flower's simulation."""
    from flwr.client import ClientApp, NumPyClient  # pyright: ignore[reportMissingImports]
    from flwr.common import ndarrays_to_parameters  # pyright: ignore[reportMissingImports]
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig  # pyright: ignore[reportMissingImports]
    from flwr.server.strategy import FedAvg  # pyright: ignore[reportMissingImports]
    from flwr.simulation import run_simulation  # pyright: ignore[reportMissingImports]

    logging.getLogger("flwr").setLevel(logging.ERROR)
    ends: list[float] = []

    class Site(NumPyClient):
        def __init__(self, i: int):
            self.x, self.y = x[i], y[i]

        def fit(self, parameters: list[np.ndarray], config: object) -> tuple[list[np.ndarray], int, dict[str, float]]:
            u = parameters[0]
            for _ in range(STEPS):
                u = u - LR * (self.x.T @ (self.x @ u - self.y)) / len(self.y)
            return [u], len(self.y), {}

    class Stopwatch(FedAvg):
        def aggregate_fit(self, *results: object) -> object:
            ends.append(time.perf_counter())
            return super().aggregate_fit(*results)

    def site(context: NodeContext) -> object:
        return Site(int(str(context.node_config["partition-id"]))).to_client()

    def server(context: object) -> object:
        everyone = {"min_fit_clients": len(x), "min_available_clients": len(x), "fraction_evaluate": 0.0}
        strategy = Stopwatch(initial_parameters=ndarrays_to_parameters([np.zeros(x.shape[2])]), **everyone)
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    run_simulation(ServerApp(server_fn=server), ClientApp(client_fn=site), num_supernodes=len(x))
    return float(np.min(np.diff(ends)))


PEERS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], float]]] = {
    "FedJAX": ("fedjax", fedjax_round),
    "Flower": ("flwr", flower_round),
}


def rounds(x: np.ndarray, y: np.ndarray, mine: float) -> tuple[list[Measurement], list[str]]:
    """Return a line for each peer that runs and a remark on each that does not; `mine` is our time for the round."""
    lines, remarks = [], []
    for name, (package, measure) in PEERS.items():
        if find_spec(package) is None:
            remarks.append(f"{name} is not installed")
            continue
        try:
            lines.append(Measurement(f"FedAvg round, {name}", measure(x, y), "foedus", mine))
        except Exception as error:  # another project's fault must not end our benchmark
            remarks.append(f"{name} did not run ({type(error).__name__})")
    if find_spec("pfl") is not None:
        remarks.append("pfl trains PyTorch and TensorFlow models only")
    return lines, remarks
