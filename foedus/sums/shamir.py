"""Shamir's shares of a 32-byte secret: any `threshold` of them give it back, and fewer say nothing about it."""

import secrets
from collections.abc import Mapping, Sequence

from foedus.base.errors import FoedusError

PRIME = 2**256 - 189  # the largest prime below 2^256: a secret is a number below it
SIZE = 32  # bytes of a secret and of a share


def new_secret() -> bytes:
    """Return a secret from the operating system's randomness."""
    return secrets.randbelow(PRIME).to_bytes(SIZE, "big")


def split(secret: bytes, points: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Return a share for each point above 0: the value there of a random polynomial that is the secret at 0."""
    if not 1 <= threshold <= len(points) or len({*points}) < len(points) or min(points) < 1:
        raise FoedusError("shares need different points above 0, and no more of them to give the secret back.")
    coefficients = [_number(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        shares[point] = value.to_bytes(SIZE, "big")
    return shares


class Combiner:
    """Gives secrets back from shares at these points; the weights are computed once for many secrets."""

    def __init__(self, points: Sequence[int]):
        self.weights: dict[int, int] = {}
        for point in points:
            above, below = 1, 1
            for other in points:
                if other != point:
                    above, below = above * other % PRIME, below * (other - point) % PRIME
            self.weights[point] = above * pow(below, -1, PRIME) % PRIME

    def secret(self, shares: Mapping[int, bytes]) -> bytes:
        """Return the secret whose shares these are, one for each of the points."""
        return (sum(w * _number(shares[point]) for point, w in self.weights.items()) % PRIME).to_bytes(SIZE, "big")


def _number(content: bytes) -> int:
    value = int.from_bytes(content, "big")
    if len(content) != SIZE or value >= PRIME:
        raise FoedusError("a share or a secret is not a number of 32 bytes below the prime.")
    return value
