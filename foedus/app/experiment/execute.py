"""Runs the cases of an experiment into their run directories, one after the other, and resumes unfinished ones."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from foedus.app.experiment import build, figures
from foedus.app.experiment.build import RunSetup
from foedus.app.experiment.file import Experiment, RunCase
from foedus.app.experiment.folder import SUBMISSION, Folder, folder_of
from foedus.app.experiment.screen import Screen
from foedus.app.experiment.sources import cohort_of, partition_settings, sources_of
from foedus.app.report import html
from foedus.app.solve import solve
from foedus.base.engine import return_memory
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.quantities import count, number, size
from foedus.data.baseline import baseline, baseline_of_rules
from foedus.data.holdout import KeptOut, split_cohort
from foedus.data.preprocess import IN_WORDS, Preprocessing
from foedus.data.sites import Cohort
from foedus.protocol.algorithm import name_of
from foedus.runtime.checkpoint import rounds_in
from foedus.runtime.run import Run
from foedus.runtime.run import load as load_run
from foedus.runtime.spine import DIVERGED


@dataclass
class ExperimentOutcome:
    """What became of the cases: the runs by name, their folders, and a sentence for each that failed."""

    runs: dict[str, Run] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def register(self, name: str, folder: Folder, state: str, again: bool, screen: Screen) -> bool:
        """Note the folder of a run, and return whether it is finished; if it is not, its folder is made ready."""
        self.folders[name] = folder.path
        if state == "finished":
            self.runs[name] = folder.run()
            screen.runs_done += 1
            screen.say(f"{name}: already finished in {folder.path}; --again runs it anew.")
            return True
        if again:
            folder.clear()
        return False


class Builder:
    """Builds cases; the data are read and the preprocessing is fitted once for successive cases that share them."""

    def __init__(self, experiment: Experiment):
        self.path, self.folder = experiment.path, experiment.folder
        self.prepared_data: dict[str, tuple[Cohort, Preprocessing, KeptOut]] = {}

    def build(self, case: RunCase, *, release: bool = False) -> RunSetup:
        """Build one case; an error about a data file begins with its name, any other with the experiment file's.

        With `release` the rows are held once, as the arrays of the problem, and no further case can be built of them.
        """
        with self._named_errors(case):
            return self._build(case, release)

    def prepare(self, case: RunCase) -> tuple[Cohort, Preprocessing, KeptOut]:
        """Read the data of a case, and find the rules by which they become numbers; errors are named as by `build`."""
        with self._named_errors(case):
            return self._prepare(case)

    @contextmanager
    def _named_errors(self, case: RunCase) -> Iterator[None]:
        try:
            yield
        except FoedusError as error:
            sources = [str(source) for source in sources_of(case.settings, self.folder)]
            if str(error).startswith((*sources, "cannot read", str(self.path))):
                raise
            raise FoedusError(f"{self.path}: {error}") from None

    def _prepare(self, case: RunCase) -> tuple[Cohort, Preprocessing, KeptOut]:
        parts = ("data", "partition", "has_partition", "preprocess")
        division = sorted(partition_settings(case.settings).items())
        shares = figures.shares_of(case.settings)
        key = repr([case.settings[part] for part in parts] + [build.loss_of(case.settings).kind, shares, division])
        if key not in self.prepared_data:
            return_memory()  # what importing took
            cohort, kept_out = split_cohort(cohort_of(case.settings, self.folder), shares)
            figures.check_counts(case.settings, kept_out)
            # only the last one is remembered, for tables may be large
            self.prepared_data = {key: (cohort, build.rules_of(case.settings, cohort), kept_out)}
        return self.prepared_data[key]

    def _build(self, case: RunCase, release: bool) -> RunSetup:
        cohort, rules, kept_out = self._prepare(case)
        table_one = None
        if case.settings["privacy"] is None and not build.secure_of(case.settings):
            table_one = baseline(kept_out.whole, {site: table.rows for site, table in kept_out.held_out.items()})
        if release:
            self.prepared_data = {}
            if kept_out.whole is not cohort:
                kept_out = replace(kept_out, whole=replace(kept_out.whole, tables={}))
        setup = replace(
            build.build(case.settings, cohort, rules, release=release), kept_out=kept_out, table_one=table_one
        )
        build.check_ready(setup)
        if release:
            return_memory()  # what checking the rows took
        return setup


def execute(
    experiment: Experiment, screen: Screen, *, out: Path | None = None, again: bool = False
) -> ExperimentOutcome:
    """Run all cases; wrong settings or data raise before anything is written, a run that fails later is listed."""
    folders = {case.name: folder_of(experiment, case, out) for case in experiment.cases}
    builder = Builder(experiment)
    states = {}
    for name, folder in folders.items():
        states[name] = "new" if again and (folder.path / "experiment.json").is_file() else folder.state()
    single, only = len(experiment.cases) == 1, None
    for case in experiment.cases:
        if states[case.name] != "finished":
            setup = builder.build(case, release=single)  # a mistake in the last case shows before the first is run
            only = setup if single else None
    screen.total = len(experiment.cases)
    outcome = ExperimentOutcome()
    for case in experiment.cases:
        name, folder = case.name or experiment.name, folders[case.name]
        if outcome.register(name, folder, states[case.name], again, screen):
            continue
        try:
            setup = only or builder.build(case)
            run = _one(experiment, case, setup, folder, screen, is_resumed=states[case.name] == "begun")
        except Exception as error:  # whatever it is, it must not cost the other runs
            if single:
                raise
            outcome.failures[name] = str(error).partition("\n")[0] or type(error).__name__
            screen.note(folder.event("failed", run=name, reason=outcome.failures[name]))
            continue
        if run.interrupted:
            outcome.interrupted = True
            break
        outcome.runs[name] = run
        if run.reason.startswith(DIVERGED):
            outcome.failures[name] = run.reason
    return outcome


def _one(
    experiment: Experiment, case: RunCase, setup: RunSetup, folder: Folder, screen: Screen, *, is_resumed: bool
) -> Run:
    """Run one case, from its checkpoint if there is one."""
    name = case.name or experiment.name
    limit = build.rounds_of(case.settings, setup.algorithm, setup.problem)
    folder.begin(experiment, case, {n: t.rows for n, t in setup.cohort.tables.items()}, setup.cohort.dropped)
    folder.write_preparation(setup.rules)
    sites = setup.problem.terms.clients
    event = folder.event(
        "resume" if is_resumed else "start",
        run=name,
        folder=str(folder.path),
        algorithm=name_of(setup.algorithm),
        max_rounds=limit,
        sites=sites,
    )
    screen.note(event)
    screen.begin(f"{name}: {name_of(setup.algorithm)} over {sites} sites", limit, sites)

    def watch(rounds: int, record: Mapping[str, float]) -> None:
        screen.note(folder.event("rounds", run=name, rounds=rounds, **record))
        screen.round(rounds, dict(record))

    try:
        run = solve(
            setup.problem,
            setup.algorithm,
            seed=case.settings["seed"],
            max_rounds=limit,
            participation=setup.participation,
            checkpoint=folder.checkpoint,
            callback=watch,
            **setup.privacy,
            **build.runtime_of(case.settings),
        )
    finally:
        screen.end()
    return_memory()  # what the rounds took
    run.ledger = setup.with_preparation(run.ledger)
    if run.interrupted:
        screen.note(folder.event("interrupted", run=name, rounds=run.rounds))
        return run
    figures.add(run, setup)
    description = description_of(f"foedus run {experiment.path}", experiment.name, setup, is_simulated=True)
    finish(folder, run, name, description, screen)
    return run


def open_run(path: Path) -> Run:
    """Return the run in a run directory; of one that is not finished, the model of its last checkpoint, measured."""
    record_file = path / "experiment.json"
    if (path / "run.json").is_file() or not record_file.is_file():
        return load_run(path)
    try:
        record = json.loads(record_file.read_text(encoding="utf-8"))
        settings, file = dict(record["settings"]), str(record["file"])
    except (OSError, ValueError, KeyError, TypeError):
        raise FoedusError(f"{record_file} is damaged; run the experiment again with --again.") from None
    if (path / SUBMISSION).is_file() or "runtime" in build.runtime_of(settings):
        raise FoedusError(
            f"{path}: the run over real sites is not finished; 'foedus federation resume {path}' ends it."
        )
    folder = Folder(path, str(record.get("digest", "")))
    if not folder.checkpoint.is_file():
        raise FoedusError(f"{path}: the run has not saved a round yet; 'foedus run {file}' goes on with it.")
    for key in ("features", "drop", "categorical"):  # JSON has no tuples
        settings["data"][key] = None if settings["data"][key] is None else tuple(settings["data"][key])
    case = RunCase(settings)
    setup = Builder(Experiment(Path(file), str(record["name"]), path, (case,))).build(case)
    rounds = rounds_in(folder.checkpoint)
    with tempfile.TemporaryDirectory() as place:  # the checkpoint itself stays as it is
        copy = Path(shutil.copy(folder.checkpoint, place))
        run = solve(
            setup.problem, setup.algorithm, seed=settings["seed"], max_rounds=max(1, rounds),
            participation=setup.participation, checkpoint=copy, **setup.privacy, **build.runtime_of(settings),
        )  # fmt: skip
    run.ledger, run.interrupted, run.converged = setup.with_preparation(run.ledger), True, False
    run.reason = f"not finished: {count(run.rounds, 'round')} of it are saved, and 'foedus run {file}' goes on"
    figures.add(run, setup)
    return run


def finish(folder: Folder, run: Run, name: str, description: Json, screen: Screen) -> None:
    """Save a run and write its report."""
    folder.finish(run)
    folder.write("asked.json", description)
    if (wrong := write_report({name: run}, folder.path / "report.html", description)) is not None:
        screen.note(folder.event("warning", run=name, reason=wrong))
        screen.say(f"{name}: {wrong}.")
    result = {"rounds": run.rounds, "objective": run.objective, "converged": run.converged, "reason": run.reason}
    screen.note(folder.event("end", run=name, **result, seconds=run.seconds))


def description_of(command: str, title: str, setup: RunSetup, *, is_simulated: bool = False) -> Json:
    """Describe a run in words for its report; `is_simulated` says that the preparation drew its noise from the seed."""
    cohort, rules = setup.cohort, setup.rules
    rows = sum(table.rows for table in cohort.tables.values())
    sites = count(setup.problem.terms.clients, "site")
    where = f"{count(rows, 'row')} at {sites}" if rows else f"at {sites}"
    columns = [f"{count(len(cohort.features) - len(cohort.words), 'column')} of numbers, {IN_WORDS[rules.scale]}"]
    columns += [f"{number(len(cohort.words))} of categories"] if cohort.words else []
    kind = "simulated " if is_simulated else ""
    description: Json = {
        "title": title,
        "command": command,
        "Data": f"{where}; {', '.join(columns)}",
        "Label": f"{cohort.roles.label}" + (f", where {cohort.labels[1]} counts as 1" if cohort.labels else ""),
        "Preparation": f"{count(rules.rounds, 'round')}, {size(rules.up)} up and {size(rules.down)} down, "
        "beside the training"
        + (f"; {kind}epsilon {rules.epsilon:g} of each site's rows" if rules.epsilon is not None else ""),
    }
    if cohort.dropped:
        rows_left_out = ", ".join(f"{number(rows)} at {site}" for site, rows in cohort.dropped.items())
        description["warnings"] = [f"Rows with missing values were left out: {rows_left_out}."]
    if setup.table_one is not None:
        description["cohort"] = setup.table_one
    elif setup.settings["privacy"] is None and not setup.cohort.tables:  # sites of their own
        description["cohort"] = baseline_of_rules(rules)
    return description


def write_report(runs: Mapping[str, Run], path: Path, description: Json) -> str | None:
    """Write the report of some runs; where that fails, return why, for the runs themselves are saved already."""
    try:
        html.write(runs, path, description)
    except Exception as error:
        return f"the report could not be written ({str(error) or type(error).__name__})"
    return None
