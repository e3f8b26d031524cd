"""A site's own page: its rows, the model on its data, what it has sent and spent; nothing of any other site."""

from pathlib import Path

from markupsafe import Markup

from foedus.app.report import html, words
from foedus.app.report.render import Cell, Column, Line, columns, piece, table
from foedus.base.files import Json
from foedus.base.quantities import count, number, size
from foedus.federation.gate import MessageLog
from foedus.federation.plan import AcceptedPlans
from foedus.federation.policy import SITE_FILE, SiteFile
from foedus.federation.site_ledger import SiteLedger
from foedus.federation.site_record import read_records
from foedus.sums.identity import name_in


def page(kit: Path, records: Path) -> str:
    """Return the page of the site whose kit this is, from what it has noted in `records`."""
    runs = read_records(records)
    messages = MessageLog(records / "messages.jsonl").read()
    ledger, policy = SiteLedger(records), SiteFile.read(kit / "local" / SITE_FILE).policy
    failures = [run for run in runs if any(not _is_kept(row, run["eps2"]) for row in run["rows"])]
    last = runs[0] if runs else None
    if last is None:
        verdict = words.Verdict("open", "No run has ended here yet", ("This page shows runs that measured a model.",))
    elif last in failures:
        verdict = words.Verdict("bad", "A constraint is violated here", (f"In run {last['run']}, at this site.",))
    else:
        what = "Every constraint holds here" if last["rows"] else "A model was measured here"
        verdict = words.Verdict("good", what, (f"In run {last['run']}, the last one, at this site.",))
    total = ledger.total(policy.max_delta)
    remark = f"in {count(len(ledger.lines), 'release')}, δ = {policy.max_delta:g}; runs without noise are not in it"
    tiles = [
        ("Runs", number(len(runs)), "that ended with a measurement"),
        ("Sent", size(sum(int(line["bytes"]) for line in messages)), f"in {count(len(messages), 'message')}"),
        ("Privacy spent", f"ε = {total:.3g}", remark),
    ]
    parts = [("plans", "Plans that were accepted here", _plans(AcceptedPlans(records).all()))]
    parts += [(f"run-{i}", f"Run {run['run']}", _run(run, messages)) for i, run in enumerate(runs)]
    name = kit.resolve().name
    return html.assemble(name, verdict, kicker=f"site {name}", tiles=tiles, parts=parts)


def _plans(plans: list[Json]) -> Markup:
    """What this site has agreed to, and how much each plan tells of its rows where no noise covers them."""
    rows: list[tuple[str, ...]] = []
    for plan in plans:
        limits = plan["limits"] or {}
        signed = name_in(plan["signed"]["certificate"]) if plan["signed"] else "nobody"
        figures = ("share", "least", "leverage")
        cells = ("–" if limits.get(name) is None else f"{limits[name]:.3g}" for name in figures)
        rows.append((plan["run"], plan["time"], signed, plan["plan"][:16], *cells))
    heads = ("Run", "Accepted", "Signed by", "Digest", "Share of numbers", "Fewest rows", "Largest leverage")
    return _table(heads, rows)


def _is_kept(row: Json, eps2: float) -> bool:
    excess = row["value"] - row["cap"]
    return (abs(excess) if row["kind"] == "==" else excess) <= eps2


def _run(run: Json, messages: list[Json]) -> Markup:
    rows = [
        (row["constraint"], f"{row['value']:.4f}", f"{row['cap']:.4g}", f"{row['multiplier']:.4g}",
         "holds" if _is_kept(row, run["eps2"]) else "violated")
        for row in run["rows"]
    ]  # fmt: skip
    terms = _table(("Constraint", "Value here", "Cap", "Multiplier", "Verdict"), rows)
    figures = [(name, f"{value:.4g}") for name, value in run.get("figures", {}).items()]
    if "objective" in run:
        figures.append(("objective on these rows", f"{run['objective']:.6g}"))
    sums: dict[str, list[int]] = {}
    for line in messages:
        if line["run"] == run["run"]:
            entry = sums.setdefault(str(line["purpose"]), [0, 0])
            entry[0] += 1
            entry[1] += int(line["bytes"])
    totals = [(purpose, number(times), size(total)) for purpose, (times, total) in sums.items()]
    about = f"{run.get('algorithm', 'A run')} over {run.get('sites', '?')} sites, {run['time']} UTC."
    return piece(
        "site_run",
        about,
        terms,
        _table(("Figure", "Value"), figures),
        _table(("Purpose", "Messages", "Bytes"), totals),
    )


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Markup:
    if not rows:
        return Markup("")
    lines = [Line(name, [*map(Cell, cells)]) for name, *cells in rows]
    return table([Column(heads[0], ""), *columns(*heads[1:], kind="t")], lines, "")
