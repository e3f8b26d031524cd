"""Flare: the runtime over real sites; `fd.solve(..., runtime=fd.Flare(sites=3))` is all that a user changes."""

import dataclasses
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation.flare.console import Console
from foedus.federation.flare.kits import require_nvflare, write_site_file
from foedus.federation.flare.submission import AtServer, Stopped, Submission, drive, ending_of
from foedus.federation.flare.trial import Federation
from foedus.federation.names import ENDED, RESULT, RUNS
from foedus.federation.order import Order, Patience, Result, order_of, site_arrays
from foedus.privacy.releasing import sound_noise
from foedus.problem.problem import Problem
from foedus.protocol.algorithm import name_of
from foedus.protocol.buffered import LATE
from foedus.robust.stress import Robust
from foedus.runtime.checkpoint import Checkpoint
from foedus.runtime.spine import Job, Outcome, Watch
from foedus.sums.masking import check_everybody

KEPT = ".federation"  # the ending of the folder, beside a checkpoint, of the sites that were started for the run


@dataclass(frozen=True, kw_only=True)
class Flare:
    """The runtime over real sites: each is a process of its own that reads its data itself and talks over mutual TLS.

    Args:
        sites: how many; as many as the problem has clients when left out. They are started on this machine for the run.
        at: instead, the folder of a federation that `foedus federation up` has started on this machine.
        kit: instead, the coordinator's kit, for sites on other machines. The problem is then a statement: its clients
            are called as the sites are, its rows are made up and stay here, and each site uses its own (.npz) in
            their place. Tables are for `foedus federation submit`.
        transport: 'aux' (fast) or 'task' (the sites' FLARE filters apply).
        modules: modules beside foedus whose functions the problem uses; every site must be able to import them.
        timeout: seconds that a site has for one answer.
        minimum: the fewest answers a round goes on with; all that were asked when left out. Masked
            sums (`secure`) without noise wait for everybody.
        quorum: the share of the sites, as 0.8, whose answers a round waits for; all of them when left out. Sites that
            are much slower than the others then hold up few rounds instead of every one.
        late: what becomes of an answer that comes after its round: 'drop', or, with FedAvg, FedProx and LocalSGD,
            'next', to count it until the site's next one, or 'weighted', to count it once and less the older it is.
        misses: after so many silences in a row a site is left out (with `minimum`), or the run pauses (without).
        norm: the largest norm of a reply that the server accepts: of the change of a model, or of a gradient.
        factor: a reply is refused whose norm is more than so many times the sites' usual one; None: no such limit.
        offences: after so many replies that cannot be true a site is left out, and the others go on; None: the run
            pauses. What cannot be true is in docs/federation.md.
        keep_going: how often to resume by itself after a crash.
        secure: whether the server sees masked sums alone, and no single site's reply; needs four sites at least.
        verify: whether, with `secure`, every site adds the sums up itself and answers only at what follows from them.

    Example:
        >>> import foedus as fd
        >>> three = fd.Flare(timeout=30.0, minimum=2)  # fd.solve(problem, algorithm, runtime=three)
        >>> three.transport, three.patience["minimum"]
        ('aux', 2)
    """

    sites: int | None = None
    at: str | Path | None = None
    kit: str | Path | None = None
    transport: str = "aux"
    modules: tuple[str, ...] = ()
    timeout: float = 60.0
    minimum: int | None = None
    quorum: float | None = None
    late: str = "drop"
    misses: int = 2
    keep_going: int = 3
    secure: bool = False
    verify: bool = True
    norm: float | None = None
    factor: float | None = 1e4
    offences: int | None = None

    def __post_init__(self) -> None:
        if self.transport not in ("aux", "task"):
            raise FoedusError(f"The 'transport' of Flare must be 'aux' or 'task'. Got {self.transport!r} instead.")
        if self.sites is not None and (
            isinstance(self.sites, bool) or not isinstance(self.sites, int) or self.sites < 1
        ):
            raise FoedusError(f"The 'sites' of Flare must be a whole number >= 1. Got {self.sites!r} instead.")
        if sum(one is not None for one in (self.sites, self.at, self.kit)) > 1:
            raise FoedusError("Flare takes one of 'sites', 'at' and 'kit'; leave the others out.")
        if self.quorum is not None and not 0 < self.quorum <= 1:
            raise FoedusError(f"The 'quorum' of Flare must be in (0, 1]. Got {self.quorum!r} instead.")
        if self.late not in LATE:
            raise FoedusError(f"The 'late' of Flare must be 'drop', 'next' or 'weighted'. Got {self.late!r} instead.")
        if self.quorum is not None and (self.transport == "task" or self.minimum is not None):
            raise FoedusError("The 'quorum' of Flare goes with transport='aux' and without 'minimum'.")
        if self.quorum is not None and self.secure:
            raise FoedusError("The 'quorum' of Flare does not go with secure=True: masked sums wait for their sites.")
        if self.offences is not None and self.secure:
            raise FoedusError(
                "The 'offences' of Flare does not go with secure=True: all sums of a run are over the same sites, so a "
                "run with a sum that cannot be true pauses."
            )
        for name, least in (("norm", 0), ("factor", 1)):
            value = getattr(self, name)
            if value is not None and not value > least:
                raise FoedusError(f"The {name!r} of Flare must be a number > {least} or None. Got {value!r} instead.")
        if self.offences is not None and (isinstance(self.offences, bool) or not self.offences >= 1):
            raise FoedusError(f"The 'offences' of Flare must be a number >= 1 or None. Got {self.offences!r} instead.")
        if not self.timeout > 0:
            raise FoedusError(f"The 'timeout' of Flare must be a number > 0. Got {self.timeout!r} instead.")

    @property
    def patience(self) -> Json:
        """How long the server waits, for how many answers, and what it does about silent sites; as a job states it."""
        names = ("timeout", "minimum", "misses", "quorum", "late", "norm", "factor", "offences")
        return dataclasses.asdict(Patience(**{name: getattr(self, name) for name in names}))

    @property
    def policy(self) -> Json:
        """The policy of sites that are started for this run: all are the caller's own, and their data may be small.

        They let plain replies leave, and take part in masked sums that nobody checks, where `verify` says so.
        """
        return {"modules": list(self.modules), "min_subset": 1, "min_sites": 1, "secure": False, "verify": self.verify}

    def play(self, job: Job, *, watch: Watch | None, checkpoint: Checkpoint | None) -> Outcome:
        """Run the algorithm over real sites on this machine."""
        require_nvflare()
        problem = job.fit.problem
        if self.kit is not None:
            return self._elsewhere(Path(self.kit), job, watch, checkpoint)
        count = problem.terms.clients if self.sites is None else self.sites
        names = (
            Federation.at(Path(self.at)).sites if self.at is not None else tuple(f"site-{i + 1}" for i in range(count))
        )
        run = uuid.uuid4().hex[:12] if checkpoint is None else checkpoint.fingerprint[:12]
        order = order_of(
            problem,
            job.fit.algorithm,
            job.w0,
            run=run,
            sites=names,
            seed=job.seed,
            max_rounds=job.max_rounds,
            participation=job.participation,
            secure=job.masking is not None,
            verify=self.verify,
        )
        self._check_everybody(order)
        Order.from_bytes(order.to_bytes(), self.modules)  # what no site can read is refused before it starts

        def run_in(federation: Federation) -> Result:
            return self.run(federation, order, problem, watch, checkpoint is not None)

        if self.at is not None:
            return _outcome(run_in(Federation.at(Path(self.at))))
        if checkpoint is None:
            with tempfile.TemporaryDirectory(prefix="foedus-") as folder:
                return _outcome(self._alone(Path(folder), names, run_in))
        folder = checkpoint.path.with_suffix(KEPT)  # the parties' own checkpoints are in there
        result = self._alone(folder, names, run_in)
        if not result.interrupted:
            shutil.rmtree(folder, ignore_errors=True)
        return _outcome(result)

    def _check_everybody(self, order: Order) -> None:
        """Raise where masked sums of this run would be over other sites from round to round."""
        if order.secure:
            check_everybody(order.algorithm, order.participation, order.terms.clients, self.minimum)

    def _elsewhere(self, kit: Path, job: Job, watch: Watch | None, checkpoint: Checkpoint | None) -> Outcome:
        """Submit a run to sites on other machines, which use their own rows in the place of the problem's."""
        problem, algorithm = job.fit.problem, job.fit.algorithm
        if not (kit / "startup" / "fed_admin.json").is_file():
            raise FoedusError(f"{kit} is no coordinator's kit; 'foedus federation provision' makes one.")
        if problem.stacked.names is None:
            raise FoedusError(
                "with Flare(kit=...) the problem's clients carry the sites' names: {'st-mary': (X, y), ...}."
            )
        if isinstance(algorithm, Robust) or sound_noise(algorithm) is not None:
            raise FoedusError(
                f"{name_of(algorithm)} here would measure on the made-up rows of the coordinator; submit it as an "
                "experiment file ('foedus federation submit')."
            )
        names, run = tuple(problem.names), uuid.uuid4().hex[:12] if checkpoint is None else checkpoint.fingerprint[:12]
        order = order_of(
            problem, algorithm, job.w0, run=run, sites=names, seed=job.seed, max_rounds=job.max_rounds,
            participation=job.participation, secure=job.masking is not None, verify=self.verify,
        )  # fmt: skip
        self._check_everybody(order)
        submission = Submission.of(order, self.transport, self.patience)
        keep = checkpoint is not None
        try:
            result = drive(submission, kit, AtServer(), keep_going=self.keep_going, watch=watch, keep=keep)
            return _outcome(result)
        except Stopped as error:
            raise FoedusError(f"the run stopped: {error}; it was resumed {self.keep_going} times.") from None

    def _alone(self, folder: Path, names: tuple[str, ...], run_in: Callable[[Federation], Result]) -> Result:
        """Start sites for this run alone, play it, and stop them."""
        federation = Federation.again(folder, names, self.policy)
        try:
            return run_in(federation)
        finally:
            federation.down()

    def run(
        self,
        federation: Federation,
        order: Order,
        problem: Problem,
        watch: Watch | None = None,
        keep: bool = False,
    ) -> Result:
        """Place the data at the sites of this machine, then submit and resume until there is a result."""
        for i, site in enumerate(federation.sites):
            data = federation.data(site)
            np.savez(data, **site_arrays(problem, i))  # pyright: ignore[reportArgumentType]
            write_site_file(federation.kit(site), data, self.policy)
        write_site_file(federation.kit("server"), None, {"modules": list(self.modules)})
        return self._drive(federation, order, watch, keep)

    def _drive(
        self,
        federation: Federation,
        order: Order,
        watch: Watch | None,
        keep: bool,
    ) -> Result:
        """Submit a run to a federation on this machine, and resume it where it stops without a result."""
        submission = Submission.of(order, self.transport, self.patience)
        place = OnThisMachine(federation, order.run)
        try:
            return drive(submission, federation.kit("admin"), place, keep_going=self.keep_going, watch=watch, keep=keep)
        except Stopped as error:
            raise FoedusError(f"the run stopped: {error}; it was resumed {self.keep_going} times.") from None


class OnThisMachine:
    """The federation on this machine: parties that were killed are started again, and results lie in a folder."""

    def __init__(self, federation: Federation, run: str):
        self.federation, self.folder = federation, federation.kit("server") / RUNS / run

    def ready(self) -> None:
        if self.federation.heal():  # whoever runs already is waited for when the run is submitted
            self.federation.wait()

    def over(self, number: str) -> bool:
        return self._ending().get("job") == number

    def fetch(self, console: Console, number: str) -> tuple[bytes | None, Json]:
        ending = self._ending() if self.over(number) else {}
        result = self.folder / RESULT
        return (result.read_bytes() if ending.get("how") == "done" and result.exists() else None), ending

    def _ending(self) -> Json:
        path = self.folder / ENDED
        return ending_of(path.read_bytes()) if path.exists() else {}


def _outcome(result: Result) -> Outcome:
    return Outcome(
        conclusion=result.conclusion,
        history=result.history,
        interrupted=result.interrupted,
        seconds=result.seconds,
        compile_seconds=result.compile_seconds,
        refused=tuple(result.refused),
        left_out=result.left_out,
        opendp=True,
        plan=result.plan,
    )
