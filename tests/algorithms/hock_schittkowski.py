"""Problems of W. Hock and K. Schittkowski, "Test Examples for Nonlinear Programming Codes", Springer 1981.

Each is stated as there: rows g(x) ≥ 0, equations h(x) = 0, bounds, the start and the published optimum.
`tests/test_hock_schittkowski.py` checks the statements with scipy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.numpy import exp, log, sin, sqrt

Function = Callable[[Array], Array | float]
Several = Callable[[Array], Sequence[Array | float]]
Bounds = float | Sequence[float]
INF = np.inf


@dataclass(frozen=True, eq=False)
class Stated:
    """One problem of the collection."""

    f: Function
    start: Sequence[float]
    best: float
    g: Several = lambda x: []
    h: Several = lambda x: []
    low: Bounds = -INF
    high: Bounds = INF

    def inequalities(self, x: Array) -> Array:
        """All inequalities, bounds included, as rows that must be ≤ 0."""
        low, high = (np.broadcast_to(np.asarray(b, float), len(self.start)) for b in (self.low, self.high))
        below, above = np.flatnonzero(np.isfinite(low)), np.flatnonzero(np.isfinite(high))
        rows = [-1.0 * row for row in self.g(x)]
        rows += [low[j] - x[j] for j in below]
        rows += [x[j] - high[j] for j in above]
        return jnp.stack([jnp.asarray(row, float) for row in rows]) if rows else jnp.zeros(0)

    def equations(self, x: Array) -> Array:
        """The equations, as rows that must be 0."""
        rows = list(self.h(x))
        return jnp.stack([jnp.asarray(row, float) for row in rows]) if rows else jnp.zeros(0)


def valley(x: Array) -> Array:
    """Rosenbrock's function."""
    return 100.0 * (x[1] - x[0] ** 2) ** 2 + (1.0 - x[0]) ** 2


def product(x: Array) -> Array:
    """The product of all coordinates."""
    out = x[0]
    for j in range(1, x.shape[0]):
        out = out * x[j]
    return out


def wong(x: Array) -> Array:
    """The objective of problem 100."""
    return (
        (x[0] - 10) ** 2 + 5 * (x[1] - 12) ** 2 + x[2] ** 4 + 3 * (x[3] - 11) ** 2 + 10 * x[4] ** 6
        + 7 * x[5] ** 2 + x[6] ** 4 - 4 * x[5] * x[6] - 10 * x[5] - 8 * x[6]
    )  # fmt: skip


def box_of_masses(x: Array) -> list[Array]:
    """The equations of problems 78, 80 and 81."""
    return [jnp.dot(x, x) - 10, x[1] * x[2] - 5 * x[3] * x[4], x[0] ** 3 + x[1] ** 3 + 1]


def transformer(x: Array, a: float, b: float) -> Array:
    """One of the two sums of problem 93."""
    return a * x[0] * x[3] * (x[0] + x[1] + x[2]) + b * x[1] * x[2] * (x[0] + 1.57 * x[1] + x[3])


def reactor(x: Array) -> Array:
    """The objective of problem 104."""
    return 0.4 * x[0] ** 0.67 * x[6] ** -0.67 + 0.4 * x[1] ** 0.67 * x[7] ** -0.67 + 10 - x[0] - x[1]


MIX = np.array([-6.089, -17.164, -34.054, -5.914, -24.721, -14.986, -24.1, -10.708, -26.662, -22.179])


def elements(x: Array) -> list[Array]:
    """The equations of problems 111 and 112."""
    return [
        x[0] + 2 * x[1] + 2 * x[2] + x[5] + x[9] - 2,
        x[3] + 2 * x[4] + x[5] + x[6] - 1,
        x[2] + x[6] + x[7] + 2 * x[8] + x[9] - 1,
    ]


ROOT2, ROOT3 = 2.0**0.5, 3.0**0.5
A56, B56 = float(np.arcsin((1 / 4.2) ** 0.5)), float(np.arcsin((5 / 7.2) ** 0.5))

PROBLEMS: dict[int, Stated] = {
    1: Stated(valley, [-2, 1], 0.0, low=[-INF, -1.5]),
    2: Stated(valley, [-2, 1], 0.0504261879, low=[-INF, 1.5]),
    3: Stated(lambda x: x[1] + 1e-5 * (x[1] - x[0]) ** 2, [10, 1], 0.0, low=[-INF, 0]),
    4: Stated(lambda x: (x[0] + 1) ** 3 / 3 + x[1], [1.125, 0.125], 8 / 3, low=[1, 0]),
    5: Stated(
        lambda x: sin(x[0] + x[1]) + (x[0] - x[1]) ** 2 - 1.5 * x[0] + 2.5 * x[1] + 1,
        [0, 0], -(ROOT3 / 2 + np.pi / 3), low=[-1.5, -3], high=[4, 3],
    ),
    6: Stated(lambda x: (1 - x[0]) ** 2, [-1.2, 1], 0.0, h=lambda x: [10 * (x[1] - x[0] ** 2)]),
    7: Stated(
        lambda x: log(1 + x[0] ** 2) - x[1], [2, 2], -ROOT3, h=lambda x: [(1 + x[0] ** 2) ** 2 + x[1] ** 2 - 4]
    ),
    8: Stated(lambda x: -1.0 + 0 * x[0], [2, 1], -1.0, h=lambda x: [x[0] ** 2 + x[1] ** 2 - 25, x[0] * x[1] - 9]),
    9: Stated(
        lambda x: sin(np.pi * x[0] / 12) * jnp.cos(np.pi * x[1] / 16), [0, 0], -0.5, h=lambda x: [4 * x[0] - 3 * x[1]]
    ),
    10: Stated(
        lambda x: x[0] - x[1], [-10, 10], -1.0, g=lambda x: [-3 * x[0] ** 2 + 2 * x[0] * x[1] - x[1] ** 2 + 1]
    ),
    11: Stated(
        lambda x: (x[0] - 5) ** 2 + x[1] ** 2 - 25, [4.9, 0.1], -8.498464223, g=lambda x: [-(x[0] ** 2) + x[1]]
    ),
    12: Stated(
        lambda x: 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1], [0, 0], -30.0,
        g=lambda x: [25 - 4 * x[0] ** 2 - x[1] ** 2],
    ),
    13: Stated(
        lambda x: (x[0] - 2) ** 2 + x[1] ** 2, [-2, -2], 1.0, g=lambda x: [(1 - x[0]) ** 3 - x[1]], low=0
    ),
    14: Stated(
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2, [2, 2], 9 - 2.875 * 7**0.5,
        g=lambda x: [-(x[0] ** 2) / 4 - x[1] ** 2 + 1], h=lambda x: [x[0] - 2 * x[1] + 1],
    ),
    15: Stated(valley, [-2, 1], 306.5, g=lambda x: [x[0] * x[1] - 1, x[0] + x[1] ** 2], high=[0.5, INF]),
    16: Stated(
        valley, [-2, 1], 0.25, g=lambda x: [x[0] + x[1] ** 2, x[0] ** 2 + x[1]], low=[-0.5, -INF], high=[0.5, 1]
    ),
    17: Stated(
        valley, [-2, 1], 1.0, g=lambda x: [x[1] ** 2 - x[0], x[0] ** 2 - x[1]], low=[-0.5, -INF], high=[0.5, 1]
    ),
    18: Stated(
        lambda x: 0.01 * x[0] ** 2 + x[1] ** 2, [2, 2], 5.0,
        g=lambda x: [x[0] * x[1] - 25, x[0] ** 2 + x[1] ** 2 - 25], low=[2, 0], high=50,
    ),
    19: Stated(
        lambda x: (x[0] - 10) ** 3 + (x[1] - 20) ** 3, [20.1, 5.84], -6961.81381,
        g=lambda x: [(x[0] - 5) ** 2 + (x[1] - 5) ** 2 - 100, 82.81 - (x[0] - 6) ** 2 - (x[1] - 5) ** 2],
        low=[13, 0], high=100,
    ),
    20: Stated(
        valley, [-2, 1], 81.5 - 25 * ROOT3,
        g=lambda x: [x[0] + x[1] ** 2, x[0] ** 2 + x[1], x[0] ** 2 + x[1] ** 2 - 1], low=[-0.5, -INF], high=[0.5, INF],
    ),
    21: Stated(
        lambda x: 0.01 * x[0] ** 2 + x[1] ** 2 - 100, [-1, -1], -99.96,
        g=lambda x: [10 * x[0] - x[1] - 10], low=[2, -50], high=50,
    ),
    22: Stated(
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2, [2, 2], 1.0, g=lambda x: [2 - x[0] - x[1], x[1] - x[0] ** 2]
    ),
    23: Stated(
        lambda x: x[0] ** 2 + x[1] ** 2, [3, 1], 2.0,
        g=lambda x: [
            x[0] + x[1] - 1, x[0] ** 2 + x[1] ** 2 - 1, 9 * x[0] ** 2 + x[1] ** 2 - 9, x[0] ** 2 - x[1],
            x[1] ** 2 - x[0],
        ],
        low=-50, high=50,
    ),
    24: Stated(
        lambda x: ((x[0] - 3) ** 2 - 9) * x[1] ** 3 / (27 * ROOT3), [1, 0.5], -1.0,
        g=lambda x: [x[0] / ROOT3 - x[1], x[0] + ROOT3 * x[1], 6 - x[0] - ROOT3 * x[1]], low=0,
    ),
    26: Stated(
        lambda x: (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4, [-2.6, 2, 2], 0.0,
        h=lambda x: [(1 + x[1] ** 2) * x[0] + x[2] ** 4 - 3],
    ),
    27: Stated(
        lambda x: 0.01 * (x[0] - 1) ** 2 + (x[1] - x[0] ** 2) ** 2, [2, 2, 2], 0.04, h=lambda x: [x[0] + x[2] ** 2 + 1]
    ),
    28: Stated(
        lambda x: (x[0] + x[1]) ** 2 + (x[1] + x[2]) ** 2, [-4, 1, 1], 0.0,
        h=lambda x: [x[0] + 2 * x[1] + 3 * x[2] - 1],
    ),
    29: Stated(
        lambda x: -product(x), [1, 1, 1], -16 * ROOT2, g=lambda x: [48 - x[0] ** 2 - 2 * x[1] ** 2 - 4 * x[2] ** 2]
    ),
    30: Stated(
        lambda x: jnp.dot(x, x), [1, 1, 1], 1.0, g=lambda x: [x[0] ** 2 + x[1] ** 2 - 1], low=[1, -10, -10], high=10
    ),
    31: Stated(
        lambda x: 9 * x[0] ** 2 + x[1] ** 2 + 9 * x[2] ** 2, [1, 1, 1], 6.0,
        g=lambda x: [x[0] * x[1] - 1], low=[-10, 1, -10], high=[10, 10, 1],
    ),
    32: Stated(
        lambda x: (x[0] + 3 * x[1] + x[2]) ** 2 + 4 * (x[0] - x[1]) ** 2, [0.1, 0.7, 0.2], 1.0,
        g=lambda x: [6 * x[1] + 4 * x[2] - x[0] ** 3 - 3], h=lambda x: [1 - x[0] - x[1] - x[2]], low=0,
    ),
    33: Stated(
        lambda x: (x[0] - 1) * (x[0] - 2) * (x[0] - 3) + x[2], [0, 0, 3], ROOT2 - 6,
        g=lambda x: [x[2] ** 2 - x[1] ** 2 - x[0] ** 2, jnp.dot(x, x) - 4], low=0, high=[INF, INF, 5],
    ),
    34: Stated(
        lambda x: -x[0], [0, 1.05, 2.9], -np.log(np.log(10.0)),
        g=lambda x: [x[1] - exp(x[0]), x[2] - exp(x[1])], low=0, high=[100, 100, 10],
    ),
    35: Stated(
        lambda x: 9 - 8 * x[0] - 6 * x[1] - 4 * x[2] + 2 * x[0] ** 2 + 2 * x[1] ** 2 + x[2] ** 2 + 2 * x[0] * x[1]
        + 2 * x[0] * x[2],
        [0.5, 0.5, 0.5], 1 / 9, g=lambda x: [3 - x[0] - x[1] - 2 * x[2]], low=0,
    ),
    36: Stated(
        lambda x: -product(x), [10, 10, 10], -3300.0,
        g=lambda x: [72 - x[0] - 2 * x[1] - 2 * x[2]], low=0, high=[20, 11, 42],
    ),
    37: Stated(
        lambda x: -product(x), [10, 10, 10], -3456.0,
        g=lambda x: [72 - x[0] - 2 * x[1] - 2 * x[2], x[0] + 2 * x[1] + 2 * x[2]], low=0, high=42,
    ),
    38: Stated(
        lambda x: 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2 + 90 * (x[3] - x[2] ** 2) ** 2 + (1 - x[2]) ** 2
        + 10.1 * ((x[1] - 1) ** 2 + (x[3] - 1) ** 2) + 19.8 * (x[1] - 1) * (x[3] - 1),
        [-3, -1, -3, -1], 0.0, low=-10, high=10,
    ),
    39: Stated(
        lambda x: -x[0], [2, 2, 2, 2], -1.0, h=lambda x: [x[1] - x[0] ** 3 - x[2] ** 2, x[0] ** 2 - x[1] - x[3] ** 2]
    ),
    40: Stated(
        lambda x: -product(x), [0.8] * 4, -0.25,
        h=lambda x: [x[0] ** 3 + x[1] ** 2 - 1, x[0] ** 2 * x[3] - x[2], x[3] ** 2 - x[1]],
    ),
    41: Stated(
        lambda x: 2 - x[0] * x[1] * x[2], [2, 2, 2, 2], 52 / 27,
        h=lambda x: [x[0] + 2 * x[1] + 2 * x[2] - x[3]], low=0, high=[1, 1, 1, 2],
    ),
    42: Stated(
        lambda x: jnp.sum((x - jnp.arange(1.0, 5.0)) ** 2), [1, 1, 1, 1], 28 - 10 * ROOT2,
        h=lambda x: [x[0] - 2, x[2] ** 2 + x[3] ** 2 - 2],
    ),
    43: Stated(
        lambda x: x[0] ** 2 + x[1] ** 2 + 2 * x[2] ** 2 + x[3] ** 2 - 5 * x[0] - 5 * x[1] - 21 * x[2] + 7 * x[3],
        [0, 0, 0, 0], -44.0,
        g=lambda x: [
            8 - jnp.dot(x, x) - x[0] + x[1] - x[2] + x[3],
            10 - x[0] ** 2 - 2 * x[1] ** 2 - x[2] ** 2 - 2 * x[3] ** 2 + x[0] + x[3],
            5 - 2 * x[0] ** 2 - x[1] ** 2 - x[2] ** 2 - 2 * x[0] + x[1] + x[3],
        ],
    ),
    44: Stated(
        lambda x: x[0] - x[1] - x[2] - x[0] * x[2] + x[0] * x[3] + x[1] * x[2] - x[1] * x[3], [0, 0, 0, 0], -15.0,
        g=lambda x: [
            8 - x[0] - 2 * x[1], 12 - 4 * x[0] - x[1], 12 - 3 * x[0] - 4 * x[1],
            8 - 2 * x[2] - x[3], 8 - x[2] - 2 * x[3], 5 - x[2] - x[3],
        ],
        low=0,
    ),
    45: Stated(lambda x: 2 - product(x) / 120, [2] * 5, 1.0, low=0, high=[1, 2, 3, 4, 5]),
    46: Stated(
        lambda x: (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6,
        [ROOT2 / 2, 1.75, 0.5, 2, 2], 0.0,
        h=lambda x: [x[0] ** 2 * x[3] + sin(x[3] - x[4]) - 1, x[1] + x[2] ** 4 * x[3] ** 2 - 2],
    ),
    48: Stated(
        lambda x: (x[0] - 1) ** 2 + (x[1] - x[2]) ** 2 + (x[3] - x[4]) ** 2, [3, 5, -3, 2, -2], 0.0,
        h=lambda x: [jnp.sum(x) - 5, x[2] - 2 * (x[3] + x[4]) + 3],
    ),
    49: Stated(
        lambda x: (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6, [10, 7, 2, -3, 0.8], 0.0,
        h=lambda x: [x[0] + x[1] + x[2] + 4 * x[3] - 7, x[2] + 5 * x[4] - 6],
    ),
    50: Stated(
        lambda x: (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 2 + (x[2] - x[3]) ** 4 + (x[3] - x[4]) ** 2,
        [35, -31, 11, 5, -5], 0.0, h=lambda x: [x[j] + 2 * x[j + 1] + 3 * x[j + 2] - 6 for j in range(3)],
    ),
    51: Stated(
        lambda x: (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
        [2.5, 0.5, 2, -1, 0.5], 0.0, h=lambda x: [x[0] + 3 * x[1] - 4, x[2] + x[3] - 2 * x[4], x[1] - x[4]],
    ),
    52: Stated(
        lambda x: (4 * x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
        [2] * 5, 1859 / 349, h=lambda x: [x[0] + 3 * x[1], x[2] + x[3] - 2 * x[4], x[1] - x[4]],
    ),
    53: Stated(
        lambda x: (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
        [2] * 5, 176 / 43, h=lambda x: [x[0] + 3 * x[1], x[2] + x[3] - 2 * x[4], x[1] - x[4]], low=-10, high=10,
    ),
    55: Stated(
        lambda x: x[0] + 2 * x[1] + 4 * x[4] + exp(x[0] * x[3]), [1, 2, 0, 0, 0, 2], 19 / 3,
        h=lambda x: [
            x[0] + 2 * x[1] + 5 * x[4] - 6, x[0] + x[1] + x[2] - 3, x[3] + x[4] + x[5] - 2,
            x[0] + x[3] - 1, x[1] + x[4] - 2, x[2] + x[5] - 2,
        ],
        low=0, high=[1, INF, INF, 1, INF, INF],
    ),
    56: Stated(
        lambda x: -x[0] * x[1] * x[2], [1, 1, 1, A56, A56, A56, B56], -3.456,
        h=lambda x: [x[j] - 4.2 * sin(x[3 + j]) ** 2 for j in range(3)]
        + [x[0] + 2 * x[1] + 2 * x[2] - 7.2 * sin(x[6]) ** 2],
    ),
    60: Stated(
        lambda x: (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4, [2, 2, 2], 0.03256820025,
        h=lambda x: [x[0] * (1 + x[1] ** 2) + x[2] ** 4 - 4 - 3 * ROOT2], low=-10, high=10,
    ),
    61: Stated(
        lambda x: 4 * x[0] ** 2 + 2 * x[1] ** 2 + 2 * x[2] ** 2 - 33 * x[0] + 16 * x[1] - 24 * x[2], [0, 0, 0],
        -143.6461422, h=lambda x: [3 * x[0] - 2 * x[1] ** 2 - 7, 4 * x[0] - x[2] ** 2 - 11],
    ),
    62: Stated(
        lambda x: -32.174 * (
            255 * log((x[0] + x[1] + x[2] + 0.03) / (0.09 * x[0] + x[1] + x[2] + 0.03))
            + 280 * log((x[1] + x[2] + 0.03) / (0.07 * x[1] + x[2] + 0.03))
            + 290 * log((x[2] + 0.03) / (0.13 * x[2] + 0.03))
        ),
        [0.7, 0.2, 0.1], -26272.51448, h=lambda x: [jnp.sum(x) - 1], low=0, high=1,
    ),
    63: Stated(
        lambda x: 1000 - x[0] ** 2 - 2 * x[1] ** 2 - x[2] ** 2 - x[0] * x[1] - x[0] * x[2], [2, 2, 2], 961.7151721,
        h=lambda x: [8 * x[0] + 14 * x[1] + 7 * x[2] - 56, jnp.dot(x, x) - 25], low=0,
    ),
    64: Stated(
        lambda x: 5 * x[0] + 50000 / x[0] + 20 * x[1] + 72000 / x[1] + 10 * x[2] + 144000 / x[2], [1, 1, 1],
        6299.842428, g=lambda x: [1 - 4 / x[0] - 32 / x[1] - 120 / x[2]], low=1e-5,
    ),
    65: Stated(
        lambda x: (x[0] - x[1]) ** 2 + (x[0] + x[1] - 10) ** 2 / 9 + (x[2] - 5) ** 2, [-5, 5, 0], 0.9535288567,
        g=lambda x: [48 - jnp.dot(x, x)], low=[-4.5, -4.5, -5], high=[4.5, 4.5, 5],
    ),
    66: Stated(
        lambda x: 0.2 * x[2] - 0.8 * x[0], [0, 1.05, 2.9], 0.5181632741,
        g=lambda x: [x[1] - exp(x[0]), x[2] - exp(x[1])], low=0, high=[100, 100, 10],
    ),
    71: Stated(
        lambda x: x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2], [1, 5, 5, 1], 17.0140173,
        g=lambda x: [product(x) - 25], h=lambda x: [jnp.dot(x, x) - 40], low=1, high=5,
    ),
    72: Stated(
        lambda x: 1 + jnp.sum(x), [1, 1, 1, 1], 727.67937,
        g=lambda x: [
            0.0401 - 4 / x[0] - 2.25 / x[1] - 1 / x[2] - 0.25 / x[3],
            0.010085 - 0.16 / x[0] - 0.36 / x[1] - 0.64 / x[2] - 0.64 / x[3],
        ],
        low=0.001, high=[4e5, 3e5, 2e5, 1e5],
    ),
    73: Stated(
        lambda x: 24.55 * x[0] + 26.75 * x[1] + 39 * x[2] + 40.5 * x[3], [1, 1, 1, 1], 29.894378,
        g=lambda x: [
            2.3 * x[0] + 5.6 * x[1] + 11.1 * x[2] + 1.3 * x[3] - 5,
            12 * x[0] + 11.9 * x[1] + 41.8 * x[2] + 52.1 * x[3] - 21
            - 1.645 * sqrt(0.28 * x[0] ** 2 + 0.19 * x[1] ** 2 + 20.5 * x[2] ** 2 + 0.62 * x[3] ** 2),
        ],
        h=lambda x: [jnp.sum(x) - 1], low=0,
    ),
    76: Stated(
        lambda x: x[0] ** 2 + 0.5 * x[1] ** 2 + x[2] ** 2 + 0.5 * x[3] ** 2 - x[0] * x[2] + x[2] * x[3] - x[0]
        - 3 * x[1] + x[2] - x[3],
        [0.5] * 4, -4.681818182,
        g=lambda x: [
            5 - x[0] - 2 * x[1] - x[2] - x[3], 4 - 3 * x[0] - x[1] - 2 * x[2] + x[3], x[1] + 4 * x[2] - 1.5
        ],
        low=0,
    ),
    77: Stated(
        lambda x: (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6,
        [2] * 5, 0.24150513,
        h=lambda x: [x[0] ** 2 * x[3] + sin(x[3] - x[4]) - 2 * ROOT2, x[1] + x[2] ** 4 * x[3] ** 2 - 8 - ROOT2],
    ),
    78: Stated(product, [-2, 1.5, 2, -1, -1], -2.91970041, h=box_of_masses),
    79: Stated(
        lambda x: (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 2 + (x[2] - x[3]) ** 4
        + (x[3] - x[4]) ** 4,
        [2] * 5, 0.0787768209,
        h=lambda x: [
            x[0] + x[1] ** 2 + x[2] ** 3 - 2 - 3 * ROOT2, x[1] - x[2] ** 2 + x[3] + 2 - 2 * ROOT2, x[0] * x[4] - 2
        ],
    ),
    80: Stated(
        lambda x: exp(product(x)), [-2, 2, 2, -1, -1], 0.0539498478, h=box_of_masses,
        low=[-2.3, -2.3, -3.2, -3.2, -3.2], high=[2.3, 2.3, 3.2, 3.2, 3.2],
    ),
    81: Stated(
        lambda x: exp(product(x)) - 0.5 * (x[0] ** 3 + x[1] ** 3 + 1) ** 2, [-2, 2, 2, -1, -1], 0.0539498478,
        h=box_of_masses, low=[-2.3, -2.3, -3.2, -3.2, -3.2], high=[2.3, 2.3, 3.2, 3.2, 3.2],
    ),
    93: Stated(
        lambda x: transformer(x, 0.0204, 0.0187) + x[4] ** 2 * transformer(x, 0.0607, 0.0)
        + x[5] ** 2 * transformer(x, 0.0, 0.0437),
        [5.54, 4.4, 12.02, 11.8, 0.702, 0.852], 135.075961,
        g=lambda x: [
            0.001 * product(x) - 2.07,
            1 - x[4] ** 2 * transformer(x, 0.00062, 0.0) - x[5] ** 2 * transformer(x, 0.0, 0.00058),
        ],
        low=0,
    ),
    100: Stated(
        wong, [1, 2, 0, 4, 0, 1, 1], 680.6300573,
        g=lambda x: [
            127 - 2 * x[0] ** 2 - 3 * x[1] ** 4 - x[2] - 4 * x[3] ** 2 - 5 * x[4],
            282 - 7 * x[0] - 3 * x[1] - 10 * x[2] ** 2 - x[3] + x[4],
            196 - 23 * x[0] - x[1] ** 2 - 6 * x[5] ** 2 + 8 * x[6],
            -4 * x[0] ** 2 - x[1] ** 2 + 3 * x[0] * x[1] - 2 * x[2] ** 2 - 5 * x[5] + 11 * x[6],
        ],
    ),
    104: Stated(
        reactor, [6, 3, 0.4, 0.2, 6, 6, 1, 0.5], 3.9511634396,
        g=lambda x: [
            1 - 0.0588 * x[4] * x[6] - 0.1 * x[0],
            1 - 0.0588 * x[5] * x[7] - 0.1 * x[0] - 0.1 * x[1],
            1 - 4 * x[2] / x[4] - 2 * x[2] ** -0.71 / x[4] - 0.0588 * x[2] ** -1.3 * x[6],
            1 - 4 * x[3] / x[5] - 2 * x[3] ** -0.71 / x[5] - 0.0588 * x[3] ** -1.3 * x[7],
            reactor(x) - 1,
            4.2 - reactor(x),
        ],
        low=0.1, high=10,
    ),
    106: Stated(
        lambda x: x[0] + x[1] + x[2], [5000, 5000, 5000, 200, 350, 150, 225, 425], 7049.248,
        g=lambda x: [
            1 - 0.0025 * (x[3] + x[5]), 1 - 0.0025 * (x[4] + x[6] - x[3]), 1 - 0.01 * (x[7] - x[4]),
            x[0] * x[5] - 833.33252 * x[3] - 100 * x[0] + 83333.333,
            x[1] * x[6] - 1250 * x[4] - x[1] * x[3] + 1250 * x[3],
            x[2] * x[7] - 1250000 - x[2] * x[4] + 2500 * x[4],
        ],
        low=[100, 1000, 1000, 10, 10, 10, 10, 10], high=[1e4, 1e4, 1e4, 1000, 1000, 1000, 1000, 1000],
    ),
    108: Stated(
        lambda x: -0.5 * (x[0] * x[3] - x[1] * x[2] + x[2] * x[8] - x[4] * x[8] + x[4] * x[7] - x[5] * x[6]),
        [1] * 9, -0.8660254038,
        g=lambda x: [
            1 - x[2] ** 2 - x[3] ** 2, 1 - x[8] ** 2, 1 - x[4] ** 2 - x[5] ** 2, 1 - x[0] ** 2 - (x[1] - x[8]) ** 2,
            1 - (x[0] - x[4]) ** 2 - (x[1] - x[5]) ** 2, 1 - (x[0] - x[6]) ** 2 - (x[1] - x[7]) ** 2,
            1 - (x[2] - x[4]) ** 2 - (x[3] - x[5]) ** 2, 1 - (x[2] - x[6]) ** 2 - (x[3] - x[7]) ** 2,
            1 - x[6] ** 2 - (x[7] - x[8]) ** 2, x[0] * x[3] - x[1] * x[2], x[2] * x[8], -x[4] * x[8],
            x[4] * x[7] - x[5] * x[6],
        ],
        low=[-INF] * 8 + [0],
    ),
    111: Stated(
        lambda x: jnp.dot(exp(x), MIX + x - log(jnp.sum(exp(x)))), [-2.3] * 10, -47.76109026,
        h=lambda x: elements(exp(x)), low=-100, high=100,
    ),
    112: Stated(
        lambda x: jnp.dot(x, MIX + log(x / jnp.sum(x))), [0.1] * 10, -47.76109026, h=elements, low=1e-6
    ),
    113: Stated(
        lambda x: x[0] ** 2 + x[1] ** 2 + x[0] * x[1] - 14 * x[0] - 16 * x[1] + (x[2] - 10) ** 2 + 4 * (x[3] - 5) ** 2
        + (x[4] - 3) ** 2 + 2 * (x[5] - 1) ** 2 + 5 * x[6] ** 2 + 7 * (x[7] - 11) ** 2 + 2 * (x[8] - 10) ** 2
        + (x[9] - 7) ** 2 + 45,
        [2, 3, 5, 5, 1, 2, 7, 3, 6, 10], 24.3062091,
        g=lambda x: [
            105 - 4 * x[0] - 5 * x[1] + 3 * x[6] - 9 * x[7],
            -10 * x[0] + 8 * x[1] + 17 * x[6] - 2 * x[7],
            8 * x[0] - 2 * x[1] - 5 * x[8] + 2 * x[9] + 12,
            -3 * (x[0] - 2) ** 2 - 4 * (x[1] - 3) ** 2 - 2 * x[2] ** 2 + 7 * x[3] + 120,
            -5 * x[0] ** 2 - 8 * x[1] - (x[2] - 6) ** 2 + 2 * x[3] + 40,
            -0.5 * (x[0] - 8) ** 2 - 2 * (x[1] - 4) ** 2 - 3 * x[4] ** 2 + x[5] + 30,
            -(x[0] ** 2) - 2 * (x[1] - 2) ** 2 + 2 * x[0] * x[1] - 14 * x[4] + 6 * x[5],
            3 * x[0] - 6 * x[1] - 12 * (x[8] - 8) ** 2 + 7 * x[9],
        ],
    ),
}  # fmt: skip
