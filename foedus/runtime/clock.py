"""The clock of rounds that do not wait for the slowest: how long to wait, and when to wait for everybody after all.

A round goes on once a quorum of the sites has answered and `SLACK` times the time has passed that a quorum needs.
A site that is slower than that would never be heard in the same round as the others, so every so often a round waits
for all: as often as keeps the time spent on waiting within `SHARE` of the rest. The simulator and the server of a
federation use the same rule, the one with stated delays, the other with the sites' own times.
"""

import math
from collections.abc import Sequence

SLACK = 1.5  # times the quorum's usual time: sites that are a little late are still heard
SHARE = 0.2  # of the time that rounds take without the slowest: at the most so much is spent on waiting for them


def needed(quorum: float, asked: int) -> int:
    """Return how many answers make a quorum of those asked."""
    return max(1, min(asked, math.ceil(quorum * asked - 1e-9)))


def deadline(times: Sequence[float], quorum: float) -> float:
    """Return how long a round waits, by the usual times of the sites that are asked."""
    ordered = sorted(times)
    return SLACK * ordered[needed(quorum, len(ordered)) - 1]


def period(times: Sequence[float], quorum: float) -> int:
    """Return every how many rounds one waits for everybody; 1 where nobody is slower than the deadline."""
    limit = deadline(times, quorum)
    ordered = sorted(times)
    usual = ordered[needed(quorum, len(ordered)) - 1]  # a round ends with the last answer, or at the deadline
    usual = limit if ordered[-1] > limit else usual
    extra = max(0.0, ordered[-1] - limit)
    return 1 if extra == 0 or usual == 0 else 1 + math.ceil(extra / (SHARE * usual))
