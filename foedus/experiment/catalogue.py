"""What a file may name: the algorithms, losses, penalties, regularisers, constraints and noises of the package itself.

Everything is found by looking at the package, so that what is added there can be named here without another line.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from foedus.errors import FoedusError, did_you_mean
from foedus.losses import Loss
from foedus.terms import Mask


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One setting of an offer."""

    name: str
    hint: Any
    is_required: bool
    default: Any = None
    doc: str = ""
    choices: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Offer:
    """Something that a file can ask for by name, with settings."""

    name: str
    what: str  # "algorithm", "loss", …
    make: Callable[..., Any]
    parameters: Mapping[str, Parameter]
    doc: str = ""

    def build(
        self, request: Mapping[str, Any], place: str, read: Mapping[Any, Callable[[Any, str], Any]] | None = None
    ) -> Any:
        """Make it with these settings; `read` turns a file's words into what a hint asks for, as Mask or Loss."""
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
    def _convert(parameter: Parameter, value: Any, place: str, read: Mapping[Any, Callable[[Any, str], Any]]) -> Any:
        hints = (parameter.hint, *typing.get_args(parameter.hint))
        for hint, reader in read.items():
            if hint in hints:
                return reader(value, place)
        nothing = parameter.default is None and not parameter.is_required
        if value == "none" and (nothing or None in parameter.choices):
            return None  # TOML has no word for it
        if isinstance(value, list):
            return _tuples(value)
        if isinstance(value, str) and value in ("inf", "infinity") and parameter.hint is float:
            return float("inf")
        return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _of_dataclass(cls: type, what: str) -> Offer:
    hints = typing.get_type_hints(cls)
    parameters = {}
    for field in (f for f in dataclasses.fields(cls) if not f.metadata.get("hidden")):
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        parameters[field.name] = Parameter(
            field.name,
            hints.get(field.name),
            is_required,
            None if is_required else field.default,
            field.metadata.get("doc", ""),
            tuple(field.metadata.get("choices", ())),
        )
    return Offer(cls.__name__, what, cls, parameters, _first_line(cls))


def _of_function(function: Callable[..., Any], what: str) -> Offer:
    hints = typing.get_type_hints(function)
    parameters = {
        p.name: Parameter(p.name, hints.get(p.name), p.default is p.empty, None if p.default is p.empty else p.default)
        for p in inspect.signature(function).parameters.values()
    }
    return Offer(function.__name__, what, function, parameters, _first_line(function))


def _expressible(offer: Offer, kind: type) -> bool:
    """Whether all settings can be written in a file: no functions, and no other object of the same kind."""
    for parameter in offer.parameters.values():
        hints = (parameter.hint, *typing.get_args(parameter.hint))
        if Mask in hints or Loss in hints:
            continue
        if any(isinstance(h, type) and issubclass(h, kind) for h in hints):
            return False
        if any(typing.get_origin(h) is typing.get_origin(Callable[..., Any]) for h in hints):
            return False
    return True


def _members(module: Any, kind: type, what: str, core: str) -> dict[str, Offer]:
    """The classes of a kind in a module that define the function `core`, and the functions that make one."""
    offers = {}
    for name, member in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(member, type) and issubclass(member, kind) and member is not kind:
            if dataclasses.is_dataclass(member) and getattr(member, core) is not getattr(kind, core):
                offers[name] = _of_dataclass(member, what)
        elif inspect.isfunction(member) and member.__module__ == module.__name__:
            kind_made = typing.get_type_hints(member).get("return")
            if isinstance(kind_made, type) and issubclass(kind_made, kind):
                offers[name] = _of_function(member, what)
    return {name: offer for name, offer in offers.items() if _expressible(offer, kind)}


@cache
def algorithms() -> dict[str, Offer]:
    """The algorithms that foedus exports."""
    import foedus as fd
    from foedus.algorithm import Algorithm

    members = [getattr(fd, name) for name in fd.__all__ if not name.endswith("Classifier")]
    classes = [cls for cls in members if isinstance(cls, type) and issubclass(cls, Algorithm)]
    return {cls.__name__: _of_dataclass(cls, "algorithm") for cls in classes if dataclasses.is_dataclass(cls)}


@cache
def losses() -> dict[str, Offer]:
    """The losses by the names of `fd.losses`."""
    from foedus import losses as module

    ready = {name: value for name, value in vars(module).items() if isinstance(value, Loss)}
    plain = {
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
def penalties() -> dict[str, Offer]:
    from foedus import penalties as module

    return _members(module, module.Penalty, "penalty", "size")


@cache
def regularizers() -> dict[str, Offer]:
    from foedus import regularizers as module

    offers = _members(module, module.Regularizer, "regulariser", "value")
    return {name: offer for name, offer in offers.items() if name != "Zero"}


class Coefficients(dict[str, float]):
    """The numbers of the model in a linear constraint, by the names of the features."""


def Linear(coefficients: Coefficients, at_most: float, kind: str = "<=", scope: str = "local") -> Any:
    """The sum of coefficient times the model's number is at most, or with kind "==" equal to, `at_most`."""
    from foedus.constraints import Linear as Rows

    if isinstance(at_most, bool) or not isinstance(at_most, int | float):
        raise FoedusError(f"The 'at_most' of Linear must be a number. Got {at_most!r} instead.")
    return Rows([list(coefficients.values())], [float(at_most)], kind, scope=scope)


@cache
def constraints() -> dict[str, Offer]:
    from foedus import constraints as module

    offers = _members(module, module.Constraint, "constraint", "labels")
    return offers | {"Linear": _of_function(Linear, "constraint")}


@cache
def noises() -> dict[str, Offer]:
    """The noises that sites can add to what they send, where this version of foedus has any."""
    if importlib.util.find_spec("foedus.privacy.noise") is None:
        return {}
    import foedus as fd

    module = importlib.import_module("foedus.privacy.noise")
    return {name: _of_dataclass(getattr(fd, name), "noise") for name in fd.__all__ if _is_noise(module, name)}


@cache
def totals() -> dict[str, Offer]:
    """The ways to state a total for each site."""
    import foedus as fd

    return {"Local": _of_dataclass(fd.Local, "privacy")}


@cache
def runtimes() -> dict[str, Offer]:
    """Where rounds can be played: in this process, or over sites that run on their own."""
    from foedus.runtime.flare.driver import Flare

    here = Offer("simulate", "runtime", lambda: None, {}, "All sites in this process.")
    return {"simulate": here, "Flare": _of_dataclass(Flare, "runtime")}


def _is_noise(module: Any, name: str) -> bool:
    member = getattr(module, name, None)
    return isinstance(member, type) and issubclass(member, module.Noise) and dataclasses.is_dataclass(member)


def find_offer(name: Any, offers: Mapping[str, Offer], place: str) -> Offer:
    """The offer of this name, in whatever case; or a sentence with those there are."""
    if isinstance(name, str):
        for offer_name, offer in offers.items():
            if offer_name.lower() == name.lower():
                return offer
    what = next(iter(offers.values())).what if offers else "such thing"
    hint = did_you_mean(name, offers) if isinstance(name, str) else ""
    raise FoedusError(f"{place}: there is no {what} {name!r}, only {', '.join(sorted(offers))}.{hint}")
