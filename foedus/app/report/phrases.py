"""Numbers and names as people write them in a sentence."""

import math

import numpy as np


def number(value: float) -> str:
    """Return a number as people write it: four digits, and no exponent unless it is needed."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if isinstance(value, int | np.integer) or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value):,}".replace(",", "\u202f").replace("-", "−")
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")


def cap_words(caps: list[float]) -> str:
    """Return one cap, or the range of several."""
    return number(caps[0]) if len(caps) == 1 else f"its own cap, from {number(caps[0])} to {number(caps[-1])}"


def join_names(names: list[str], most: int = 4) -> str:
    """Join the first few names for a sentence: "a, b and 3 others"."""
    items = names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} others"]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def count(n: int, thing: str) -> str:
    """Return a number of things: "1 site", "2 sites"."""
    return f"{number(n)} {thing}" if n == 1 else f"{number(n)} {thing}s"
