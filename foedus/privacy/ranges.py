"""Ranges of the numbers that state a private run: for numbers within them the bound on one example's effect is proved.

The proofs of `sensitivity` are about real numbers. What floating point adds to them is charged for as long as nothing
overflows and nothing vanishes; so numbers beyond these ranges are refused, for themselves, before any data are read.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from foedus.base.errors import FoedusError

SMALLEST, LARGEST = 1e-15, 1e9  # the size of a number that is not 0
FURTHEST = 1e100  # the largest 1-norm at which anything is computed; beyond it a client sends noise alone
OF_NOISE = ("epsilon", "delta", "most", "total")  # they say how much noise there is, and move no release


def check_ranges(name: str, *statements: object) -> None:
    """Raise where a number of an algorithm, a problem or a noise is outside the range of what is proved."""
    for statement in statements:
        for path, value in _numbers(statement, ""):
            if value != 0 and not SMALLEST <= abs(value) <= LARGEST:
                raise FoedusError(
                    f"{name} with noise needs numbers that are 0 or of size {SMALLEST:g} to {LARGEST:g}, for which the "
                    f"effect of one example has a proved bound; {path} is {value:g}."
                )


def _numbers(thing: object, path: str) -> Iterator[tuple[str, float]]:
    """Every number of a statement, with the names of the fields that lead to it."""
    if isinstance(thing, int | float) and not isinstance(thing, bool):
        yield path, thing
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for field in dataclasses.fields(thing):
            if field.name not in OF_NOISE:
                yield from _numbers(getattr(thing, field.name, None), f"{path}.{field.name}".lstrip("."))
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _numbers(value, f"{path} of {key}")
    elif isinstance(thing, tuple | list):
        for value in thing:
            yield from _numbers(value, path)
