"""Timing: the best of several repetitions, with both sides of a ratio in turn and the machine's load printed."""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Measurement:
    """One line of a benchmark: the seconds of a thing and of its reference, and the limit on their ratio, if any."""

    what: str
    seconds: float
    against: str = ""
    reference: float = 0.0
    limit: float | None = None
    at_least: bool = False  # whether the limit is a least ratio and not a largest one
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.seconds / self.reference if self.reference else float("nan")

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        good = self.ratio >= self.limit if self.at_least else self.ratio <= self.limit
        return f"{'>=' if self.at_least else '<='} {self.limit:g}: {'yes' if good else 'NO'}"


def best(call: Callable[[], object], repeats: int = 7, least: float = 0.0) -> float:
    """Return the shortest time of several calls after one that is not counted; repeat for at least `least` seconds."""
    call()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < repeats or time.perf_counter() - began < least:
        tick = time.perf_counter()
        call()
        times.append(time.perf_counter() - tick)
    return min(times)


def in_turn(calls: Mapping[str, Callable[[], object]], repeats: int = 15) -> dict[str, float]:
    """Return the shortest time of each call; the calls take turns, so that a busy moment of the machine hits all."""
    for call in calls.values():
        call()
    times: dict[str, float] = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            tick = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - tick)
    return times


def machine() -> str:
    """Describe the machine and its load in a line."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{platform.machine()}, {os.cpu_count()} cores{load}"


def to_json(lines: list[Measurement]) -> str:
    """Return the lines and the machine as JSON."""
    records = [vars(line) | {"ratio": line.ratio} for line in lines]
    return json.dumps({"machine": machine(), "lines": records}, indent=1)
