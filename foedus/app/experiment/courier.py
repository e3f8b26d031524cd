"""An experiment file as a plan whose messages people carry, and its result as a run directory in the plan's folder.

PLAN/coordinator/experiment.toml    a copy of the experiment file
PLAN/result/                        the run directory, once the run is over
"""

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foedus.app.experiment import build
from foedus.app.experiment.execute import description_of, finish
from foedus.app.experiment.file import Experiment, load
from foedus.app.experiment.folder import Folder, digest_of
from foedus.app.experiment.plan import Plan
from foedus.app.experiment.remote import run_of
from foedus.app.experiment.screen import Screen
from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.base.quantities import count
from foedus.data.preprocess import Preprocessing
from foedus.federation.courier.coordinator import CourierPlan, Progress
from foedus.federation.flare.driver import Flare
from foedus.federation.plan import Request
from foedus.federation.preparation import cohort_of
from foedus.privacy.releasing import sound_noise
from foedus.protocol.algorithm import name_of
from foedus.runtime.run import Run
from foedus.statistics import umbrella
from foedus.statistics.sandwich import LEVERED

EXPERIMENT, RESULT = "experiment.toml", "result"
PATIENCE = ("minimum", "norm", "factor", "offences")  # settings of [run] runtime that have a meaning without a clock
WITHOUT_MEANING = ("quorum", "late")
GUESS = (
    "; one more where a feature that is not listed in categorical, and whose words are not in [preprocess.categories], "
    "holds words"
)
PASSES = 2  # of files that a masked sum takes: vectors, then reveals


@dataclass(frozen=True)
class Exchanges:
    """How often files go to the sites and back in a plan, at the most.

    Args:
        before: the first round.
        rounds: of the algorithm, at the most.
        after: the last round.
        passes: how often files go to and fro for a round.
        guess: whether it is one more where a feature that the plan takes for numbers holds words.
    """

    before: int
    rounds: int
    after: int
    passes: int = 1
    guess: bool = False

    @property
    def most(self) -> int:
        """All of them."""
        return self.before + self.passes * self.rounds + self.after

    def __str__(self) -> str:
        twice = ", two each" if self.passes == PASSES else ""
        return (
            f"at most {count(self.most, 'exchange')}: {self.before} to prepare the data, {self.passes * self.rounds} "
            f"for at most {count(self.rounds, 'round')}{twice}, {self.after} to measure and evaluate the model"
            + (GUESS if self.guess else "")
        )


def exchanges_of(request: Request[Plan]) -> Exchanges:
    """Return how many exchanges a plan takes at the most, from the plan alone."""
    plan, count_of_sites = request.plan, len(request.sites)
    # where nothing is masked and no noise is added, the squared deviations come with the sums
    squares = plan.settings["preprocess"]["scale"] == "standard" and (plan.noise is not None or plan.secure)
    sums = 1 + squares + plan.counts_rows
    decisions = len(plan.holdout.rates) * (umbrella.MOST_PROPOSALS + 1)
    levered = plan.summary in LEVERED  # such errors are asked for twice
    if not plan.secure:
        with_plan = plan.sketch is not None  # then the first sums are asked for with the plan itself
        return Exchanges(1 + sums - with_plan, plan.max_rounds, 1 + levered + decisions, guess=with_plan)
    # a table's keys need an exchange and their roster travels with the first vectors; the keys of the rounds travel
    # with the total of the last sum, and their roster with the first vectors
    last_total = plan.verified(count_of_sites)
    values = bool(plan.roles.classification or plan.roles.group)
    before = 1 + 1 + PASSES * (sums + values) + 1
    is_private = sound_noise(plan.algorithm(count_of_sites)) is not None
    certificate = 0 if is_private else 1 + (plan.summary is not None) + levered
    questions = certificate + plan.holdout.evaluates + decisions
    return Exchanges(before, plan.max_rounds, PASSES * questions + last_total, PASSES)


def words_of(request: Request[Plan], title: str) -> Json:
    """Return the plan in words, for everybody to read."""
    statement, plan = request.stated, request.plan
    roles, problem = statement["roles"], statement["problem"]
    algorithm = plan.algorithm(len(request.sites))
    noise = sound_noise(algorithm)
    leaves = "masked sums over all sites" if plan.secure else "figures of each site alone"
    strength = "no noise is added, so no epsilon bounds what they tell about one row" if noise is None else str(noise)
    check = "; every site checks the sums" if statement["verify"] else ""
    return {
        "title": title,
        "label": roles["label"],
        "group": roles["group"],
        "features": list(roles["features"]) if roles["features"] else "all other columns",
        "algorithm": name_of(algorithm),
        "loss": problem["loss"],
        "terms": problem["terms"],
        "rounds at most": plan.max_rounds,
        "what leaves": f"{leaves}; {strength}{check}",
        "held out": plan.holdout.shares.evaluate,
        "exchanges": str(exchanges_of(request)),
    }


def make_plan(path: Path, sites: tuple[str, ...], folder: Path, keys: Path | None = None) -> CourierPlan:
    """Write the plan of an experiment file over sites, and the first files; wrong settings raise before."""
    experiment = load(path, elsewhere=True)
    if len(experiment.cases) != 1:
        raise FoedusError(f"{path} states {len(experiment.cases)} runs; a plan is of one, so leave the lists out.")
    (case,) = experiment.cases
    try:
        plan = Plan.of(case.settings)
        plan.check(len(sites))
    except FoedusError as error:
        raise FoedusError(f"{path}: {error}") from None
    name = re.sub(r"[^A-Za-z0-9]+", "-", experiment.name).strip("-")[:40] or "run"
    request = Request(f"{name}-{uuid.uuid4().hex[:6]}", sites, plan)
    plan_folder = CourierPlan.make(
        request, folder, _patience(path, case.settings), plan.modules(), words_of(request, experiment.name), keys
    )
    write_whole(plan_folder.private / EXPERIMENT, path.read_bytes(), private=True)
    return plan_folder


def _patience(path: Path, settings: Mapping[str, Any]) -> Json:
    runtime = build.runtime_of(dict(settings)).get("runtime", Flare())
    for name in WITHOUT_MEANING:
        if getattr(runtime, name, None) != getattr(Flare(), name):
            raise FoedusError(f"{path}: [run] runtime {name} is about seconds, and files that people carry have none.")
    return {name: getattr(runtime, name) for name in PATIENCE if hasattr(runtime, name)}


def go_on(
    folder: Path,
    screen: Screen,
    trust: Mapping[str, str] | None = None,
    without: Iterable[str] = (),
    more: Iterable[Path] = (),
) -> tuple[Progress, Run | None]:
    """Take what has come and write what comes next; return the run, once it is over."""
    plan = CourierPlan(folder)
    progress = plan.next(trust, without, more)
    return progress, None if progress.result is None else _finished(plan, progress, screen)


def _finished(plan: CourierPlan, progress: Progress, screen: Screen) -> Run:
    """Return the run of a result, and write its folder where it is not written."""
    request, result = plan.work, progress.result
    assert isinstance(request, Request)
    assert result is not None
    experiment = load(plan.private / EXPERIMENT, elsewhere=True)
    case = replace(experiment.cases[0], settings=request.plan.settings)  # without the places of data, which sites bring
    folder = Folder(plan.folder / RESULT, digest_of(case.settings, plan.private))
    if folder.path.is_dir() and folder.state() == "finished":
        return folder.run()
    assert result.rules is not None
    record = Experiment(plan.folder / EXPERIMENT, str(plan.settings["words"]["title"]), folder.path, experiment.cases)
    folder.begin(record, case, dict.fromkeys(plan.sites), {})
    rules = Preprocessing.from_json(result.rules)
    run = run_of(request.plan, rules, result, request)
    setup = request.plan.setup(cohort_of(rules, request.plan.roles), rules, request.sites)
    run.ledger = setup.with_preparation(run.ledger)
    folder.write_preparation(rules)
    about = description_of(f"foedus courier next {plan.folder}", record.name, setup)
    finish(folder, run, record.name, about, screen)
    return run


def first_roles(header: Json) -> Json:
    """Return the columns that a plan's first message names as label and group, for a site file that is made from it."""
    try:
        roles = Request.from_json(header, ()).plan.roles
    except (FoedusError, KeyError, TypeError, ValueError):
        return {}
    return {"labels": [roles.label], "groups": [roles.group] if roles.group else []}


def plan_lines(plan: CourierPlan) -> list[str]:
    """Return what a plan says, for the person who has made it."""
    words = plan.settings["words"]
    lines = [f"Run {plan.run} over {', '.join(plan.sites)}; digest of the plan: {plan.digest[:16]}."]
    for name, value in words.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        lines += [f"{name[0].upper()}{name[1:]}: {text}."] if text and value is not None else []
    return lines
