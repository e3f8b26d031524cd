"""What several tests share."""

import numpy as np
from random_problems import Case, cap, drawn, least


def weak(seed: int) -> Case:
    """Caps at most a millionth above the least that can be met: their multipliers are large."""
    rng = np.random.default_rng([78, seed])
    sites, spare = drawn(rng), 10.0 ** rng.uniform(-9, -6)
    most = (1.0 + spare) * least(sites, (0, 1))
    return Case(sites, [cap(0, most), cap(1, most)])
