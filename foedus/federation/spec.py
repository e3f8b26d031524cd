"""Terms and settings as JSON: dataclasses by class and fields, functions by module and name; nothing is unpickled.

What a received text can create or call is limited twice: the class or function must be defined in a module of
`STATEMENTS`, or in one that the reader's own site file allows, and it must be what its name says (a dataclass, or a
function).
"""

import dataclasses
import importlib
import types
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

import jax.numpy as jnp
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.problem.constraints import Linear
from foedus.problem.terms import Shape
from foedus.protocol.participation import Schedule
from foedus.runtime.run import plain_tree, rebuild

JsonValue: TypeAlias = Json | str | int | float | bool | None
"""What a statement becomes: a JSON object, or a plain value."""


class Named(Protocol):
    """A class or a function, which its module and its name find again."""

    __module__: str
    __qualname__: str


STATEMENTS = (
    "foedus.problem.losses",
    "foedus.problem.likelihoods",
    "foedus.problem.penalties",
    "foedus.problem.regularizers",
    "foedus.problem.constraints",
    "foedus.problem.terms",
    "foedus.problem.weights",
    "foedus.algorithms",
    "foedus.robust",
    "foedus.privacy",
    "foedus.protocol.participation",
)
"""The modules of foedus whose classes and functions state a problem or an algorithm."""


def encode(thing: object) -> JsonValue:
    """Return a statement as JSON can hold it."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, np.generic):
        return thing.item()
    if isinstance(thing, tuple | list | frozenset):
        kind = type(thing).__name__
        return {"of": kind, "items": [encode(v) for v in (sorted(thing) if kind == "frozenset" else thing)]}
    if isinstance(thing, dict):
        return {"of": "dict", "items": [[encode(k), encode(v)] for k, v in thing.items()]}
    if isinstance(thing, Shape):
        return _encode_shape(thing)
    if isinstance(thing, Linear):
        return {"of": "Linear", "kind": thing.kind, "scope": thing.scope, "key": thing.key}
    if isinstance(thing, Schedule):
        table = np.asarray(thing.table)
        plan = [[int(i) for i in row if i < thing.clients] for row in table]
        return {"of": "Schedule", "clients": thing.clients, "plan": plan, "dropout": thing.dropout}
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        _check_findable(type(thing))
        fields = {f.name: encode(getattr(thing, f.name)) for f in dataclasses.fields(thing) if f.init}
        return {"of": "class", "name": _name(type(thing)), "fields": fields}
    if callable(thing) and hasattr(thing, "__qualname__"):
        _check_findable(thing)
        return {"of": "function", "name": _name(thing)}
    raise FoedusError(
        f"{thing!r} cannot be told to a site; use the settings of foedus, or a function of an importable module."
    )


def _name(thing: Named) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _check_findable(thing: Named) -> None:
    if thing.__module__ == "__main__" or "<" in thing.__qualname__:
        where = "in the main script" if thing.__module__ == "__main__" else "inside a function"
        raise FoedusError(
            f"{thing.__qualname__!r} is defined {where}, where no site can find it; "
            "define it at the top of a module that every site has installed and allowed."
        )


def _encode_shape(shape: Shape) -> Json:
    nesting = plain_tree(shape.unravel(jnp.zeros(shape.dim)))
    record = {"of": "Shape", "tree": nesting, "shapes": [list(s) for s in shape.shapes]}
    if _decode_shape(record) != shape:
        raise FoedusError("the parameters are a tree of a kind that cannot be told to a site; use dicts and lists.")
    return record


def _decode_shape(record: Json) -> Shape:
    leaves = iter(np.zeros([int(n) for n in s]) for s in record["shapes"])
    return Shape.of(rebuild(record["tree"], leaves))


def decode(text: object, modules: Iterable[str] = ()) -> Any:
    """Return what `encode` wrote; `modules` names modules beside those of foedus whose contents may be used."""
    places = (*STATEMENTS, *modules)
    try:
        return _decode(text, places)
    except FoedusError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FoedusError("a statement of the experiment cannot be read; the versions of foedus may differ.") from None


def _decode(text: object, modules: tuple[str, ...]) -> Any:
    if not isinstance(text, dict):
        if text is None or isinstance(text, bool | int | float | str):
            return text
        raise TypeError
    match text["of"]:
        case "tuple" | "list" | "frozenset" as kind:
            return {"tuple": tuple, "list": list, "frozenset": frozenset}[kind](
                _decode(v, modules) for v in text["items"]
            )
        case "dict":
            return {_decode(k, modules): _decode(v, modules) for k, v in text["items"]}
        case "Shape":
            return _decode_shape(text)
        case "Linear":
            return Linear(None, None, text["kind"], scope=text["scope"]).with_key(
                int(text["key"].removeprefix("linear")), []
            )
        case "Schedule":
            plan = np.zeros((len(text["plan"]), text["clients"]), dtype=bool)
            for row, clients in zip(plan, text["plan"], strict=True):
                row[clients] = True
            return Schedule(plan, text["dropout"])
        case "class":
            cls = _find(text["name"], modules)
            if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
                raise FoedusError(f"{text['name']} is no statement of a problem or an algorithm.")
            return cls(**{k: _decode(v, modules) for k, v in text["fields"].items()})
        case "function":
            fn = _find(text["name"], modules)
            if isinstance(fn, type) or not callable(fn):
                raise FoedusError(f"{text['name']} is not a function.")
            return fn
    raise TypeError


def _find(name: str, modules: tuple[str, ...]) -> Any:
    """Return the class or function that is defined under this name in one of these modules."""
    module, _, qualname = name.partition(":")
    if not any(module == k or module.startswith(k + ".") for k in modules):
        raise FoedusError(f"the experiment uses {name}, of a module that is not allowed here.")
    try:
        thing: Any = importlib.import_module(module)
        for part in qualname.split("."):
            thing = getattr(thing, part)
    except (ImportError, AttributeError):
        raise FoedusError(f"the experiment uses {name}, which is not installed here.") from None
    if isinstance(thing, types.ModuleType) or (getattr(thing, "__module__", None), _qualname(thing)) != (
        module,
        qualname,
    ):
        raise FoedusError(f"the experiment uses {name}, which is defined elsewhere.")
    return thing


def _qualname(thing: object) -> str | None:
    return getattr(thing, "__qualname__", None)
