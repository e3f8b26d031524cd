"""How things are timed: the best of several repetitions, both sides of a ratio in turn, the machine's load noted."""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foedus.errors import FoedusError, did_you_mean


@dataclass
class Measured:
    """One line of a benchmark: what was compared, the ratio, and the limit it should keep, if there is one."""

    what: str
    seconds: float
    against: str = ""
    reference: float = 0.0
    limit: float | None = None
    at_least: bool = False  # the ratio should be at least the limit, not at most
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.seconds / self.reference if self.reference else float("nan")

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        good = self.ratio >= self.limit if self.at_least else self.ratio <= self.limit
        return f"{'>=' if self.at_least else '<='} {self.limit:g}: {'yes' if good else 'NO'}"


def best(call: Callable[[], Any], repeats: int = 7, least: float = 0.0) -> float:
    """The shortest time of several calls, after one that is not counted; `least` seconds are spent at the least."""
    call()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < repeats or time.perf_counter() - began < least:
        tick = time.perf_counter()
        call()
        times.append(time.perf_counter() - tick)
    return min(times)


def in_turn(calls: dict[str, Callable[[], Any]], repeats: int = 15) -> dict[str, float]:
    """The shortest time of each call, taken in turn so that a busy moment of the machine hits all of them."""
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
    """The machine and its load, in a line."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{platform.machine()}, {os.cpu_count()} cores{load}"


def run(only: str | None = None, quick: bool = False, echo: Callable[[str], None] = print) -> list[Measured]:
    """Run the benchmarks, or the one called `only`, print them as tables and return their lines."""
    from foedus.benchmarks import constrained, private, robust, scale, speed, startup

    parts: dict[str, tuple[str, Callable[[bool], list[Measured]]]] = {
        "gradients": ("gradients of all clients against two passes over the same bytes", speed.gradients),
        "round": ("a FedAvg round against NumPy and other frameworks", speed.fedavg_round),
        "fedgia": ("a FedGiA solve against NumPy gradients of all clients", speed.fedgia_solve),
        "scale": ("seconds per round and per client, by the number of clients", scale.clients),
        "startup": ("start-up: import, and a first run with a cold and a warm cache", startup.startup),
        "private": ("ENS, local work, and what clipping and noise cost", private.private),
        "constrained": ("rounds, bytes and time to a certificate", constrained.certificate),
        "robust": ("the robust step, its constants, and peers of the pooled case", robust.steps),
    }
    if only is not None and only not in parts:
        raise FoedusError(f"no benchmark is called {only!r}; there are {', '.join(parts)}.{did_you_mean(only, parts)}")
    lines: list[Measured] = []
    for name, (title, measure) in parts.items():
        if only not in (None, name):
            continue
        echo(f"\n{name}: {title} ({machine()})")
        found = measure(quick)
        for line in found:
            against = f"  {line.ratio:8.3g} x {line.against} ({line.reference:.3g} s)" if line.reference else ""
            extra = "  " + ", ".join(f"{k} {v}" for k, v in line.extra.items()) if line.extra else ""
            echo(f"  {line.what:44s} {line.seconds:10.3g} s{against}  {line.verdict}{extra}".rstrip())
        lines += found
    return lines


def to_json(lines: list[Measured]) -> str:
    """The lines for a file, with the machine."""
    kept = [vars(line) | {"ratio": line.ratio} for line in lines]
    return json.dumps({"machine": machine(), "lines": kept}, indent=1)
