"""The report: one self-contained HTML file about one run, or about several on one problem."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from markupsafe import Markup

from foedus.app.report import charts, cohort, evidence, sections, sites, sweep, tradeoff, words
from foedus.app.report.charts import Chart
from foedus.app.report.render import piece, render
from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.base.quantities import count, number, size
from foedus.runtime.run import Run

Tile: TypeAlias = tuple[str, str, str]
"""A name, a figure and a remark."""

Section: TypeAlias = tuple[str, str, Markup]
"""A key for links, a title, and the content as HTML."""


def write(runs: Mapping[str, Run], path: Path, request: Json | None = None) -> Path:
    """Write the report of one run, or the comparison of several, as one HTML file.

    Args:
        runs: the runs by name.
        path: the file to write.
        request: what the user asked for: `title`, `words` (a sentence), `command`, `warnings` (a list), and any
            further names with their values, which the page shows unchanged. `data_differ` is true if the runs are
            about different data, which the runs themselves do not record.
    """
    if not runs:
        raise FoedusError("a report needs at least one run.")
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FoedusError(f"cannot make the folder {path.parent}: {error.strerror}.") from None
    write_whole(path, page(runs, request or {}).encode())
    return path


def asked_in(folder: Path) -> Json:
    """Return the request that a run folder records in asked.json or experiment.json, or an empty one."""
    for name, read_request in (("asked.json", dict), ("experiment.json", _of_experiment)):
        file = Path(folder) / name
        if not file.is_file():
            continue
        try:
            return read_request(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise FoedusError(f"{file} cannot be read: {error}.") from None
    return {}


def _of_experiment(record: Json) -> Json:
    """Translate the record of `foedus run` into a request."""
    rows, dropped_rows = record.get("sites", {}), record.get("dropped_rows") or {}
    request: Json = {"title": record.get("case") or record.get("name", "")}
    if "file" in record:
        request["command"] = f"foedus run {record['file']}"
    if rows:
        where = f"at {count(len(rows), 'site')}"
        all_counts = None not in rows.values()  # sites of a federation do not report how many rows they have
        request["Data"] = f"{count(sum(rows.values()), 'row')} {where}" if all_counts else where
    if record.get("features"):
        request["Features"] = words.join_names(list(map(str, record["features"])), 12)
    if dropped_rows:
        by_site = ", ".join(f"{number(count)} at {site}" for site, count in dropped_rows.items())
        request["warnings"] = [f"Rows with missing values were left out: {by_site}."]
    return request


def page(runs: Mapping[str, Run], request: Json, pulse: str | None = None) -> str:
    """Return the whole page; one with a `pulse` follows a running job."""
    alike = tradeoff.one_problem(runs) and not request.get("data_differ")
    page_charts = sections.charts_of(runs, alike)
    if sweep.has_repetitions(runs):
        title = str(request.get("title") or "Comparison of " + words.join_names(list(runs)))
        page_charts = sweep.curves(page_charts, runs)
        verdict, parts = _sweep(runs, request, page_charts, alike)
        tiles, warnings = [], [*sweep.warnings(runs), *map(str, request.get("warnings", ()))]
    elif len(runs) == 1:
        ((name, run),) = runs.items()
        title, verdict, tiles, warnings, parts = _one(name, run, request, page_charts)
    else:
        title = str(request.get("title") or "Comparison of " + words.join_names(list(runs)))
        verdict, parts = (_several if alike else _different)(runs, request, page_charts)
        tiles, warnings = [], _warnings(runs, request)
    return assemble(title, verdict, tiles=tiles, warnings=warnings, parts=parts, page_charts=page_charts, pulse=pulse)


def assemble(
    title: str,
    verdict: words.Verdict,
    *,
    kicker: str = "",
    tiles: Sequence[Tile] = (),
    warnings: Sequence[str] = (),
    parts: Sequence[Section] = (),
    page_charts: Sequence[Chart] = (),
    pulse: str | None = None,
) -> str:
    """Return a complete HTML document: header, verdict, tiles, warnings, and the sections that have content.

    Args:
        title: the title of the document.
        verdict: what its head says.
        kicker: the line above the verdict; the title where it is left out.
        tiles: figures below the verdict.
        warnings: what a careful reader should know.
        parts: the sections.
        page_charts: the charts, whose data the script reads.
        pulse: the text by which the page finds out whether there is a newer one; None for a page that stays.
    """
    return render(
        "page.html",
        title=title,
        verdict=verdict,
        kicker=kicker or title,
        tiles=tiles,
        warnings=warnings,
        parts=[part for part in parts if part[2]],
        series=[charts.data_of(chart) for chart in page_charts],
        pulse=pulse,
    )


def _one(
    name: str, run: Run, request: Json, page_charts: list[Chart]
) -> tuple[str, words.Verdict, list[Tile], list[str], list[Section]]:
    title = str(request.get("title") or name)
    verdict, present = evidence.head(run), sections.presence(run)
    warnings = [*words.warnings(run, None if present is None else present[1]), *map(str, request.get("warnings", ()))]
    tightest, silent = words.worst(run), run.certificate.silent
    tiles = evidence.tiles(run)
    if tightest is not None:
        at_the_cap = abs(tightest.slack) <= run.certificate.eps2
        where = f"slack at {tightest.site}" if not at_the_cap else tightest.site
        tiles.append(("Tightest in training", "at its cap" if at_the_cap else number(tightest.slack), where))
    worst_case = getattr(run, "worst_case", None)
    if worst_case is not None:
        tiles.append(("Worst case", number(worst_case.value), worst_case.optimality))
    tiles.append(
        ("Objective", "–" if silent else number(run.objective), "not measured" if silent else "lower is better")
    )
    if not tiles[1:] and not silent:
        tiles.append(words.gap_tile(run))
    progress = sections.traffic(run) + (Markup("") if worst_case is not None else sites.residuals(run))
    parts = [
        ("evidence", "New rows", evidence.section(run)),
        ("terms", "Constraints", sites.certificate(run)),
        ("caps", "Constraints under noise", sections.noisy_caps(run)),
        ("groups", "Subgroups", evidence.subgroups(run)),
        ("cohort", "Cohort", cohort.section(request)),
        ("asked", "Problem", sections.request_section([run], request)),
        ("model", "Coefficients", evidence.coefficients(run)),
        ("convergence", "Convergence", progress + sections.convergence(page_charts, [])),
        ("sites", "Participation", sections.who_took_part(run, present)),
        ("worst-case", "Worst case", sections.worst_case(run)),
        ("privacy", "Privacy", sections.ledger(run)),
        ("plan", "The plan", sections.plan(run)),
        ("settings", "Settings", sections.settings(run)),
        ("words", "Glossary", sections.glossary([run])),
    ]
    return title, verdict, tiles, warnings, parts


def _sweep(
    runs: Mapping[str, Run], request: Json, page_charts: list[Chart], alike: bool
) -> tuple[words.Verdict, list[Section]]:
    """Return verdict and sections of a page on settings that were run with several seeds."""
    data_differ = bool(request.get("data_differ"))
    cap_curves = [] if data_differ else tradeoff.curves(runs)
    names = [setting.name for setting in sweep.settings_of(runs)]
    parts = [
        ("summary", "Summary", sweep.summary_table(runs)),
        ("convergence", "Convergence", sections.convergence(page_charts, names)),
        ("tradeoff", "Trade-off", tradeoff.section(cap_curves)),
        ("asked", "Problem", sections.request_section(list(runs.values()), request)),
        ("runs", "Runs", piece("folded", f"Each of the {number(len(runs))} runs", sections.table_of_runs(runs))),
        ("terms", "Constraints by site", _details("Each constraint at each site", sites.dots(runs))),
        ("settings", "Settings", piece("folded", "What differs between the runs", sections.differences(runs))),
        ("words", "Glossary", sections.glossary(list(runs.values()))),
    ]
    return sweep.verdict(runs, alike, data_differ), parts


def _details(summary: str, content: Markup) -> Markup:
    return piece("folded", summary, content) if content else content


def _several(runs: Mapping[str, Run], request: Json, page_charts: list[Chart]) -> tuple[words.Verdict, list[Section]]:
    successes = {name: run for name, run in runs.items() if words.verdict(run).level == "good"}
    usable = {name: run for name, run in (successes or runs).items() if math.isfinite(run.objective)} or dict(runs)
    best = min(usable, key=lambda name: usable[name].objective)
    fewest = min(usable, key=lambda name: usable[name].traffic.up + usable[name].traffic.down)
    with_terms = any(run.certificate.rows or run.certificate.counts for run in runs.values())
    success = "is certified" if with_terms else "reached its stopping test"
    first = (
        f"{len(successes)} of {count(len(runs), 'run')} {'certified' if with_terms else 'reached their stopping test'}."
    )
    sentence = (
        f"The smallest objective among {'those' if successes else 'them'} is {number(runs[best].objective)}, by {best}"
    )
    least = size(runs[fewest].traffic.up + runs[fewest].traffic.down)
    if len({run.traffic for run in runs.values()}) == 1:
        sentence += "; all sent the same."
    else:
        sentence += (
            f", which also sent the least, {least}." if best == fewest else f"; {fewest} sent the least, {least}."
        )
    level = "good" if len(successes) == len(runs) else "fair" if successes else "bad"
    if not successes:
        first = f"None of the {len(runs)} runs {success}."
    verdict = words.Verdict(level, f"{best} does best" if successes else "No run succeeded", (first, sentence))
    parts = [
        ("asked", "Problem", sections.request_section(list(runs.values()), request)),
        ("runs", "Runs", sections.table_of_runs(runs)),
        *_beside(runs, page_charts),
    ]
    return verdict, parts


def _different(runs: Mapping[str, Run], request: Json, page_charts: list[Chart]) -> tuple[words.Verdict, list[Section]]:
    """Return verdict and sections of a page on runs of different problems, with a curve if only caps differ."""
    data_differ = bool(request.get("data_differ"))
    curves = [] if data_differ else tradeoff.curves(runs)
    parts = [
        ("tradeoff", "Trade-off", tradeoff.section(curves)),
        ("asked", "Problem", sections.request_section(list(runs.values()), request)),
        ("own", "Constraints of each run", tradeoff.own_terms(runs)),
        ("runs", "Runs", sections.table_of_runs(runs)),
        *_beside(runs, page_charts),
    ]
    return tradeoff.verdict(runs, curves, data_differ), parts


def _warnings(runs: Mapping[str, Run], request: Json) -> list[str]:
    warnings = words.group_names([(name, text) for name, run in runs.items() for text in words.warnings(run)])
    return [*(f"{name}: {text}" for name, text in warnings), *map(str, request.get("warnings", ()))]


def _beside(runs: Mapping[str, Run], page_charts: list[Chart]) -> list[Section]:
    """Return the last sections of every page on several runs."""
    return [
        ("terms", "Constraints by site", sites.dots(runs)),
        ("convergence", "Convergence", sections.convergence(page_charts, list(runs))),
        ("settings", "Settings", sections.differences(runs)),
        ("words", "Glossary", sections.glossary(list(runs.values()))),
    ]
