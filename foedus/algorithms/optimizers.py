"""Optimisers of optax as settings, which are compared, stored and sent by name and arguments, not as Python objects."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING

import numpy as np

from foedus.engine import late
from foedus.errors import FoedusError, did_you_mean

if TYPE_CHECKING:
    import optax
else:
    optax = late("optax")  # which takes a tenth of a second, and few algorithms use

NAMES = (
    "adabelief", "adadelta", "adagrad", "adam", "adamax", "adamw", "amsgrad", "lion", "nadam", "nadamw", "noisy_sgd",
    "novograd", "radam", "rmsprop", "sgd", "yogi",
)  # fmt: skip
"""The optimisers that an experiment file, or the coordinator of a federation, may name."""


@dataclass(frozen=True)
class Optimizer:
    """An optimiser of optax: by name and arguments, or an object that optax has made."""

    name: str
    arguments: tuple[tuple[str, float | bool | str], ...] = ()
    transformation: "optax.GradientTransformation | None" = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.transformation is None:
            self.transform  # noqa: B018  raises for a name or an argument that optax does not know

    @cached_property
    def transform(self) -> "optax.GradientTransformation":
        """The optimiser's two functions, `init` and `update`."""
        if self.transformation is not None:
            return self.transformation
        if self.name not in NAMES:
            raise FoedusError(
                f"optax has no optimiser {self.name!r} that can be named here, only {', '.join(NAMES)}."
                f"{did_you_mean(self.name, NAMES)}"
            )
        try:
            return getattr(optax, self.name)(**dict(self.arguments))
        except TypeError as error:
            raise FoedusError(f"optax.{self.name} cannot be made from {dict(self.arguments)}: {error}.") from None


def is_optimizer(value: object) -> bool:
    """Whether a value is an optimiser, made by optax or named."""
    return isinstance(value, Optimizer | optax.GradientTransformation)


def as_optimizer(value: "Optimizer | optax.GradientTransformation | Mapping[str, float | bool | str] | None"):
    """An `Optimizer`, from one, from an object of optax, or from a table such as {name = "adam", learning_rate = 0.1}.

    Example:
        >>> as_optimizer(optax.sgd(0.1)) == as_optimizer(optax.sgd(0.1))
        True
        >>> as_optimizer(optax.sgd(0.1)) == as_optimizer(optax.sgd(0.2))
        False
    """
    if isinstance(value, optax.GradientTransformation):
        return Optimizer(f"optax({', '.join(_words(part) for part in value)})", transformation=value)
    if isinstance(value, Mapping):
        arguments = {k: v for k, v in value.items() if k != "name"}
        return Optimizer(str(value.get("name")), tuple(sorted(arguments.items())))
    return value


def _words(value: object) -> str:
    """A function by its name and the values it closes over, which hold the settings it was made with."""
    if isinstance(value, FunctionType):
        inside = [_words(cell.cell_contents) for cell in value.__closure__ or ()]
        return f"{value.__module__}.{value.__qualname__}" + (f"[{', '.join(inside)}]" if inside else "")
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_words, value))})"
    if isinstance(value, Callable):
        return getattr(value, "__qualname__", type(value).__name__)
    return repr(np.asarray(value).tolist()) if isinstance(value, np.ndarray) else repr(value)
