"""Runs the cases of an experiment into their run directories, one after the other, and goes on where it was stopped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foedus.algorithm import name_of
from foedus.data.preprocess import Preprocessing
from foedus.data.sites import Cohort
from foedus.errors import FoedusError
from foedus.experiment import build
from foedus.experiment.build import Built
from foedus.experiment.file import Case, Experiment
from foedus.experiment.folder import Folder, folder_of
from foedus.experiment.screen import Screen, size
from foedus.experiment.sources import cohort_of, sources_of
from foedus.report import html
from foedus.run import Run
from foedus.solve import solve


@dataclass
class Outcome:
    """What became of the cases: runs by name, and a sentence for each that failed."""

    runs: dict[str, Run] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def opened(self, name: str, folder: Folder, state: str, again: bool, screen: Screen) -> bool:
        """Note where a run is kept, and whether it is finished; else its folder is ready for it."""
        self.folders[name] = folder.path
        if state == "finished":
            self.runs[name] = folder.run()
            screen.done += 1
            screen.say(f"{name}: already finished in {folder.path}; --again runs it anew.")
            return True
        if again:
            folder.clear()
        return False


class Builder:
    """Builds cases, and reads the data and finds the scales only once for cases that share them."""

    def __init__(self, experiment: Experiment):
        self.path, self.folder = experiment.path, experiment.folder
        self.kept: dict[str, tuple[Cohort, Preprocessing]] = {}

    def build(self, case: Case) -> Built:
        """Build one case; what is wrong with a file of data is said of that file, all else of the experiment's."""
        try:
            return self._build(case)
        except FoedusError as error:
            sources = [str(source) for source in sources_of(case.settings, self.folder)]
            if str(error).startswith((*sources, "cannot read", str(self.path))):
                raise
            raise FoedusError(f"{self.path}: {error}") from None

    def _build(self, case: Case) -> Built:
        parts = ("data", "partition", "has_partition", "preprocess")
        key = repr([case.settings[part] for part in parts] + [build.loss_of(case.settings).kind])
        if key not in self.kept:
            cohort = cohort_of(case.settings, self.folder)
            self.kept = {key: (cohort, build.rules_of(case.settings, cohort))}  # one at a time: they may be large
        made = build.build(case.settings, *self.kept[key])
        build.check_privacy(made)
        return made


def execute(experiment: Experiment, screen: Screen, *, out: Path | None = None, again: bool = False) -> Outcome:
    """Run all cases. Wrong settings or data raise before anything is written; a run that fails later is listed."""
    folders = {case.name: folder_of(experiment, case, out) for case in experiment.cases}
    builder = Builder(experiment)
    states = {}
    for name, folder in folders.items():
        states[name] = "new" if again and (folder.path / "experiment.json").is_file() else folder.state()
    for case in experiment.cases:
        if states[case.name] != "finished":
            builder.build(case)  # every one, before the first is run
    screen.total = len(experiment.cases)
    outcome = Outcome()
    for case in experiment.cases:
        name, folder = case.name or experiment.name, folders[case.name]
        if outcome.opened(name, folder, states[case.name], again, screen):
            continue
        try:
            run = _one(experiment, case, builder.build(case), folder, screen, resumed=states[case.name] == "begun")
        except Exception as error:  # whatever it is, it must not cost the other runs
            if len(experiment.cases) == 1:
                raise
            outcome.failed[name] = str(error).partition("\n")[0] or type(error).__name__
            screen.note(folder.event("failed", run=name, reason=outcome.failed[name]))
            continue
        if run.interrupted:
            outcome.interrupted = True
            break
        outcome.runs[name] = run
        if run.reason.startswith("the iterates became infinite"):
            outcome.failed[name] = run.reason
    return outcome


def _one(experiment: Experiment, case: Case, built: Built, folder: Folder, screen: Screen, *, resumed: bool) -> Run:
    """One run, from its checkpoint if there is one."""
    name = case.name or experiment.name
    limit = build.rounds_of(case.settings, built.algorithm, built.problem)
    folder.begin(experiment, case, {n: t.rows for n, t in built.cohort.tables.items()}, built.cohort.dropped)
    folder.prepared(built.rules)
    told = {"run": name, "folder": str(folder.path), "algorithm": name_of(built.algorithm), "max_rounds": limit}
    told["sites"] = built.problem.terms.clients
    screen.note(folder.event("resume" if resumed else "start", **told))
    screen.begin(f"{name}: {name_of(built.algorithm)} over {told['sites']} sites", limit, told["sites"])

    def watch(rounds: int, record: Mapping[str, float]) -> None:
        screen.note(folder.event("rounds", run=name, rounds=rounds, **record))
        screen.round(rounds, dict(record))

    try:
        run = solve(
            built.problem,
            built.algorithm,
            seed=case.settings["seed"],
            max_rounds=limit,
            participation=built.participation,
            checkpoint=folder.checkpoint,
            callback=watch,
            **built.privacy,
            **build.runtime_of(case.settings),
        )
    finally:
        screen.end()
    run.ledger = built.accounted(run.ledger)
    if run.interrupted:
        screen.note(folder.event("interrupted", run=name, rounds=run.rounds))
        return run
    asked = asked_of(f"foedus run {experiment.path}", experiment.name, built, simulated=True)
    finish(folder, run, name, asked, screen)
    return run


def finish(folder: Folder, run: Run, name: str, asked: dict[str, Any], screen: Screen) -> None:
    """Keep a run and write its report."""
    folder.finish(run)
    folder.write("asked.json", asked)
    if (wrong := write_report({name: run}, folder.path / "report.html", asked)) is not None:
        screen.note(folder.event("warning", run=name, reason=wrong))
        screen.say(f"{name}: {wrong}.")
    ended = {"rounds": run.rounds, "objective": run.objective, "converged": run.converged, "reason": run.reason}
    screen.note(folder.event("end", run=name, **ended, seconds=run.seconds))


def asked_of(command: str, title: str, built: Built, *, simulated: bool = False) -> dict[str, Any]:
    """What was asked, in words for the report; `simulated`: the preparation drew its noise from the seed."""
    cohort, rules = built.cohort, built.rules
    rows = sum(table.rows for table in cohort.tables.values())
    where = f"{rows} rows at {len(cohort.tables)} sites" if rows else f"at {built.problem.terms.clients} sites"
    scaled = {"standard": "standardised", "minmax": "scaled to [0, 1]", "none": "as they are"}[rules.scale]
    counted = [f"{len(cohort.features) - len(cohort.words)} columns of numbers, {scaled}"]
    counted += [f"{len(cohort.words)} of categories"] if cohort.words else []
    kind = "simulated " if simulated else ""
    asked: dict[str, Any] = {
        "title": title,
        "command": command,
        "Data": f"{where}; {', '.join(counted)}",
        "Label": f"{cohort.roles.label}" + (f", where {cohort.labels[1]} counts as 1" if cohort.labels else ""),
        "Preparation": f"{rules.rounds} rounds, {size(rules.up)} up and {size(rules.down)} down, beside the training"
        + (f"; {kind}epsilon {rules.epsilon:g} of each site's rows" if rules.epsilon is not None else ""),
    }
    if cohort.dropped:
        left = ", ".join(f"{count} at {site}" for site, count in cohort.dropped.items())
        asked["warnings"] = [f"rows with missing values were left out: {left}"]
    return asked


def write_report(runs: Mapping[str, Run], path: Path, asked: dict[str, Any]) -> str | None:
    """Write the report of some runs; a sentence where it cannot be, for the runs are kept whatever happens to it."""
    try:
        html.write(runs, path, asked)
    except Exception as error:
        return f"the report could not be written ({str(error) or type(error).__name__})"
    return None
