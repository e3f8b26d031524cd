"""How figures are written on pages and on the screen: numbers, how many of a thing, bytes, durations, shares."""

import math
import statistics
from collections.abc import Iterable


def number(value: float) -> str:
    """Return a number as people write it: four digits, and no exponent unless it is needed.

    >>> number(1234567), number(0.00012345), number(-0.25)
    ('1,234,567', '0.0001234', '−0.25')
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    whole = float(value).is_integer() and (abs(value) < 1e6 or isinstance(value, int))
    text = f"{int(value):,}" if whole else short(value)
    return text.replace("-", "−")


def spread(values: Iterable[float]) -> str:
    """Return mean and standard deviation of some figures, to two digits of the deviation; of one figure the figure.

    >>> spread([0.813, 0.824, 0.791]), spread([12, 12]), spread([3, 1e6])
    ('0.809 ± 0.017', '12 ± 0', '500,002 ± 707,105')
    """
    figures = [float(value) for value in values]
    mean = statistics.fmean(figures)
    if len(figures) == 1:
        return number(mean)
    deviation = statistics.stdev(figures)
    if not deviation > 1e-12 * abs(mean):
        return f"{number(mean)} ± 0"
    digits = 1 - math.floor(math.log10(deviation))
    if not -5 < digits < 7:
        return f"{number(mean)} ± {number(float(f'{deviation:.2g}'))}"
    return f"{mean:,.{max(digits, 0)}f} ± {deviation:,.{max(digits, 0)}f}".replace("-", "−")


def short(value: float, digits: int = 4) -> str:
    """Return a number with at most so many digits, and an exponent without leading zeros, in letters of every terminal.

    >>> short(1e-6), short(2500000.0)
    ('1e-6', '2.5e6')
    """
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    return mantissa if not exponent else f"{mantissa}e{int(exponent)}"


def count(n: int, thing: str, things: str = "") -> str:
    """Return a number of things, in the plural unless it is one.

    >>> count(1, "round"), count(2000, "round"), count(2, "category", "categories")
    ('1 round', '2,000 rounds', '2 categories')
    """
    return f"{number(n)} {thing if n == 1 else things or thing + 's'}"


def size(bytes: float) -> str:
    """Return a number of bytes with three digits and the unit that fits.

    >>> size(1), size(999), size(48_700), size(2.5e9)
    ('1 B', '999 B', '48.7 kB', '2.5 GB')
    """
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes >= 0.9995 * step:
            return f"{bytes / step:.3g} {unit}" if bytes < 999.5 * step else f"{bytes / step:.0f} {unit}"
    return f"{bytes:.0f} B"


def duration(seconds: float) -> str:
    """Return a duration in the unit that fits: milliseconds, seconds, minutes or hours.

    >>> duration(0.012), duration(4.25), duration(59.7), duration(200), duration(5000)
    ('12 ms', '4.2 s', '60 s', '3 min 20 s', '1.4 h')
    """
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min" + (f" {int(seconds) % 60} s" if seconds < 600 and int(seconds) % 60 else "")
    return f"{seconds / 3600:.1f} h"


def percent(share: float, digits: int = 1) -> str:
    """Return a share in per cent.

    >>> percent(0.125)
    '12.5 %'
    """
    return f"{100 * share:.{digits}f} %".replace("-", "−")
