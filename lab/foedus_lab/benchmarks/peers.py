"""The benchmark's FedAvg round in other frameworks, those that are installed."""

import contextlib
import io
import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus_lab.benchmarks.harness import Measurement, best

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


def pfl_round(x: np.ndarray, y: np.ndarray, rounds: int = 4) -> float:
    """Return the seconds of the fastest round of least squares, after the first, in pfl's simulation with PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]
    from pfl.aggregate.simulate import SimulatedBackend  # pyright: ignore[reportMissingImports]
    from pfl.algorithm.base import NNAlgorithmParams  # pyright: ignore[reportMissingImports]
    from pfl.algorithm.federated_averaging import FederatedAveraging  # pyright: ignore[reportMissingImports]
    from pfl.callback.base import TrainingProcessCallback  # pyright: ignore[reportMissingImports]
    from pfl.data.dataset import Dataset  # pyright: ignore[reportMissingImports]
    from pfl.data.federated_dataset import FederatedDataset  # pyright: ignore[reportMissingImports]
    from pfl.data.sampling import get_user_sampler  # pyright: ignore[reportMissingImports]
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # pyright: ignore[reportMissingImports]
    from pfl.metrics import Metrics  # pyright: ignore[reportMissingImports]
    from pfl.model.pytorch import PyTorchModel  # pyright: ignore[reportMissingImports]

    ends: list[float] = []

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(x.shape[2], dtype=torch.float64))

        def loss(self, features: object, targets: object, eval: bool = False) -> object:
            return 0.5 * torch.mean((features @ self.w - targets) ** 2)

        def metrics(self, *batch: object) -> dict[str, object]:
            return {}

    class Stopwatch(TrainingProcessCallback):
        def after_central_iteration(self, *arguments: object, **more: object) -> tuple[bool, object]:
            ends.append(time.perf_counter())
            return False, Metrics()

    rows = [(torch.tensor(features), torch.tensor(targets)) for features, targets in zip(x, y, strict=True)]
    module = Linear()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    everyone = get_user_sampler("minimize_reuse", list(range(len(rows))))
    clients = FederatedDataset(lambda i: Dataset(raw_data=rows[i], user_id=str(i)), everyone)
    settings = NNAlgorithmParams(
        central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=len(rows), val_cohort_size=None
    )
    steps = NNTrainHyperParams(local_batch_size=None, local_num_epochs=STEPS, local_learning_rate=LR)
    with contextlib.redirect_stdout(io.StringIO()):
        FederatedAveraging().run(
            settings, SimulatedBackend(clients, None), model, steps, NNEvalHyperParams(None), callbacks=[Stopwatch()]
        )
    return float(np.min(np.diff(ends)))


PEERS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], float]]] = {
    "FedJAX": ("fedjax", fedjax_round),
    "Flower": ("flwr", flower_round),
    "pfl": ("pfl", pfl_round),
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
    return lines, remarks
