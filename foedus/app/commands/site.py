"""Commands on a party's own machine: `foedus site request`, `audit`, `ledger` and more; `foedus party run`, `stop`."""

import math
from pathlib import Path
from typing import Annotated

import typer

from foedus.base.errors import FoedusError
from foedus.base.quantities import count, size

app = typer.Typer(help="What a site's administrator asks.", no_args_is_help=True)
party_app = typer.Typer(help="Start or stop the server or a site on its machine, from its kit.", no_args_is_help=True)

Kit = Annotated[Path, typer.Argument(help="The site's kit.")]
PartyKit = Annotated[Path, typer.Argument(help="The kit of the server or of the site.")]
Id = Annotated[str, typer.Argument(help="The request, as 'foedus site requests' shows it.", show_default=False)]


@app.command()
def request(kit: Kit = Path(".")) -> None:
    """Make this site's key, which stays in the kit, and the request for its certificate."""
    from foedus.federation.flare import certificates

    path, fingerprint = certificates.request(kit)
    typer.echo(f"{path}: send it to the coordinator. The key, {kit / certificates.KEY}, stays here.")
    typer.echo(f"Fingerprint: {fingerprint}. The coordinator must see the same.")


@app.command()
def install(
    certificate: Annotated[Path, typer.Argument(help="The certificate, SITE.crt.", show_default=False)],
    kit: Kit = Path("."),
) -> None:
    """Put the certificate that the coordinator has sent into the kit."""
    from foedus.federation.flare import certificates

    fingerprint = certificates.install(kit, certificate)
    typer.echo(f"The certificate is in {kit}; fingerprint: {fingerprint}. startup/start.sh starts the site.")


def _records(kit: Path) -> Path:
    """The folder in which a site keeps its own records."""
    from foedus.federation.names import RUNS

    folder = kit / RUNS
    if not folder.is_dir():
        raise FoedusError(f"{kit} is no kit that has taken part in a run: {RUNS} is missing.")
    return folder


@app.command()
def audit(
    kit: Kit = Path("."),
    summary: Annotated[
        bool, typer.Option("--summary", help="Sums by run and purpose instead of every message.")
    ] = False,
) -> None:
    """Print every message that this site has sent: when, for which run, what for, how many bytes."""
    from foedus.federation.gate import MessageLog

    lines = MessageLog(_records(kit) / "messages.jsonl").read()
    if summary:
        sums: dict[tuple[str, str], list[int]] = {}
        for line in lines:
            entry = sums.setdefault((str(line["run"]), str(line["purpose"])), [0, 0])
            entry[0] += 1
            entry[1] += int(line["bytes"])
        for (name, purpose), (messages, sent) in sums.items():
            typer.echo(f"run {name}  {purpose:8}  {count(messages, 'message'):>14}  {size(sent):>8}")
    else:
        for line in lines:
            number = "" if line["round"] is None else f" {line['round']}"
            what = f"{line['purpose']}{number}"
            typer.echo(f"{line['time']}  run {line['run']}  {what:14} {size(int(line['bytes'])):>8}  {line['code']}")
    typer.echo(f"{count(len(lines), 'message')}, {size(sum(int(line['bytes']) for line in lines))} in all.")


@app.command()
def ledger(
    kit: Kit = Path("."),
    every: Annotated[bool, typer.Option("--every", help="Every release instead of a line for each run.")] = False,
) -> None:
    """Show what this site has spent of its rows' privacy, on what, and what is left."""
    from foedus.federation.policy import SITE_FILE, SiteFile
    from foedus.federation.site_ledger import SiteLedger

    site_ledger = SiteLedger(_records(kit))
    policy = SiteFile.read(kit / "local" / SITE_FILE).policy
    delta = policy.max_delta
    if every:
        for line in site_ledger.lines:
            noise = (
                f"{line.kind} noise of scale {line.scale:.4g}, sensitivity {line.sensitivity:.4g} ({line.neighbours})"
            )
            typer.echo(f"{line.time}  run {line.run}  {line.what}: {noise}")
    for run, releases in site_ledger.runs().items():
        typer.echo(f"run {run}: {count(releases, 'release')}, epsilon {site_ledger.total(delta, run):.4g}")
    total, limit = site_ledger.total(delta), policy.max_epsilon_total
    rest = "there is no limit" if limit == math.inf else f"{max(0.0, limit - total):.4g} of {limit:g} is left"
    typer.echo(
        f"{count(len(site_ledger.lines), 'release')} in all, epsilon {total:.4g} at delta {delta:g} for replacing one "
        f"row; {rest}."
    )
    if not policy.limits_privacy:
        typer.echo("This site's policy does not ask for privacy: what runs without noise have sent is not in this sum.")


@app.command()
def report(
    kit: Kit = Path("."),
    out: Annotated[
        Path | None, typer.Option(help="The HTML file to write; KIT/foedus-runs/report.html when left out.")
    ] = None,
) -> None:
    """Write this site's own page: its terms, the final models on its rows, what it has sent and spent."""
    import os

    from foedus.app.report.site_page import page
    from foedus.base.files import write_whole

    records = _records(kit)
    path = out or records / "report.html"
    if path.is_dir() or not path.parent.is_dir():
        raise FoedusError(f"--out {path}: expected the name of a file in a folder that exists.")
    write_whole(path, page(kit, records).encode())
    os.chmod(path, 0o600)  # its figures are exact
    typer.echo(path)


@app.command()
def requests(kit: Kit = Path(".")) -> None:
    """Show the experiments that were put before this site's people, and what they decided."""
    from foedus.federation.approval import Approvals

    entries = Approvals(_records(kit)).all()
    for request in entries:
        typer.echo(f"{request.id}  {request.decision}  {request.time}")
        for line in request.summary:
            typer.echo(f"    {line}")
    waiting = sum(request.decision == "waiting" for request in entries)
    typer.echo(f"{count(len(entries), 'request')}, {waiting} waiting.")


@app.command()
def approve(kit: Kit, id: Id) -> None:
    """Let an experiment run here: the one in the request, to the letter."""
    _decide(kit, id, "approved")


@app.command()
def refuse(kit: Kit, id: Id) -> None:
    """Refuse an experiment: it does not run here."""
    _decide(kit, id, "refused")


def _decide(kit: Path, id: str, decision: str) -> None:
    """Write down the decision about a request."""
    from foedus.federation.approval import Approvals

    request = Approvals(_records(kit)).decide(id, decision)
    typer.echo(f"Request {request.id} of run {request.run} is {decision}.")


def doctor(
    place: Annotated[
        Path, typer.Argument(help="A kit, a site's home, or the plan of a run by courier.", show_default=False)
    ],
    seconds: Annotated[float, typer.Option(help="To wait for a connection.", min=0.1)] = 5.0,
) -> None:
    """Check a machine: versions, disk, clock, certificate, way to the server, data, policy; each with a remedy."""
    from foedus.app.doctor import BAD, examine

    checks = examine(place, seconds)
    for check in checks:
        typer.echo(str(check))
    bad = sum(check.level == BAD for check in checks)
    typer.echo(f"{len(checks)} checks, {bad} of them wrong." if bad else f"{len(checks)} checks, none of them wrong.")
    if bad:
        raise typer.Exit(1)


@party_app.command()
def tunnel(
    kit: Annotated[Path, typer.Argument(help="The kit of a site or of the coordinator.")],
    proxy: Annotated[str, typer.Option(help="The proxy: HOST:PORT, or http://USER:PASSWORD@HOST:PORT.")],
    port: Annotated[
        int | None, typer.Option(help="The server's port outside, 443 at most proxies; the kit's when left out.")
    ] = None,
) -> None:
    """Lead a party to its server through an HTTP proxy, where nothing else leads outside; in the foreground."""
    from foedus.app.doctor import server_of
    from foedus.federation.flare.tunnel import Proxy
    from foedus.federation.flare.tunnel import tunnel as lead

    server = server_of(kit)
    lead(server.host, server.port, Proxy.of(proxy), port, typer.echo)


@party_app.command()
def health(kit: PartyKit = Path(".")) -> None:
    """Say in one line whether a party runs, for containers: exit status 0 if it does, and 1 if not."""
    from foedus.federation.flare import party

    words, is_well = party.health(kit)
    typer.echo(words)
    if not is_well:
        raise typer.Exit(1)


@party_app.command()
def run(kit: PartyKit = Path(".")) -> None:
    """Run a party in the foreground until a SIGTERM, for systemd and containers; after a crash it is started again."""
    from foedus.federation.flare import party

    party.run(kit)


@party_app.command()
def start(kit: PartyKit = Path(".")) -> None:
    """Start a party in the background; startup/start.sh of a kit does the same."""
    from foedus.federation.flare import party

    typer.echo(f"Started (process {party.start(kit)}); {kit / party.LOG} is its log, 'foedus party stop' stops it.")


@party_app.command()
def stop(kit: PartyKit = Path(".")) -> None:
    """Stop a party and the processes of its jobs, without a question; startup/stop.sh of a kit does the same."""
    from foedus.federation.flare import party

    typer.echo("Stopped." if party.stop(kit) else "Nothing was running.")
