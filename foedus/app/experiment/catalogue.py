"""What an experiment file may name: the package's algorithms, losses, penalties, regularisers, constraints and noises.

The lists are made by looking at the package, so a class that is added there can be named in a file without any change
here.
"""

import dataclasses
import importlib
import importlib.metadata
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Generic, TypeAlias, TypeVar

from foedus.algorithms.auto import Auto
from foedus.base.errors import FoedusError, did_you_mean
from foedus.federation.flare.driver import Flare
from foedus.privacy.central import Central
from foedus.privacy.noise import Noise
from foedus.privacy.total import Local
from foedus.problem.constraints import Constraint
from foedus.problem.constraints import Linear as LinearRows
from foedus.problem.losses import Loss
from foedus.problem.penalties import Penalty
from foedus.problem.regularizers import Regularizer
from foedus.problem.terms import Mask
from foedus.protocol.algorithm import Algorithm
from foedus.statistics.rates import KINDS, RateTerm

ENTRY_POINTS = "foedus.algorithms"  # the group under which a package offers algorithms

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Readers: TypeAlias = Mapping[object, Callable[[object, str], object]]
"""By a type hint: the function that turns a file's value into such a thing; it is given the place for its messages."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One setting of an offer."""

    name: str
    hint: object
    is_required: bool
    default: object = None
    doc: str = ""
    choices: tuple[object, ...] = ()


@dataclasses.dataclass(frozen=True)
class Offer(Generic[T_co]):
    """Something that a file can ask for by name, with settings."""

    name: str
    what: str  # "algorithm", "loss", …
    make: Callable[..., T_co]
    parameters: Mapping[str, Parameter]
    doc: str = ""

    def build(self, request: Mapping[str, object], place: str, read: Readers | None = None) -> T_co:
        """Make the thing with these settings; `read` turns a file's values into what a type hint asks for, as Mask."""
        for key in request:
            if key not in self.parameters:
                names = list(self.parameters)
                has = f"its settings are {', '.join(names)}" if names else "it has no settings"
                raise FoedusError(f"{place}: {self.name} has no setting {key!r}; {has}.{did_you_mean(key, names)}")
        for name, parameter in self.parameters.items():
            if parameter.is_required and name not in request:
                raise FoedusError(f"{place}: {self.name} needs {name!r}.")
        arguments = {
            key: self._convert(self.parameters[key], value, f"{place} {key}", read or {})
            for key, value in request.items()
        }
        try:
            return self.make(**arguments)
        except FoedusError as error:
            raise FoedusError(f"{place}: {error}") from None
        except TypeError:
            request_text = ", ".join(f"{key} = {value!r}" for key, value in request.items())
            raise FoedusError(
                f"{place}: {self.name} cannot be made with {request_text}; check the kinds of values."
            ) from None

    @staticmethod
    def _convert(parameter: Parameter, value: object, place: str, read: Readers) -> object:
        """The value as the parameter takes it."""
        hints = (parameter.hint, *typing.get_args(parameter.hint))
        for hint, reader in read.items():
            if hint in hints:
                return reader(value, place)
        nothing = parameter.default is None and not parameter.is_required
        if value == "none" and (nothing or None in parameter.choices):
            return None  # TOML has no null, so a file says "none"
        if isinstance(value, list):
            return _tuples(value)
        if isinstance(value, str) and value in ("inf", "infinity") and parameter.hint is float:
            return float("inf")
        return value


def _tuples(value: object) -> object:
    """Lists as tuples, at every depth: settings are hashed, for JAX compiles once for equal settings."""
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _of_dataclass(cls: type[T], what: str) -> Offer[T]:
    """The offer of a dataclass, whose fields are the settings."""
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    parameters = {}
    for field in (f for f in dataclasses.fields(cls) if not f.metadata.get("hidden")):
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        name = field.metadata.get("alias") or field.name
        parameters[name] = Parameter(
            name,
            hints.get(field.name),
            is_required,
            None if is_required else field.default,
            field.metadata.get("doc", ""),
            tuple(field.metadata.get("choices", ())),
        )
    return Offer(cls.__name__, what, cls, parameters, _first_line(cls))


def _of_function(function: Callable[..., T], what: str) -> Offer[T]:
    """The offer of a function, whose parameters are the settings."""
    hints = typing.get_type_hints(function)
    parameters = {
        p.name: Parameter(p.name, hints.get(p.name), p.default is p.empty, None if p.default is p.empty else p.default)
        for p in inspect.signature(function).parameters.values()
    }
    return Offer(function.__name__, what, function, parameters, _first_line(function))


def _expressible(offer: Offer[object], kind: type) -> bool:
    """Whether a file can state all settings: none is a function, or another object of the same kind."""
    for parameter in offer.parameters.values():
        hints = (parameter.hint, *typing.get_args(parameter.hint))
        if Mask in hints or Loss in hints:
            continue
        if any(isinstance(h, type) and issubclass(h, kind) for h in hints):
            return False
        if any(typing.get_origin(h) is typing.get_origin(Callable[..., object]) for h in hints):
            return False
    return True


def _members(module: ModuleType, kind: type[T], what: str, core: str) -> dict[str, Offer[T]]:
    """The classes of a kind in a module that define the method `core`, and the functions that return one."""
    offers: dict[str, Offer[T]] = {}
    for name, member in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(member, type) and issubclass(member, kind) and member is not kind:
            if dataclasses.is_dataclass(member) and getattr(member, core) is not getattr(kind, core):
                offers[name] = _of_dataclass(member, what)
        elif inspect.isfunction(member) and member.__module__ == module.__name__:
            result = typing.get_type_hints(member).get("return")
            if isinstance(result, type) and issubclass(result, kind):
                offers[name] = _of_function(member, what)
    return {name: offer for name, offer in offers.items() if _expressible(offer, kind)}


@cache
def algorithms() -> dict[str, Offer[Algorithm]]:
    """Return the algorithms that foedus exports, and those that installed packages offer by an entry point."""
    import foedus as fd

    # the estimators are left out by name: to look at them would import scikit-learn
    members = [getattr(fd, name) for name in fd.__all__ if not name.endswith(("Classifier", "Regressor", "Regression"))]
    classes = [cls for cls in members if isinstance(cls, type) and issubclass(cls, Algorithm)]
    own = {cls.__name__: _of_dataclass(cls, "algorithm") for cls in classes if dataclasses.is_dataclass(cls)}
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: _own_algorithm(point.value, f"the entry point {point.name}") for point in points} | own


def find_algorithm(name: object, place: str) -> Offer[Algorithm]:
    """Return the algorithm with this name, or the one that "module:Class" names."""
    if isinstance(name, str) and ":" in name:
        return _own_algorithm(name, place)
    if isinstance(name, str) and name.lower() == "auto":
        return dataclasses.replace(_of_dataclass(Auto, "algorithm"), name="auto")
    return find_offer(name, algorithms(), place)


def _own_algorithm(name: str, place: str) -> Offer[Algorithm]:
    """An algorithm of a module that is not part of foedus."""
    module, _, qualname = name.partition(":")
    try:
        cls = getattr(importlib.import_module(module), qualname, None)
    except ImportError as error:
        raise FoedusError(f"{place} = {name!r}: the module {module!r} cannot be imported ({error}).") from None
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise FoedusError(f"{place} = {name!r}: {module!r} has no algorithm {qualname!r}.")
    if not dataclasses.is_dataclass(cls):
        raise FoedusError(f"{place} = {name!r}: write @settings above class {qualname}.")
    return dataclasses.replace(_of_dataclass(cls, "algorithm"), name=name)


@cache
def losses() -> dict[str, Offer[Loss]]:
    """Return the losses by the names of `fd.losses`."""
    from foedus.problem import losses as module

    ready = {name: value for name, value in vars(module).items() if isinstance(value, Loss)}
    plain: dict[str, Offer[Loss]] = {
        name: Offer(name, "loss", lambda value=value: value, {}, _first_line(type(value)))
        for name, value in ready.items()
    }
    factories = {
        n: o
        for n, o in _members(module, Loss, "loss", "value").items()
        if inspect.isfunction(o.make) and n != "as_loss"
    }
    return plain | factories


@cache
def penalties() -> dict[str, Offer[Penalty]]:
    """Return the penalties by the names of `fd.penalties`."""
    from foedus.problem import penalties as module

    return _members(module, Penalty, "penalty", "size")


@cache
def regularizers() -> dict[str, Offer[Regularizer]]:
    """Return the regularisers by the names of `fd.regularizers`; to have none, a file leaves the key out."""
    from foedus.problem import regularizers as module

    offers = _members(module, Regularizer, "regulariser", "value")
    return {name: offer for name, offer in offers.items() if name != "Zero"}


class Coefficients(dict[str, float]):
    """The coefficients of a linear constraint, by the names of the features."""


def Linear(coefficients: Coefficients, at_most: float, kind: str = "<=", scope: str = "local") -> Constraint:
    """The sum of coefficient times the model's number is at most, or with kind "==" equal to, `at_most`."""
    if isinstance(at_most, bool) or not isinstance(at_most, int | float):
        raise FoedusError(f"The 'at_most' of Linear must be a number. Got {at_most!r} instead.")
    return LinearRows([list(coefficients.values())], [float(at_most)], kind, scope=scope)


@cache
def constraints() -> dict[str, Offer[Constraint]]:
    """Return the constraints by the names of `fd.constraints`; a linear one names features instead of giving rows."""
    from foedus.problem import constraints as module

    offers = _members(module, Constraint, "constraint", "labels")
    return offers | {"Linear": _of_function(Linear, "constraint")}


@cache
def rates() -> dict[str, Offer[RateTerm]]:
    """Return the terms on rates, which choose a threshold after training."""
    return {name: dataclasses.replace(_of_dataclass(kind, "constraint"), name=name) for name, kind in KINDS.items()}


@cache
def noises() -> dict[str, Offer[Noise]]:
    """Return the noises that sites can add to what they send."""
    import foedus as fd
    from foedus.privacy import noise as module

    members = [getattr(module, name, None) for name in fd.__all__]
    classes = [cls for cls in members if isinstance(cls, type) and issubclass(cls, Noise)]
    return {cls.__name__: _of_dataclass(cls, "noise") for cls in classes if dataclasses.is_dataclass(cls)}


@cache
def totals() -> dict[str, Offer[Local]]:
    """Return the ways to state a privacy total: noise of each site's own, or in shares that add up to a curator's."""
    return {"Local": _of_dataclass(Local, "kind of total"), "Central": _of_dataclass(Central, "kind of total")}


@cache
def runtimes() -> dict[str, Offer[Flare | None]]:
    """Return where rounds can be played: in this process (None), or by sites that run on their own."""
    here: Offer[None] = Offer("simulate", "runtime", lambda: None, {}, "All sites in this process.")
    return {"simulate": here, "Flare": _of_dataclass(Flare, "runtime")}


def find_offer(name: object, offers: Mapping[str, Offer[T]], place: str) -> Offer[T]:
    """Return the offer of this name, in whatever case; raise, with the names there are, where it is missing."""
    if isinstance(name, str):
        for offer_name, offer in offers.items():
            if offer_name.lower() == name.lower():
                return offer
    what = next(iter(offers.values())).what if offers else "such thing"
    hint = did_you_mean(name, offers) if isinstance(name, str) else ""
    raise FoedusError(f"{place}: there is no {what} {name!r}, only {', '.join(sorted(offers))}.{hint}")
