"""Settings: frozen, keyword-only dataclasses whose values are checked when they are built."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from foedus.base.errors import FoedusError

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass whose fields are checked against the ranges given by `setting`."""
    inner = getattr(cls, "__post_init__", None)

    def check(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.metadata and f.metadata["convert"] is not None and value is not None:
                value = f.metadata["convert"](value)
                object.__setattr__(self, f.name, value)
            _check_setting(type(self).__name__, f, value)
            limits = f.metadata["limits"].values() if f.metadata else ()
            has_range = f.metadata and (f.metadata["integer"] or any(v is not None for v in limits))
            if has_range and value is not None and _is_number(value):  # a number among choices stays the one it is
                object.__setattr__(self, f.name, int(value) if f.metadata["integer"] else float(value))
        if inner is not None:
            inner(self)

    cls.__post_init__ = check  # pyright: ignore[reportAttributeAccessIssue]
    result: Any = dataclass(frozen=True, kw_only=True)(cls)
    fields = [f for f in dataclasses.fields(result) if f.metadata]
    aliases = {f.metadata["alias"]: f.name for f in fields if f.metadata["alias"]}
    if aliases:
        _accept(result, aliases)
    return result


def _accept(cls: Any, aliases: dict[str, str]) -> None:
    """Let the class take its settings under their aliases too."""
    build = cls.__init__

    @functools.wraps(build)
    def init(self: object, **values: object) -> None:
        build(self, **{aliases.get(name, name): value for name, value in values.items()})

    cls.__init__ = init


def setting(
    default: object,
    doc: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    choices: tuple[object, ...] = (),
    integer: bool = False,
    also: tuple[str, Callable[[object], bool]] | None = None,
    travels: bool = False,
    alias: str = "",
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare one setting: its default, what it is (with the equation it enters), and its range or choices.

    `also` names a further form that a value may have, and says whether one has it. A setting that `travels` reaches the
    compiled functions as data beside the clients' own, not as a constant; two algorithms that differ only in such
    settings compare equal and share one compiled program. `alias` is a second name under which the setting can be
    given, and `convert` brings a value into the form in which it is kept.
    """
    limits = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    meta = {"doc": doc, "choices": choices, "integer": integer, "limits": limits, "also": also}
    meta |= {"alias": alias, "convert": convert}
    return field(default=default, metadata=meta, compare=not travels)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _check_setting(owner: str, f: dataclasses.Field[Any], value: object) -> None:
    meta = f.metadata
    choices = meta.get("choices", ())
    if not meta or any(type(value) is type(c) and value == c for c in choices) or (value is None and f.default is None):
        return
    if meta.get("also") is not None and meta["also"][1](value):
        return
    limits = {k: v for k, v in meta["limits"].items() if v is not None}
    number = _is_number(value)
    if not limits and not meta["choices"] and not meta["integer"] and meta.get("also") is None:
        return
    if number and (limits or meta["integer"]):
        assert isinstance(value, int | float | np.integer | np.floating)
        whole = not meta["integer"] or float(value).is_integer()
        tests = {"gt": value > limits.get("gt", -math.inf), "ge": value >= limits.get("ge", -math.inf)}
        tests |= {"lt": value < limits.get("lt", math.inf), "le": value <= limits.get("le", math.inf)}
        if whole and not math.isnan(value) and all(tests[k] for k in limits):
            return
    words = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [f"{words[k]} {v:g}" for k, v in limits.items()]
    kind = "a whole number " if meta["integer"] else "a number " if limits else ""
    options = [kind + " and ".join(bounds)] if kind else []
    options += [repr(c) for c in choices] + (["None"] if f.default is None and None not in choices else [])
    options += [meta["also"][0]] if meta.get("also") is not None else []
    raise FoedusError(f"The {f.name!r} setting of {owner} must be {' or '.join(options)}. Got {value!r} instead.")
