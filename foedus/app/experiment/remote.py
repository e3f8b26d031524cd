"""Submits the runs of an experiment file to sites that bring their own rows; the run directories are as for `run`."""

import dataclasses
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foedus.app.experiment import build, figures
from foedus.app.experiment.execute import ExperimentOutcome, description_of, finish
from foedus.app.experiment.file import Experiment
from foedus.app.experiment.folder import REQUEST, SUBMISSION, Folder, folder_of
from foedus.app.experiment.plan import Plan
from foedus.app.experiment.screen import Screen
from foedus.app.experiment.sources import files_of
from foedus.app.experiment.sweep import RunCase
from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.data.columns import listing
from foedus.data.preprocess import Preprocessing
from foedus.data.tables import check_file
from foedus.federation.flare.driver import Flare
from foedus.federation.flare.kits import is_filled_in, write_site_file
from foedus.federation.flare.submission import AtServer, Stopped, Submission, drive
from foedus.federation.flare.trial import Federation
from foedus.federation.monitor import Glimpse
from foedus.federation.order import Result
from foedus.federation.plan import Request, read
from foedus.federation.policy import SITE_FILE, SiteFile
from foedus.federation.preparation import cohort_of
from foedus.privacy.releasing import noise_of
from foedus.protocol.algorithm import name_of
from foedus.runtime import spine
from foedus.runtime.run import Run
from foedus.statistics.coefficients import table_of
from foedus.statistics.evaluate import Evaluation
from foedus.statistics.rates import Decision

# of sites on this machine: all rows are the caller's own, so single replies may be seen, over few rows
TRIAL_POLICY: Json = {"min_subset": 1, "min_sites": 1, "secure": False}


@dataclass(frozen=True)
class Coordinator:
    """Where runs are submitted: the coordinator's kit, and the sites that take part."""

    kit: Path
    sites: tuple[str, ...]
    transport: str | None = None  # that of the experiment file when left out
    keep_going: int | None = None


def submit(
    experiment: Experiment, coordinator: Coordinator, screen: Screen, *, out: Path | None = None, again: bool = False
) -> ExperimentOutcome:
    """Run all cases over the sites, one after the other. Wrong settings raise before anything is written."""
    plans = {case.name: _plan_of(experiment, case, len(coordinator.sites)) for case in experiment.cases}
    folders = {
        case.name: folder_of(experiment, dataclasses.replace(case, settings=plans[case.name].settings), out)
        for case in experiment.cases
    }
    states = {}
    for name, folder in folders.items():
        states[name] = "new" if again and (folder.path / "experiment.json").is_file() else folder.state()
    screen.total = len(experiment.cases)
    outcome = ExperimentOutcome()
    for case in experiment.cases:
        name, folder, plan = case.name or experiment.name, folders[case.name], plans[case.name]
        if outcome.register(name, folder, states[case.name], again, screen):
            continue
        if states[case.name] == "begun" and (folder.path / SUBMISSION).is_file():
            run = resume(folder.path, screen)
        else:
            planned_case = dataclasses.replace(case, settings=plan.settings)
            folder.begin(experiment, planned_case, dict.fromkeys(coordinator.sites), {})
            run = _one(folder, _write_submission(experiment, case, plan, folder, coordinator), screen, "start")
        if run.interrupted:
            outcome.interrupted = True
            break
        outcome.runs[name] = run
    return outcome


def place_data(experiment: Experiment, federation: Federation, screen: Screen) -> None:
    """Give the sites of a trial on this machine the files that the experiment names, one each, and list who reads what.

    A site whose file somebody filled in keeps its own data. The files are not copied: each site reads its own where it
    is.
    """
    kits = {site: federation.kit(site) for site in federation.sites}
    own_files = {site: kit / "local" / SITE_FILE for site, kit in kits.items() if is_filled_in(kit)}
    data = experiment.cases[0].settings["data"]
    files = {} if data["files"] is None else files_of(data["files"], experiment.folder)
    if files and len(files) != len(kits):
        raise FoedusError(
            f"{experiment.path} names {len(files)} files ({listing(files)}) and the federation has {len(kits)} sites "
            f"({listing(kits)}); 'foedus federation up --sites {len(files)}' starts as many, after 'foedus federation "
            "down'; or leave 'files' out, where the sites' own files name their data."
        )
    blank = [site for site in kits if site not in own_files]
    if blank and (own_files or not files):
        raise FoedusError(
            f"the site {blank[0]!r} has no data yet: name its table in {kits[blank[0]] / 'local' / SITE_FILE}, or name "
            "one file a site in the experiment ([data] files)."
        )
    for site, path in own_files.items():
        own = SiteFile.read(path).data
        screen.say(f"{site} reads {'nothing yet' if own is None else own.file}, as {path} says.")
    more = {key: data.get(key) for key in ("separator", "encoding", "decimal")}
    more |= {"labels": [data["label"]] if data["label"] else []}
    more["groups"] = [data["group"]] if data["group"] else []
    for path in files.values():
        check_file(path, str(path))
    remedies = data["sites"] or {}
    for site, (name, path) in zip(blank, files.items(), strict=not own_files):
        write_site_file(kits[site], path.absolute(), TRIAL_POLICY, more | remedies.get(name, {}), mark=True)
        screen.say(
            f"{site} reads {path}" + (f", with the remedies of [data.sites.{name}]." if name in remedies else ".")
        )
    screen.say(
        "The sites of this trial let plain replies leave; the kits that are made for real sites do not (secure)."
    )


def _plan_of(experiment: Experiment, case: RunCase, sites: int) -> Plan:
    try:
        plan = Plan.of(case.settings)
        plan.check(sites)
        return plan
    except FoedusError as error:
        raise FoedusError(f"{experiment.path}: {error}") from None


def _write_submission(
    experiment: Experiment, case: RunCase, plan: Plan, folder: Folder, coordinator: Coordinator
) -> tuple[Request, Json]:
    """Write down the request and how to submit it, so that the run can be resumed, and return both."""
    flare = build.runtime_of(case.settings).get("runtime", Flare())
    request = Request(uuid.uuid4().hex[:12], coordinator.sites, plan)
    write_whole(folder.path / REQUEST, request.to_bytes())
    note = {
        "name": case.name or experiment.name,
        "command": f"foedus federation submit {experiment.path}",
        "title": experiment.name,
        "kit": str(coordinator.kit.absolute()),
        "transport": coordinator.transport or flare.transport,
        "keep_going": flare.keep_going if coordinator.keep_going is None else coordinator.keep_going,
        "patience": flare.patience,
    }
    folder.write(SUBMISSION, note)
    return request, note


def resume(path: Path, screen: Screen, keep_going: int | None = None) -> Run:
    """Go on with the submitted run in a run directory."""
    try:
        note = json.loads((path / SUBMISSION).read_text())
        request = read((path / REQUEST).read_bytes())
        digest = json.loads((path / "experiment.json").read_text())["digest"]
    except (OSError, ValueError, KeyError):
        raise FoedusError(
            f"{path} holds no submitted run that could go on; 'foedus federation submit' makes one."
        ) from None
    if not isinstance(request, Request):
        raise FoedusError(f"{path / REQUEST} is damaged; submit the experiment anew.")
    if keep_going is not None:
        note["keep_going"] = keep_going
    return _one(Folder(path, digest), (request, note), screen, "resume")


def _one(folder: Folder, submission: tuple[Request, Json], screen: Screen, how: str) -> Run:
    """Drive one submitted run to its end; `how` is the event that its beginning is noted as."""
    request, note = submission
    plan, name = request.plan, note["name"]
    algorithm = name_of(plan.algorithm(len(request.sites)))
    details = {"run": name, "folder": str(folder.path), "algorithm": algorithm, "max_rounds": plan.max_rounds}
    details |= {"sites": len(request.sites), "id": request.run}
    screen.note(folder.event(how, **details))
    screen.begin(f"{name}: {algorithm} over {', '.join(request.sites)}", plan.max_rounds, len(request.sites))
    try:
        result = drive(
            Submission.of(request, note["transport"], note["patience"]),
            Path(note["kit"]),
            AtServer(),
            keep_going=note["keep_going"],
            watch=_watch(folder, name, screen),
            keep=True,
        )
    except Stopped as error:
        screen.note(folder.event("stopped", run=name, reason=str(error)))
        raise FoedusError(
            f"the run stopped: {error}; 'foedus federation resume {folder.path}' goes on with it."
        ) from None
    finally:
        screen.end()
    assert result.rules is not None
    rules = Preprocessing.from_json(result.rules)
    run = run_of(plan, rules, result, request)
    if result.interrupted:
        screen.note(folder.event("interrupted", run=name, rounds=run.rounds))
        return run
    setup = plan.setup(cohort_of(rules, plan.roles), rules, request.sites)
    run.ledger = setup.with_preparation(run.ledger)
    folder.write_preparation(rules)
    finish(folder, run, name, description_of(note["command"], note["title"], setup), screen)
    return run


def _watch(folder: Folder, name: str, screen: Screen) -> Callable[[Glimpse], None]:
    def watch(glimpse: Glimpse) -> None:
        screen.note(folder.event("rounds", run=name, rounds=glimpse.rounds, **glimpse.record))
        screen.round(glimpse.rounds, glimpse.record)

    return watch


def run_of(plan: Plan, rules: Preprocessing, result: Result, request: Request) -> Run:
    """Return the run as `solve` would; the worst case, which is measured on the data, is left out."""
    order = plan.order(cohort_of(rules, plan.roles), rules, request.run, request.sites)
    end, history = result.conclusion, dict(result.history)
    if result.interrupted:
        end = replace(end, reason="interrupted")
    parts = (result.interrupted, result.seconds, result.compile_seconds, tuple(result.refused), result.left_out)
    outcome = spine.Outcome(end, history, *parts, plan=result.plan)
    settings = spine.settings_of(
        order.algorithm, order.terms, order.participation, by_name=True, seed=order.seed, max_rounds=order.max_rounds
    )
    ledger = spine.ledger_without_counts(noise_of(order.algorithm), history, order.names)
    run = spine.run_of(end, outcome, end.w, settings, list(order.names), ledger)
    run = replace(run, rules=rules)
    if result.evaluation is not None:
        evaluation = Evaluation.from_json(result.evaluation)
        run.evaluations[evaluation.source] = evaluation
        run.ledger = figures.with_figures(run.ledger, order.terms, evaluation.noise)
    if result.errors is not None and plan.summary is not None:
        nu = end.multipliers.get("coupled", np.zeros(order.terms.rows[2]))
        run.coefficients = table_of(
            order.terms, result.errors, np.asarray(end.w), nu, names=rules.names, units=figures.units_of(rules),
            errors=plan.summary,
        )  # fmt: skip
        run.settings["summary"] = plan.summary
    run.decision = None if result.decision is None else Decision.from_json(result.decision)
    return run
