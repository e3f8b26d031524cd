"""Callbacks for `fd.solve` that send the figures of every round to an experiment tracker."""

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from foedus.base.errors import FoedusError

Callback: TypeAlias = Callable[[int, dict[str, float], object], None]


def log_to_mlflow(**settings: object) -> Callback:
    """Return a callback that logs every round to the active run of MLflow, which begins one where there is none.

    Args:
        settings: what else is logged, as the parameters of the run.

    Returns:
        What `fd.solve` takes as its `callback`.

    Example:
        >>> import foedus as fd
        >>> try:
        ...     callback = fd.log_to_mlflow(algorithm="FedAvg", seed=0)
        ... except fd.FoedusError as error:
        ...     print(str(error).partition(";")[0])  # doctest: +ELLIPSIS
        log_to_mlflow needs mlflow...
    """
    mlflow = _tracker("mlflow", "log_to_mlflow")
    if settings:
        mlflow.log_params(settings)

    def log(rounds: int, record: dict[str, float], model: object) -> None:
        mlflow.log_metrics(_metrics(record), step=rounds)

    return log


def log_to_wandb(run: Any = None) -> Callback:
    """Return a callback that logs every round to a run of Weights & Biases.

    Args:
        run: what `wandb.init` returned; the active run when left out.

    Returns:
        What `fd.solve` takes as its `callback`.

    Example:
        >>> import foedus as fd
        >>> class Run:
        ...     def log(self, metrics, step):
        ...         print(step, sorted(metrics)[:1])
        >>> fd.log_to_wandb(Run())(3, {"objective": 0.5, "rounds": 3.0}, None)
        3 ['objective']
    """
    tracker = _tracker("wandb", "log_to_wandb") if run is None else run

    def log(rounds: int, record: dict[str, float], model: object) -> None:
        tracker.log(_metrics(record), step=rounds)

    return log


def _tracker(package: str, what: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise FoedusError(f"{what} needs {package}; install it with: pip install 'foedus[{package}]'.") from None


def _metrics(record: Mapping[str, float]) -> dict[str, float]:
    """The finite figures of a round: trackers take no others."""
    return {name: float(value) for name, value in record.items() if math.isfinite(value)}
