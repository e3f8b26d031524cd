"""Flare: the runtime that plays a run over real sites. `fd.solve(..., runtime=fd.Flare(sites=3))` is the one change."""

import dataclasses
import json
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithm import Algorithm
from foedus.errors import FoedusError
from foedus.problem import Problem
from foedus.runtime.checkpoint import Checkpoint
from foedus.runtime.flare.console import FINISHED, Console, Unreachable
from foedus.runtime.flare.kits import job, require_nvflare, write_site_file
from foedus.runtime.flare.local import Federation
from foedus.runtime.flare.names import ENDED, RESULT, RUNS
from foedus.runtime.flare.order import Order, Patience, Result, order_of, site_arrays
from foedus.runtime.participation import Participation
from foedus.runtime.simulate import Measured, Outcome, Recorder

POLL_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class Flare:
    """Real sites: processes of their own, mutual TLS, data read at the site.

    Args:
        sites: how many; as many as the problem has clients when left out. They are started on this machine for the run.
        at: instead, the folder of a federation that `foedus federation up` has started on this machine.
        transport: 'aux' (fast) or 'task' (the sites' FLARE filters apply).
        modules: modules beside foedus whose functions the problem uses; every site must be able to import them.
        timeout: seconds that a site has for one answer.
        minimum: the fewest answers a round goes on with; all that were asked when left out.
        misses: after so many silences in a row a site is left out (with `minimum`), or the run pauses (without).
        keep_going: how often to resume by itself after a crash.
    """

    sites: int | None = None
    at: str | Path | None = None
    transport: str = "aux"
    modules: tuple[str, ...] = ()
    timeout: float = 60.0
    minimum: int | None = None
    misses: int = 2
    keep_going: int = 3

    def __post_init__(self) -> None:
        if self.transport not in ("aux", "task"):
            raise FoedusError(f"The 'transport' of Flare must be 'aux' or 'task'. Got {self.transport!r} instead.")
        if self.sites is not None and (
            isinstance(self.sites, bool) or not isinstance(self.sites, int) or self.sites < 1
        ):
            raise FoedusError(f"The 'sites' of Flare must be a whole number >= 1. Got {self.sites!r} instead.")
        if not self.timeout > 0:
            raise FoedusError(f"The 'timeout' of Flare must be a number > 0. Got {self.timeout!r} instead.")

    @property
    def patience(self) -> dict[str, Any]:
        return dataclasses.asdict(Patience(timeout=self.timeout, minimum=self.minimum, misses=self.misses))

    def play(
        self,
        problem: Problem,
        algorithm: Algorithm,
        w0: Array,
        *,
        seed: int,
        max_rounds: int,
        participation: Participation,
        watch: Callable[[Recorder], bool | None] | None,
        checkpoint: Checkpoint | None,
    ) -> Outcome:
        """Run the algorithm over real sites on this machine."""
        require_nvflare()
        if checkpoint is not None:
            raise FoedusError("checkpoint= is the simulator's; a federation keeps its own at the server and the sites.")
        count = problem.terms.clients if self.sites is None else self.sites
        names = (
            Federation.at(Path(self.at)).sites if self.at is not None else tuple(f"site-{i + 1}" for i in range(count))
        )
        order = order_of(
            problem, algorithm, w0, run=uuid.uuid4().hex[:12], sites=names, seed=seed, max_rounds=max_rounds,
            participation=participation,
        )  # fmt: skip
        content = order.to_bytes()
        Order.from_bytes(content, self.modules)  # what no site could read is refused before anything is started
        if self.at is not None:
            federation = Federation.at(Path(self.at))
            result = self.run(federation, order, content, problem)
        else:
            with tempfile.TemporaryDirectory(prefix="foedus-") as folder:
                federation = Federation.up(Path(folder), names)
                try:
                    result = self.run(federation, order, content, problem)
                finally:
                    federation.down()
        if watch is not None:
            recorder = Recorder(())
            recorder.columns = result.history
            watch(recorder)
        return _outcome(result)

    def run(self, federation: Federation, order: Order, content: bytes, problem: Problem) -> Result:
        """Place the data at the sites of this machine, then submit and resume until there is a result."""
        for i, site in enumerate(federation.sites):
            kit = federation.kit(site)
            data = kit / "local" / "data.npz"
            np.savez(data, **site_arrays(problem, i))  # pyright: ignore[reportArgumentType]
            write_site_file(kit, data, {"modules": list(self.modules)})
        write_site_file(federation.kit("server"), None, {"modules": list(self.modules)})
        return drive(federation, order, content, self.transport, self.patience, self.keep_going)


def drive(
    federation: Federation, order: Order, content: bytes, transport: str, patience: dict[str, Any], keep_going: int
) -> Result:
    """Submit a run to a federation on this machine, and resume it where it stops without a result."""
    folder = federation.kit("server") / RUNS / order.run
    attempts = 0
    while True:
        federation.heal()
        (folder / ENDED).unlink(missing_ok=True)
        sentence = "the server stopped"
        try:
            federation.wait()
            with Console(federation.kit("admin")) as console, tempfile.TemporaryDirectory() as made:
                told = job(Path(made) / "job", order.run, content, order.sites, transport, patience)
                _follow(console, console.submit(told), folder)
        except Unreachable as error:
            sentence = str(error)
        if (folder / RESULT).exists():
            return Result.from_bytes((folder / RESULT).read_bytes())
        ended = json.loads((folder / ENDED).read_text()) if (folder / ENDED).exists() else {}
        if ended.get("how") == "refused":
            raise FoedusError(ended["sentence"])
        sentence = ended.get("sentence", sentence)
        attempts += 1
        if attempts > keep_going:
            raise FoedusError(
                f"the run {order.run} stopped: {sentence.removesuffix('.')}; it was resumed {keep_going} times."
            )


def _follow(console: Console, job_id: str, folder: Path) -> None:
    """Return when the run has ended, or its job is over."""
    looked = time.monotonic()
    while not (folder / ENDED).exists():
        time.sleep(POLL_SECONDS)
        if time.monotonic() - looked > 2.0:
            looked = time.monotonic()
            if console.status(job_id).startswith(FINISHED):
                return


def _outcome(result: Result) -> Outcome:
    measured = Measured(result.objective, result.certificate, result.multipliers, result.reason)
    return Outcome(
        w=jnp.asarray(result.w),
        server=None,
        clients=None,
        history=result.history,
        converged=result.converged,
        finite=result.finite,
        interrupted=False,
        seconds=result.seconds,
        compile_seconds=result.compile_seconds,
        measured=measured,
    )
