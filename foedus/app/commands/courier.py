"""Commands of a run whose messages people carry as files: `foedus courier plan`, `answer`, `next`, `watch`, `show`."""

import os
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foedus.app.commands.experiment import Accept, Quiet, require_certified, screen_for, tell_folder
from foedus.base.errors import FoedusError

if TYPE_CHECKING:
    from foedus.federation.courier.file import CourierFile
    from foedus.federation.courier.site import CourierSite

app = typer.Typer(
    help="A federation over files that people carry: no server, no port, no agent at a site.", no_args_is_help=True
)

LOG = "courier.log"  # of a site, in its home

PlanFolder = Annotated[Path, typer.Argument(help="The folder of the plan.", show_default=False)]
Files = Annotated[Path, typer.Argument(help="The folder with the files that have come.", show_default=False)]
Home = Annotated[
    Path | None,
    typer.Option(
        help="The site's own folder, where nobody else can read: key, policy, ledger; ~/foedus-site when left out.",
        show_default=False,
    ),
]
Site = Annotated[str | None, typer.Option(help="This site's name, where the folder has files for several.")]
Trust = Annotated[
    str | None,
    typer.Option(help="The fingerprint of the project, which the coordinator reads to you by telephone."),
]


def _asks(question: str, remedy: str) -> bool:
    """Ask the person at the terminal; where there is none, say in a sentence what to write instead."""
    if not sys.stdin.isatty():
        raise FoedusError(f"there is nobody to ask: {remedy}.")
    return typer.confirm(question, default=False)


@app.command()
def plan(
    experiment: Annotated[Path, typer.Argument(help="The experiment file (TOML), as 'foedus run' takes it.")],
    sites: Annotated[str, typer.Option(help="The sites, separated by commas.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The folder for the plan; it must be new.")] = Path("plan"),
    keys: Annotated[
        Path | None,
        typer.Option(help="An earlier plan of the same project, so that sites keep their certificates.", exists=False),
    ] = None,
) -> None:
    """Write a plan: what is asked, of whom, which columns, what leaves, how often at the most; and the first files."""
    from foedus.app.experiment.courier import make_plan, plan_lines

    names = tuple(name.strip() for name in sites.split(",") if name.strip())
    new = make_plan(experiment, names, out, None if keys is None else keys / "coordinator" / "keys")
    for line in plan_lines(new):
        typer.echo(line)
    typer.echo(f"Give each site the folder {out / 'site-NAME'}, and {out / 'plan.json'} to read.")
    typer.echo(f"Fingerprint of the project: {new.keys.fingerprint}. Read it to each site by telephone.")
    typer.echo(f"When files have come back into these folders: foedus courier next {out}")


@app.command(name="next")
def next_(
    plan: PlanFolder,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="SITE=FINGERPRINT, as the site reads it to you by telephone; once for each site."),
    ] = None,
    without: Annotated[
        str, typer.Option(help="Sites that are silent in this exchange, separated by commas: go on without them.")
    ] = "",
    also: Annotated[
        list[Path] | None, typer.Option("--in", help="A further folder to look for files in; may be repeated.")
    ] = None,
    accept_uncertified: Accept = False,
    quiet: Quiet = False,
) -> None:
    """Read what has come, say who is missing, and write the next files; or the result, with certificate and report."""
    from foedus.app.experiment.courier import RESULT, go_on

    screen = screen_for(quiet, False)
    fingerprints = dict(_fingerprint_of(one) for one in trust or ())
    silent = [name.strip() for name in without.split(",") if name.strip()]
    progress, run = go_on(plan, screen, fingerprints, silent, also or ())
    if progress.strangers and sys.stdin.isatty():
        for site, fingerprint in progress.strangers.items():
            screen.say(f"{site} has made a key with the fingerprint {fingerprint}.")
            if typer.confirm("Has the site read the same to you?", default=False):
                fingerprints[site] = fingerprint
        progress, run = go_on(plan, screen, fingerprints, silent, also or ())
    for line in dict.fromkeys(progress.lines):
        screen.say(line)
    for site, fingerprint in progress.strangers.items():
        screen.say(f"{site} has made a key with the fingerprint {fingerprint}; nothing of it is used yet.")
        screen.say(f'Where the site reads the same to you: foedus courier next {plan} --trust "{site}={fingerprint}"')
    for path in progress.written:
        screen.say(f"{path}: carry it to the site.")
    if progress.refused:
        raise FoedusError(f"the run cannot go on: {progress.refused.removesuffix('.')}.")
    if run is None:
        who = ", ".join(progress.missing)
        screen.say(f"Exchange {progress.exchange}: waiting for {who}." if who else "Nothing has come.")
        return
    screen.say(str(run))
    tell_folder(screen, plan / RESULT, run)
    if not accept_uncertified:
        require_certified({str(plan / RESULT): run})


def _fingerprint_of(text: str) -> tuple[str, str]:
    site, equals, fingerprint = text.partition("=")
    if not equals:
        raise FoedusError(f"--trust must be SITE=FINGERPRINT. Got {text!r} instead.")
    return site.strip(), _in_groups(fingerprint)


def _in_groups(fingerprint: str) -> str:
    """Return a fingerprint as foedus writes it, however a person has typed it."""
    digits = "".join(fingerprint.lower().replace(":", " ").split())
    return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))


@app.command()
def answer(
    files: Files,
    data: Annotated[
        Path | None,
        typer.Option(help="The site's table, the first time; later the site file in its home names it."),
    ] = None,
    home: Home = None,
    site: Site = None,
    trust: Trust = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: write what the policy allows.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Where to write the page about what would leave; HOME/leaving.html.")
    ] = None,
) -> None:
    """At a site: show what would leave, in words and as a page; ask; and write one file to carry back."""
    from foedus.app.report.leaving import lines
    from foedus.app.report.leaving import page as page_of
    from foedus.base.files import write_whole

    place = _home(home)
    one = _site_of(place, files, data, site)
    inbox = one.look(files, site, None if trust is None else _in_groups(trust))
    if inbox.stranger:
        typer.echo(f"The files in {files} are of a project that this site does not know yet.")
        typer.echo(f"Its fingerprint is {inbox.stranger}.")
        if not _asks("Has the coordinator read the same to you?", f'--trust "{inbox.stranger}" accepts the project'):
            raise FoedusError("nothing was answered: the project is not the one that you know.")
        inbox = one.look(files, site, inbox.stranger)
    for line in inbox.lines:
        typer.echo(line)
    if inbox.again is not None:
        typer.echo(f"{inbox.again}: written once more; it is the same file as before.")
    if inbox.question is None or inbox.path is None:
        typer.echo(_nothing(inbox.over, inbox.again is not None))
        return
    _write_site_file(one, inbox.question, data)
    preview = one.preview(inbox.question)
    for line in lines(preview):
        typer.echo(line)
    sheet = page or place / "leaving.html"
    write_whole(sheet, page_of(preview).encode(), private=True)
    typer.echo(f"The same as a page, for you alone: {sheet}")
    if preview.failures:
        raise FoedusError(f"nothing was written: {'; '.join(preview.failures)}; {place / LOG} says why.")
    what = "Write the file that tells the coordinator so?" if preview.refusals else "Write the file that lets it leave?"
    if not yes and not _asks(what, "--yes writes the file without a question"):
        typer.echo("Nothing was written.")
        return
    typer.echo(f"{one.answer(inbox.question, inbox.path.parent)}: carry it to the coordinator.")
    if preview.question.exchange == 1:
        typer.echo(f"Fingerprint of this site's key: {one.fingerprint}. Read it to the coordinator by telephone.")


def _nothing(over: str, again: bool) -> str:
    if over:
        return over[0].upper() + over[1:]
    return "Nothing else is to be answered." if again else "Nothing is to be answered."


def _home(home: Path | None) -> Path:
    return Path.home() / "foedus-site" if home is None else home


def _site_of(home: Path, files: Path, data: Path | None, site: str | None) -> "CourierSite":
    """Return the site whose home this is; the home lies where no other party reads it."""
    from foedus.federation.courier.site import CourierSite
    from foedus.federation.policy import SITE_FILE, SiteFile

    if files.is_dir() and home.absolute().is_relative_to(files.absolute()):
        raise FoedusError(f"--home {home} lies in {files}, which others read; choose a folder of the site's own.")
    settings = home / "local" / SITE_FILE
    if data is None and not settings.is_file():
        raise FoedusError(f"{settings} is missing; name the site's table with --data, and it is made.")
    if data is not None and not data.is_file():
        raise FoedusError(f"--data {data}: there is no such file.")
    if data is not None and settings.is_file():
        source = SiteFile.read(settings).data
        if source is not None and source.file != data.absolute():
            raise FoedusError(f"--data {data}: {settings} names {source.file}; leave --data out, or change it there.")
    return CourierSite(home, partial(_log, home / LOG))


def _log(path: Path, line: str) -> None:
    """Append a line to the site's own log, which nobody else reads: it may speak of the data."""
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())} {line}\n")


def _write_site_file(one: "CourierSite", question: "CourierFile", data: Path | None) -> None:
    """Make the site file of a home that has none: it asks a person before anything leaves."""
    from foedus.app.experiment.courier import first_roles
    from foedus.federation.flare.kits import write_site_file
    from foedus.federation.policy import SITE_FILE

    settings = one.home / "local" / SITE_FILE
    if settings.is_file() or data is None:
        return
    settings.parent.mkdir(parents=True, exist_ok=True)
    write_site_file(one.home, data.absolute(), {"approve": "ask"}, first_roles(question.messages[0].header))
    typer.echo(f"{settings} was made: the site's policy, which you may change. It asks before anything leaves.")


@app.command()
def watch(
    files: Files,
    home: Home = None,
    site: Site = None,
    every: Annotated[float, typer.Option(help="Seconds between looks.", min=0.1)] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
) -> None:
    """At a site: answer by itself what comes into a folder, where the policy says approve = "auto"."""
    place = _home(home)
    one = _site_of(place, files, None, site)
    if one.site_file.policy.approve != "auto":
        raise FoedusError(
            f'the policy in {place / "local" / "foedus.toml"} says approve = "ask", so a person answers: '
            f"foedus courier answer {files}"
        )
    history: set[str] = set()
    while True:
        _answer_all(one, files, site, history)
        if once:
            return
        time.sleep(every)


def _answer_all(one: "CourierSite", files: Path, site: str | None, history: set[str]) -> None:
    """Answer what has come, and say each sentence once."""

    def say(lines: Iterable[str]) -> None:
        for line in lines:
            if line not in history:
                history.add(line)
                typer.echo(line)

    while True:
        inbox = one.look(files, site)
        say(inbox.lines)
        if inbox.stranger:
            say([f"{files} has files of a project that this site does not know; 'foedus courier answer' asks."])
        if inbox.again is not None:
            typer.echo(f"{inbox.again}: written once more.")
        say([f"{inbox.over[0].upper()}{inbox.over[1:]}"] if inbox.over else [])
        if inbox.question is None or inbox.path is None:
            return
        name = f"exchange {inbox.question.exchange} of run {inbox.question.run}"
        try:
            typer.echo(f"{one.answer(inbox.question, inbox.path.parent)}: the answer to {name}.")
        except FoedusError as error:
            say([f"{name}: {error}"])
            return


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A file of a run, from whoever it is.", show_default=False)],
) -> None:
    """Print what is in a file: who has signed it for whom, which messages, which arrays."""
    from foedus.app.report.leaving import file_lines
    from foedus.federation.courier.file import CourierFile

    try:
        content = file.read_bytes()
    except OSError as error:
        raise FoedusError(f"cannot read {file}: {error.strerror}.") from None
    try:
        one = CourierFile.read(content)
    except FoedusError as error:
        raise FoedusError(f"{file}: {error}") from None
    for line in file_lines(one):
        typer.echo(line)
