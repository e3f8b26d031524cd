"""The clock of rounds that do not wait for the slowest: whom a round waits for, how long, and when for everybody.

A round waits for the sites that usually answer within `SLACK` times the time that a quorum needs, and no longer once
the quorum has answered. A site that is slower would never be heard in the same round as the others, so every so
often a round waits for all: as often as keeps the time spent on waiting within `SHARE` of the rest.
"""

import math
from collections.abc import Sequence

SLACK = 1.5  # times the quorum's usual time: sites that are a little late are still heard
SHARE = 0.1  # of the time that rounds take without the slowest: at the most so much is spent on waiting for them


def quorum_count(quorum: float, count: int) -> int:
    """Return how many answers make a quorum of those asked."""
    return max(1, min(count, math.ceil(quorum * count - 1e-9)))


def deadline(times: Sequence[float], quorum: float) -> float:
    """Return how long a round waits, by the usual times of the sites that are asked."""
    ascending = sorted(times)
    return SLACK * ascending[quorum_count(quorum, len(ascending)) - 1]


def period(times: Sequence[float], quorum: float) -> int:
    """Return every how many rounds one waits for everybody; 1 where nobody is slower than the deadline."""
    limit = deadline(times, quorum)
    usual = max(time for time in times if time <= limit)  # a round ends with the last answer that is waited for
    extra = max(times) - usual
    return 1 if max(times) <= limit or usual == 0 else 1 + math.ceil(extra / (SHARE * usual))
