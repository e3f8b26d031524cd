"""Optimisers of optax as settings, which are compared, stored and sent by name and arguments, not as Python objects."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean

if TYPE_CHECKING:
    import optax

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
    transformation: "optax.GradientTransformation | None" = dataclasses.field(default=None, compare=False, repr=False)

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
        import optax  # which takes a tenth of a second, and few runs use

        try:
            return getattr(optax, self.name)(**dict(self.arguments))
        except TypeError as error:
            raise FoedusError(f"optax.{self.name} cannot be made from {dict(self.arguments)}: {error}.") from None


def is_optimizer(value: object) -> bool:
    """Whether a value is an optimiser, made by optax or named."""
    from optax import GradientTransformation

    return isinstance(value, Optimizer | GradientTransformation)


def as_optimizer(value: "Optimizer | optax.GradientTransformation | Mapping[str, float | bool | str] | None"):
    """An `Optimizer`, from one, from an object of optax, or from a table such as {name = "adam", learning_rate = 0.1}.

    Example:
        >>> import optax
        >>> as_optimizer(optax.sgd(0.1)) == as_optimizer(optax.sgd(0.1))
        True
        >>> as_optimizer(optax.sgd(0.1)) == as_optimizer(optax.sgd(0.2))
        False
        >>> as_optimizer(optax.sgd(0.1, momentum=0.9)).name
        'chain(trace(0.9, False), scale(-0.1))'
    """
    from optax import GradientTransformation

    if isinstance(value, GradientTransformation):
        return Optimizer(_words(value), transformation=value)
    if isinstance(value, Mapping):
        arguments = {k: v for k, v in value.items() if k != "name"}
        return Optimizer(str(value.get("name")), tuple(sorted(arguments.items())))
    return value


def _words(value: object) -> str:
    """A function by its name and the values it closes over, which hold the settings it was made with.

    `optax.sgd(0.1)` reads "chain(identity, scale(-0.1))". What starts the state is written only where it has settings.
    """
    from optax import GradientTransformation

    if isinstance(value, GradientTransformation):
        start, update = _words(value.init), _words(value.update)
        settings = any(sign.isdigit() for sign in start) and not start.startswith("chain(")  # a chain repeats its parts
        return f"{update} from {start}" if settings else update
    if isinstance(value, FunctionType):
        maker = value.__qualname__.split(".<locals>")[0]
        name = maker if value.__module__.startswith("optax.") else f"{value.__module__}.{maker}"
        inside = [_words(content) for content in _closure(value) if content is not None]
        if name == "with_extra_args_support":  # a wrapper, about which there is nothing to say
            return inside[0]
        return name + (f"({', '.join(inside)})" if inside else "")
    if isinstance(value, tuple | list):
        return ", ".join(map(_words, value))
    if isinstance(value, Callable):
        return getattr(value, "__qualname__", type(value).__name__)
    return repr(np.asarray(value).tolist()) if isinstance(value, np.ndarray) else repr(value)


def _closure(function: FunctionType) -> list[object]:
    """The values that a function closes over, without itself, which a recursive one closes over too."""
    contents = []
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # a name that has not been given a value
            continue
        contents.append(None if content is function else content)
    return contents
