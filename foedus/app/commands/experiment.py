"""Commands about experiment files and their runs: `foedus init`, `check`, `run`, `compare`, `predict` and more.

A command imports what it needs when it is called, so that no command waits for what another one needs.
"""

import itertools
import json
import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foedus.base.errors import FoedusError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from foedus.app.experiment.execute import ExperimentOutcome
    from foedus.app.experiment.file import Experiment
    from foedus.app.experiment.predict import SavedModel
    from foedus.app.experiment.screen import Screen
    from foedus.data.doubts import Doubt
    from foedus.runtime.run import Run


# exit statuses; a wrong input is 2
INTERRUPTED = 130  # after Ctrl-C, as shells have it: 128 and the number of the signal
FAILED = 1  # some runs of a sweep did not end well
UNCERTIFIED = 3  # a run ended, and is not certified

File = Annotated[Path, typer.Argument(help="The experiment file (TOML).", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON an event.")]
Again = Annotated[bool, typer.Option("--again", help="Run anew what is finished, and replace what is there.")]
RunFolder = Annotated[Path, typer.Argument(help="The run directory of the model.", show_default=False)]
Accept = Annotated[bool, typer.Option("--accept-uncertified", help="Go on with a run that is not certified.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse rows with words or numbers that are far from those of the training.")
]
Separator = Annotated[str | None, typer.Option(help="What stands between cells; recognised by default.")]


def console_of() -> "Console":
    from rich.console import Console

    return Console(markup=False, highlight=False)


def screen_for(quiet: bool, as_json: bool) -> "Screen":
    """Return the screen that --quiet and --json ask for."""
    from foedus.app.experiment.screen import Screen

    if quiet and as_json:
        raise FoedusError("--quiet and --json exclude each other.")
    return Screen("quiet" if quiet else "json" if as_json else "live", console_of())


def run(
    file: File,
    out: Annotated[
        Path | None, typer.Option(help="The run directory, instead of the file's.", show_default=False)
    ] = None,
    again: Again = False,
    accept_uncertified: Accept = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train as the experiment file says; the model, its certificate and a report go into a run directory."""
    from foedus.app.experiment.execute import execute
    from foedus.app.experiment.file import load

    screen = screen_for(quiet, as_json)
    experiment = load(file)
    outcome = execute(experiment, screen, out=out, again=again)
    if len(experiment.cases) > 1:
        _tell_sweep(experiment, outcome, screen, out)
    else:
        for name, finished_run in outcome.runs.items():
            screen.say(str(finished_run))
            tell_folder(screen, outcome.folders[name], finished_run)
    if outcome.interrupted:
        screen.say(f"Stopped. 'foedus run {file}' goes on where it was.")
        raise typer.Exit(INTERRUPTED)
    if outcome.failures:
        raise typer.Exit(FAILED)
    if not accept_uncertified:
        require_certified({str(outcome.folders[name]): run for name, run in outcome.runs.items()})


def require_certified(runs: Mapping[str, "Run"]) -> None:
    """Exit with status 3, and one sentence for each run that is not certified, where there is one."""
    from foedus.app.report.words import uncertified

    reasons = {name: why for name, run in runs.items() if (why := uncertified(run)) is not None}
    if len(reasons) > 3:  # of a sweep one stands for all
        name, why = next(iter(reasons.items()))
        reasons = {f"of {len(runs)} runs {len(reasons)} are not certified; {name}": why}
    for name, why in reasons.items():
        print(f"foedus: {name} is not certified: {why} (--accept-uncertified goes on with it).", file=sys.stderr)
    if reasons:
        raise typer.Exit(UNCERTIFIED)


def _open_checked(folder: Path, accept_uncertified: bool) -> "SavedModel":
    """The model of a run directory; one that is not certified is refused, or noted where the user accepts it."""
    from foedus.app.experiment.predict import open_model
    from foedus.app.report.words import uncertified

    model = open_model(folder)
    if not accept_uncertified:
        require_certified({str(folder): model.run})
    elif (why := uncertified(model.run)) is not None:
        print(f"foedus: note: {folder} is not certified: {why}.", file=sys.stderr)
    return model


def tell_folder(screen: "Screen", folder: Path, run: "Run") -> None:
    """Say what preparing the data took, where a run is kept, and what to do with it."""
    from foedus.app.report.words import uncertified
    from foedus.base.quantities import count, size

    preparation = json.loads((folder / "experiment.json").read_text())["preparation"]
    epsilon = f", epsilon {preparation['epsilon']:g}" if "epsilon" in preparation else ""
    screen.say(
        f"preparation beside that: {count(preparation['rounds'], 'round')} for the scales and words of the columns, "
        f"{size(preparation['up'])} up and {size(preparation['down'])} down{epsilon}"
    )
    report = folder / "report.html"
    screen.say(f"\nKept in {folder}" + (f"; open {report} in a browser." if report.exists() else "."))
    if uncertified(run) is None:
        screen.say(f"Next: foedus predict {folder} NEW.csv")


def _tell_sweep(experiment: "Experiment", outcome: "ExperimentOutcome", screen: "Screen", out: Path | None) -> None:
    """Show the table of all runs and the failures, and write the report of the sweep."""
    from foedus.app.experiment.compare import data_differ, summary, table
    from foedus.app.experiment.execute import write_report
    from foedus.app.experiment.folder import finite
    from foedus.app.report.sweep import summary_csv
    from foedus.base.files import write_whole

    if outcome.runs:
        base = out or experiment.out
        differ = data_differ(outcome.folders[name] for name in outcome.runs)
        if screen.mode == "live":
            screen.say(table(outcome.runs, differ))
        screen.note(finite({"event": "summary", "runs": summary(outcome.runs), "failed": outcome.failures}))
        description = {"title": experiment.name, "command": f"foedus run {experiment.path}", "data_differ": differ}
        write_whole(base / "summary.csv", summary_csv(outcome.runs).encode())
        wrong = write_report(outcome.runs, base / "report.html", description)
        screen.say(
            f"Kept in {base}, and in short in {base / 'summary.csv'}; "
            + (wrong or f"open {base / 'report.html'} in a browser")
            + "."
        )
    if outcome.failures:
        screen.say(f"{len(outcome.failures)} of {len(experiment.cases)} runs failed:")
        for name, reason in outcome.failures.items():
            screen.say(f"  {name}: {reason}")


def init(
    file: Annotated[Path, typer.Argument(help="The experiment file to write.")] = Path("experiment.toml"),
    data: Annotated[str | None, typer.Option(help="The sites' files, as 'sites/*.csv'.", show_default=False)] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.", show_default=False)] = None,
    positive: Annotated[str | None, typer.Option(help="The label that counts as 1.", show_default=False)] = None,
    group: Annotated[str | None, typer.Option(help="The column with the groups.", show_default=False)] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(help="A cap on the mean loss of the positive rows at every site.", show_default=False),
    ] = None,
    max_gap: Annotated[
        float | None, typer.Option(help="A cap on the gap between two groups' losses.", show_default=False)
    ] = None,
    algorithm: Annotated[str, typer.Option(help="The algorithm.")] = "auto",
    separator: Separator = None,
    example: Annotated[bool, typer.Option("--example", help="Write an example with four invented hospitals.")] = False,
) -> None:
    """Write a commented experiment file to start from; questions, or options, say what it is about."""
    from foedus.app.experiment import catalogue, starter
    from foedus.base.files import write_whole

    if example:
        _write_example(file)
        return
    if file.exists():
        raise FoedusError(f"{file} is already there; give another name.")
    if not file.parent.is_dir():
        raise FoedusError(f"{file}: there is no folder {file.parent}.")
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if data is None and asks:
        data = typer.prompt("Where are the sites' files? One file a site, as in sites/*.csv")
    if data is None:
        raise FoedusError("init needs --data, the sites' files, as in --data 'sites/*.csv'; or --example.")
    table = starter.first_table(data, file.parent, separator)
    if label is None and asks:
        typer.echo("The columns of the first file: " + ", ".join(starter.columns_of(table)))
        label = typer.prompt("Which column is to be predicted?")
    if label is None:
        columns = ", ".join(table.columns)
        raise FoedusError(f"init needs --label, the column to predict; {table.source} has {columns}.")
    if max_gap is not None and group is None:
        raise FoedusError("--max-gap needs --group, the column with the groups.")
    method = catalogue.find_algorithm(algorithm, "--algorithm").name
    wish = starter.Wish(data, label, positive, group, max_loss, max_gap, method, separator)
    write_whole(file, starter.starter(starter.complete_wish(wish, file.parent)).encode())
    typer.echo(f"Wrote {file}. Read it, then: foedus check {file}")


def _write_example(file: Path) -> None:
    """Write the example file and its hospitals; nothing that is there already is replaced."""
    from foedus.app.experiment import starter
    from foedus.base.files import write_whole

    if file == Path("experiment.toml"):
        file = Path("hospital.toml")
    folder = file.parent / "hospitals"
    for target in (file, folder):
        if target.exists():
            raise FoedusError(f"{target} is already there; move it away, or start in an empty folder.")
    if not file.parent.is_dir():
        raise FoedusError(f"{file}: there is no folder {file.parent}.")
    folder.mkdir()
    for name, text in starter.hospitals().items():
        write_whole(folder / f"{name}.csv", text.encode())
    write_whole(file, starter.starter(starter.EXAMPLE).encode())
    typer.echo(f"Wrote {file} and four invented hospitals in {folder}. Next: foedus check {file}")


def compare(
    what: Annotated[list[Path], typer.Argument(help="Experiment files or run directories.", show_default=False)],
    algorithms: Annotated[
        str | None, typer.Option(help="Compare these on the problem of one file, by name.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the comparison.")] = Path("runs/comparison"),
    again: Again = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Put runs side by side: several files, several algorithms on one file, or finished run directories."""
    from foedus.app.experiment.compare import data_differ, summary, table
    from foedus.app.experiment.execute import execute, write_report
    from foedus.app.experiment.file import load, with_algorithms
    from foedus.app.experiment.folder import finite
    from foedus.app.experiment.predict import open_model
    from foedus.base.files import write_whole

    screen = screen_for(quiet, as_json)
    files = [path for path in what if not path.is_dir()]
    if algorithms is not None and (len(files) != 1 or len(what) != 1):
        raise FoedusError("--algorithms compares on the problem of one experiment file; name one.")
    experiments = {path: load(path) for path in files}
    if algorithms is not None:
        names = [name.strip() for name in algorithms.split(",") if name.strip()]
        experiments = {path: with_algorithms(experiment, names) for path, experiment in experiments.items()}
    clashes = [e.name for e in experiments.values()]
    runs: dict[str, Run] = {}
    folders: list[Path] = []
    failures: dict[str, str] = {}
    for path in what:
        if path.is_dir():
            folders.append(path)
            runs[_free_name(path.name, runs)] = open_model(path).run
            continue
        experiment = experiments[path]
        if clashes.count(experiment.name) > 1:
            raise FoedusError(f"two files are called {experiment.name!r}; give one of them another name at its top.")
        outcome = execute(experiment, screen, again=again)
        folders += [outcome.folders[name] for name in outcome.runs]
        several = len(experiment.cases) > 1 and len(what) > 1
        for name, finished_run in outcome.runs.items():
            runs[_free_name(f"{experiment.name} {name}" if several else name, runs)] = finished_run
        failures |= outcome.failures
        if outcome.interrupted:
            raise typer.Exit(INTERRUPTED)
    if runs:
        differ = data_differ(folders)
        if screen.mode == "live":
            screen.say(table(runs, differ))
        comparison = finite({"event": "comparison", "runs": summary(runs), "failed": failures})
        screen.note(comparison)
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "comparison.json", (json.dumps(comparison, indent=1) + "\n").encode())
        command = "foedus compare " + " ".join(map(str, what))
        description = {"title": "comparison", "command": command, "data_differ": differ}
        wrong = write_report(runs, out / "report.html", description)
        screen.say(f"Kept in {out}; " + (wrong or f"open {out / 'report.html'} in a browser") + ".")
    for name, reason in failures.items():
        screen.say(f"{name} failed: {reason}")
    if failures:
        raise typer.Exit(FAILED)


def _free_name(name: str, names: Container[str]) -> str:
    """The name, with the first number behind it that makes it different from the others."""
    if name not in names:
        return name
    return next(f"{name} ({k})" for k in itertools.count(2) if f"{name} ({k})" not in names)


def predict(
    model: RunFolder,
    table: Annotated[Path, typer.Argument(help="A table of raw rows: CSV or Parquet.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="A CSV file for the predictions; the screen when left out.", show_default=False)
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="The site whose rows these are, so that they are read as its file was; that of the file's name when "
            "left out.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Columns to carry into the predictions, separated by commas, as in --keep patient_id."),
    ] = None,
    strict: Strict = False,
    separator: Separator = None,
    accept_uncertified: Accept = False,
) -> None:
    """Predict raw rows with the model of a run directory; they are prepared as in training."""
    from foedus.app.experiment.predict import predict as predict_rows
    from foedus.base.files import write_whole

    saved_model = _open_checked(model, accept_uncertified)
    columns = [] if keep is None else [name.strip() for name in keep.split(",")]
    predictions = predict_rows(saved_model, table, separator, site=site, strict=strict, keep=columns)
    _print_notes(predictions.notes)
    if out is None:
        typer.echo(predictions.csv(), nl=False)
        return
    if not out.absolute().parent.is_dir():
        raise FoedusError(f"--out {out}: there is no folder {out.parent}.")
    write_whole(out, predictions.csv().encode())
    typer.echo(f"Wrote {len(predictions.answers)} predictions to {out}.")


def _print_notes(notes: Iterable[str]) -> None:
    """Print what is to be known of new rows beside the answers."""
    for note in notes:
        print(f"foedus: note: {note}", file=sys.stderr)


def export(
    model: RunFolder,
    out: Annotated[Path, typer.Argument(help="The file to write, ending in .joblib or .onnx.")] = Path("model.joblib"),
    accept_uncertified: Accept = False,
) -> None:
    """Write the model for raw rows as a scikit-learn pipeline (.joblib) or an ONNX graph (.onnx)."""
    from foedus.base.files import write_whole

    if out.suffix not in (".joblib", ".onnx"):
        hint = did_you_mean(out.suffix, [".joblib", ".onnx"])
        raise FoedusError(f"{out}: expected a name that ends in .joblib or .onnx.{hint}")
    saved_model = _open_checked(model, accept_uncertified)
    if out.suffix == ".joblib":
        import io

        import joblib

        from foedus.app.experiment.export import to_sklearn

        buffer = io.BytesIO()
        joblib.dump(to_sklearn(saved_model), buffer)
        content, what = buffer.getvalue(), "joblib.load gives a scikit-learn pipeline for a table of raw rows"
    else:
        from foedus.app.experiment.onnx_export import to_onnx

        content = to_onnx(saved_model).SerializeToString()
        what = "one input a column of raw rows, shape (rows, 1); outputs prediction and score"
    write_whole(out, content)
    typer.echo(f"Wrote {out}: {what}.")


def check(
    file: File,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write the remedies that are sure into the file, and show what changes.")
    ] = False,
) -> None:
    """Read the file and the data, and say what would happen; nothing is trained, and only --fix writes something."""
    from foedus.app.experiment.execute import Builder
    from foedus.app.experiment.file import load
    from foedus.app.experiment.folder import folder_of
    from foedus.app.experiment.preview import about_data, describe, noise_doubts
    from foedus.base.engine import return_memory
    from foedus.data.doubts import doubts as doubts_of

    if fix:
        _fix(file)
    experiment = load(file)
    builder = Builder(experiment)
    several = len(experiment.cases) > 1
    console, first, data, results = console_of(), None, None, None
    try:
        for case in experiment.cases:
            if data is None:  # before the tables are let go of
                cohort, rules, kept_out = builder.prepare(case)
                results, data = doubts_of(kept_out.whole), about_data(cohort, rules)
                del cohort, kept_out
                return_memory()  # what the doubts took
            setup = builder.build(case, release=not several)
            first = first or setup
    except FoedusError:
        # something that looks wrong in the data may be the cause
        if print_doubts(console, looks_wrong(experiment) if results is None else results):
            console.print(f"'foedus check {file} --fix' writes the lines that are sure into the file.\n")
        raise
    assert first is not None
    assert data is not None
    assert results is not None
    results = [*results, *noise_doubts(first)]
    folder = folder_of(experiment, experiment.cases[0], None)
    try:
        state = folder.state()
    except FoedusError as error:
        state = f"is in the way: {error}"
    count = print_doubts(console, results)
    fits = "it can be run, but look at these first" if count else "everything fits"
    if any(doubt.sure for doubt in results):
        console.print(f"'foedus check {file} --fix' writes the lines that are sure into the file.\n", soft_wrap=True)
    console.print(f"{file}: {fits}. Nothing was trained{'' if fix else ', and nothing was written'}.\n", soft_wrap=True)
    if several:
        console.print(f"It asks for {len(experiment.cases)} runs; this is the first, {experiment.cases[0].name}.\n")
    console.print(describe(first, data, folder.path, state), soft_wrap=True)
    console.print(f"\nNext: foedus run {file}", soft_wrap=True)


def _fix(file: Path) -> None:
    """Write the remedies that are sure into an experiment file, after showing the difference."""
    from foedus.app.experiment.file import load
    from foedus.app.experiment.fix import fix
    from foedus.base.files import write_whole

    load(file)
    text, difference = fix(file)
    if not difference:
        typer.echo(f"{file}: there is nothing to mend without somebody's judgement.\n")
        return
    typer.echo(difference)
    write_whole(file, text.encode())
    typer.echo(f"\nWrote these lines into {file}.\n")


def looks_wrong(experiment: "Experiment") -> "list[Doubt]":
    """What looks wrong in the data of the first run; nothing where they cannot be read, which the caller says."""
    from foedus.app.experiment.fix import doubts_in

    try:
        return doubts_in(experiment.cases[0].settings, experiment.folder)
    except FoedusError:
        return []


def print_doubts(console: "Console", results: "list[Doubt]") -> int:
    """Print what looks wrong in the data, and return how many things do."""
    if results:
        number = "1 thing looks" if len(results) == 1 else f"{len(results)} things look"
        console.print(f"{number} wrong:", style="bold")
        for doubt in results:
            console.print(f"  {doubt}", soft_wrap=True)
        console.print()
    return len(results)


def evaluate(
    model: RunFolder,
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="[SITE=]FILE...", help="Tables of raw rows with the label, one a site.", show_default=False
        ),
    ],
    strict: Strict = False,
    separator: Separator = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Add noise that spends this much of each row; a private run's own total.", show_default=False
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of --epsilon.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the model of a run directory on new rows; the figures become part of the run and of its report."""
    import json

    from foedus.app.experiment.evaluate import evaluate_files

    evaluation, notes = evaluate_files(model, tables, separator, epsilon, delta, strict=strict)
    _print_notes(notes)
    typer.echo(json.dumps(evaluation.to_json()) if as_json else str(evaluation))
    if not as_json:
        typer.echo(f"\nKept in {model}; open {model / 'report.html'} in a browser.")


def frontier(
    file: File,
    caps: Annotated[
        str | None, typer.Option(help="The caps, as in 0.3,0.4,0.5; found when left out.", show_default=False)
    ] = None,
    constraint: Annotated[
        int | None,
        typer.Option(help="The number of the constraint to vary, where there are several.", show_default=False),
    ] = None,
    points: Annotated[int, typer.Option(help="How many caps, where none are given.", min=2, max=100)] = 8,
    out: Annotated[
        Path | None, typer.Option(help="The folder; runs/<name>-frontier when left out.", show_default=False)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show what a tighter cap costs: objective, misses and false alarms over a range of caps, in a picture."""
    from foedus.app.experiment.compare import table
    from foedus.app.experiment.file import load
    from foedus.app.experiment.frontier import trace, write
    from foedus.base.files import check_folder

    values = None if caps is None else _numbers(caps)
    screen = screen_for(quiet, as_json=False)
    experiment = load(file)
    folder = out or experiment.out.with_name(f"{experiment.out.name}-frontier")
    check_folder(folder)
    result = trace(experiment, screen, caps=values, term=constraint, points=points)
    paths = write(result, experiment, folder)
    if screen.mode == "live":
        screen.say(table(result.runs))
    for name, reason in result.failures.items():
        screen.say(f"{name} failed: {reason}")
    screen.say(f"Kept in {folder}: {', '.join(path.name for path in paths)}.")
    if not result.certified:
        raise typer.Exit(UNCERTIFIED)


def _numbers(text: str) -> list[float]:
    """The caps that --caps names."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise FoedusError(
            f"--caps must be numbers with commas between them, as in 0.3,0.4,0.5. Got {text!r}."
        ) from None
    if len(set(values)) < 2:
        raise FoedusError(f"--caps needs at least two different caps. Got {text!r}.")
    return values
