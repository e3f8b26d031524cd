"""Budget: a limit on what one client may spend over a run, and how many releases it allows."""

from dataclasses import dataclass, replace

from foedus.base.errors import FoedusError
from foedus.base.settings import check
from foedus.privacy import composition
from foedus.privacy.noise import Sound

ROUNDING = 1 + 1e-9  # a total that exceeds a budget by rounding alone is within it
MOST_RELEASES = 2**20  # where the search for the largest number of releases stops


@dataclass(frozen=True)
class Budget:
    """The most privacy loss of one client over a run; it takes no further part before a release would exceed it.

    Args:
        epsilon: in the noise's own neighbouring relation.
        delta: 0 for Laplace noise with basic composition.
        composition: "basic", "advanced", "rdp" or "pld".

    Example:
        >>> import foedus as fd
        >>> fd.Budget(epsilon=2.0).limit(fd.Laplace(epsilon=0.5, clip=1.0)).most
        4
    """

    epsilon: float
    delta: float = 0.0
    composition: str = "basic"

    def __post_init__(self) -> None:
        check("The 'epsilon' of a Budget", self.epsilon, gt=0, finite=True)
        check("The 'delta' of a Budget", self.delta, ge=0, lt=1)
        check("The 'composition' of a Budget", self.composition, choices=composition.METHODS)

    def limit(self, noise: Sound) -> Sound:
        """Return the noise with the largest number of releases that this budget allows."""
        kind, ratio = type(noise).__name__.lower(), 1.0 / noise.multiplier
        if self.delta == 0 and (kind != "laplace" or self.composition != "basic"):
            raise FoedusError(
                f"{type(noise).__name__} noise with {self.composition} composition needs Budget(delta=...)."
            )

        def fits(count: int) -> bool:
            return composition.total(kind, {ratio: count}, self.delta, self.composition) <= self.epsilon * ROUNDING

        if not fits(1):
            cost = composition.total(kind, {ratio: 1}, self.delta, self.composition)
            raise FoedusError(f"one release costs epsilon {cost:.4g}, more than the budget of {self.epsilon:g}.")
        low, high = 1, 2
        while fits(high) and high < MOST_RELEASES:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return replace(noise, most=low if noise.most is None else min(low, noise.most))
