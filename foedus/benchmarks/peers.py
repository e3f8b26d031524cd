"""The benchmark's FedAvg round by other frameworks, where they are installed."""

import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foedus.benchmarks.harness import Measured, best

STEPS, LR = 5, 0.01


def fedjax_round(x: np.ndarray, y: np.ndarray) -> float:
    """Seconds of a round of least squares by FedJAX's for_each_client."""
    import fedjax  # pyright: ignore[reportMissingImports]

    def start(shared: Any, mine: Any) -> Any:
        return shared

    def step(u: Any, batch: Any) -> Any:
        return u - LR * jnp.mean((batch["x"] @ u - batch["y"])[:, None] * batch["x"], axis=0)

    each = fedjax.for_each_client(start, step, lambda shared, u: u)
    clients = [
        (str(i), [{"x": features, "y": targets}] * STEPS, jax.random.PRNGKey(i))
        for i, (features, targets) in enumerate(zip(x, y, strict=True))
    ]
    return best(lambda: np.mean([out for _, out in each(jnp.zeros(x.shape[2]), clients)], axis=0), repeats=3)


def flower_round(x: np.ndarray, y: np.ndarray, rounds: int = 4) -> float:
    """Seconds of a round of least squares in Flower's simulation, the fastest after the first."""
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

        def fit(self, parameters: Any, config: Any) -> Any:
            u = parameters[0]
            for _ in range(STEPS):
                u = u - LR * (self.x.T @ (self.x @ u - self.y)) / len(self.y)
            return [u], len(self.y), {}

    class Timed(FedAvg):
        def aggregate_fit(self, *told: Any) -> Any:
            ends.append(time.perf_counter())
            return super().aggregate_fit(*told)

    def site(context: Any) -> Any:
        return Site(int(context.node_config["partition-id"])).to_client()

    def server(context: Any) -> Any:
        everyone = {"min_fit_clients": len(x), "min_available_clients": len(x), "fraction_evaluate": 0.0}
        strategy = Timed(initial_parameters=ndarrays_to_parameters([np.zeros(x.shape[2])]), **everyone)
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    run_simulation(ServerApp(server_fn=server), ClientApp(client_fn=site), num_supernodes=len(x))
    return float(np.min(np.diff(ends)))


PEERS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], float]]] = {
    "FedJAX": ("fedjax", fedjax_round),
    "Flower": ("flwr", flower_round),
}


def rounds(x: np.ndarray, y: np.ndarray, mine: float) -> tuple[list[Measured], list[str]]:
    """A line for each peer that runs, and a word on each that does not; `mine` is our seconds for the same round."""
    lines, words = [], []
    for name, (package, measure) in PEERS.items():
        if find_spec(package) is None:
            words.append(f"{name} is not installed")
            continue
        try:
            lines.append(Measured(f"FedAvg round, {name}", measure(x, y), "foedus", mine))
        except Exception as error:  # another project's fault must not end our benchmark
            words.append(f"{name} did not run ({type(error).__name__})")
    if find_spec("pfl") is not None:
        words.append("pfl trains PyTorch and TensorFlow models only")
    return lines, words
