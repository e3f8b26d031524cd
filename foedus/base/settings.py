"""Values are checked in one way, with one sentence; settings are frozen dataclasses whose fields are checked so."""

import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass whose fields are checked against the ranges given by `setting`."""
    inner = getattr(cls, "__post_init__", None)

    def check_fields(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.metadata.get("convert") is not None and value is not None:
                value = f.metadata["convert"](value)
                object.__setattr__(self, f.name, value)
            if f.metadata.get("allowed"):
                what = f"The {f.name!r} setting of {type(self).__name__}"
                object.__setattr__(self, f.name, check(what, value, none=f.default is None, **f.metadata["allowed"]))
        if inner is not None:
            inner(self)

    cls.__post_init__ = check_fields  # pyright: ignore[reportAttributeAccessIssue]
    result: Any = dataclass(frozen=True, kw_only=True)(cls)
    aliases = {f.metadata["alias"]: f.name for f in dataclasses.fields(result) if f.metadata.get("alias")}
    if aliases:
        _accept(result, aliases)
    result.__doc__ = _with_settings(result)
    return result


def _with_settings(cls: Any) -> str | None:
    """The docstring of a class with each of its settings, before its example: what `help` shows."""
    fields = [f for f in dataclasses.fields(cls) if f.metadata.get("doc")]
    if "__doc__" not in vars(cls) or not vars(cls)["__doc__"] or not fields:
        return cls.__doc__
    text = inspect.cleandoc(vars(cls)["__doc__"])
    lines = [f"    {f.metadata.get('alias') or f.name}: {f.metadata['doc']} (default {f.default!r})." for f in fields]
    before, example, after = text.partition("\nExample:\n")
    return "\n".join([before.rstrip(), "", "Settings:", *lines]) + (f"\n{example}{after}" if example else "")


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
    limits = {"gt": gt, "ge": ge, "lt": lt, "le": le, "whole": integer, "choices": choices, "also": also}
    meta = {"doc": doc, "choices": choices, "alias": alias, "convert": convert}
    meta["allowed"] = {name: part for name, part in limits.items() if not (part is None or part is False or part == ())}
    return field(default=default, metadata=meta, compare=not travels)


SIGNS = {"gt": (">", operator.gt), "ge": (">=", operator.ge), "lt": ("<", operator.lt), "le": ("<=", operator.le)}


def check(
    what: str,
    value: object,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    whole: bool = False,
    finite: bool = False,
    choices: Collection[object] = (),
    none: bool = False,
    also: tuple[str, Callable[[object], bool]] | None = None,
) -> Any:
    """Return a value that is allowed, a number in a range as an int or a float; raise a sentence about any other.

    Args:
        what: the subject of the sentence, as "The 'rho' setting of FedGiA".
        value: the value.
        gt: the range of a number, as the names of the comparisons say; likewise `ge`, `lt` and `le`.
        whole: whether a number must be whole.
        finite: whether a number must be finite.
        choices: values that are allowed whatever the range is.
        none: whether there may be none.
        also: the name of a further form that a value may have, and whether it has it.
    """
    limits = {SIGNS[name]: v for name, v in (("gt", gt), ("ge", ge), ("lt", lt), ("le", le)) if v is not None}
    if any(type(value) is type(one) and value == one for one in choices) or (none and value is None):
        return value
    if also is not None and also[1](value):
        return value
    if (limits or whole) and isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        number = float(value)
        good = not math.isnan(number) and (not whole or number.is_integer()) and (not finite or math.isfinite(number))
        if good and all(test(value, limit) for (_, test), limit in limits.items()):
            return int(value) if whole else number
    bounds = " and ".join(f"{sign} {limit:g}" for (sign, _), limit in limits.items())
    if whole and ge is not None and le is not None and le < 2**32:  # a larger limit is one of the machine
        bounds = f"from {ge:g} to {le:g}"
    options = [f"a {'whole ' if whole else ''}number {bounds}".strip()] if limits or whole else []
    options += list(map(repr, choices)) + (["None"] if none and None not in choices else [])
    options += [] if also is None else [also[0]]
    words = f"one of {', '.join(options)}" if 2 < len(options) == len(choices) else " or ".join(options)
    hint = did_you_mean(value, [c for c in choices if isinstance(c, str)]) if isinstance(value, str) else ""
    raise FoedusError(f"{what} must be {words}. Got {value!r} instead.{hint}")
