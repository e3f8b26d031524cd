"""The report: one self-contained HTML file about one run, or about several on one problem."""

import json
import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from foedus.errors import FoedusError
from foedus.files import write_whole
from foedus.report import charts, privacy, sections, sites, tradeoff, words
from foedus.report.charts import Chart
from foedus.report.words import number, size
from foedus.run import Run

SEAL = {
    "going": '<path d="M22 32v.01M32 32v.01M42 32v.01"/>',
    "good": '<path d="M20 33.5l8 8 16-18"/>',
    "fair": '<path d="M32 20v16M32 43.5v.5"/>',
    "bad": '<path d="M23 23l18 18M41 23L23 41"/>',
    "open": '<path d="M19 25h26M32 20v24M25 44h14M19 25l-4 9h8zM45 25l-4 9h8z"/>',
}


def write(runs: Mapping[str, Run], path: Path, asked: Mapping[str, Any] | None = None) -> Path:
    """Write the report of one run, or the comparison of several, as one HTML file.

    Args:
        runs: the runs by name.
        path: the file to write.
        asked: what was asked, in the asker's words: `title`, `words` (a sentence), `command`, `warnings` (a list), and
            any further names with their values, which are shown as they are. `data_differ` is true where the runs are
            about different data, which the runs themselves do not tell.
    """
    if not runs:
        raise FoedusError("a report needs at least one run.")
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FoedusError(f"cannot make the folder {path.parent}: {error.strerror}.") from None
    write_whole(path, page(runs, asked or {}).encode())
    return path


def asked_in(folder: Path) -> dict[str, Any]:
    """What was asked, as a run folder keeps it in asked.json or experiment.json; empty where it does not."""
    for name, understood in (("asked.json", dict), ("experiment.json", _of_experiment)):
        file = Path(folder) / name
        if not file.is_file():
            continue
        try:
            return understood(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise FoedusError(f"{file} cannot be read: {error}.") from None
    return {}


def _of_experiment(kept: dict[str, Any]) -> dict[str, Any]:
    """What `foedus run` wrote down, in the words of a report."""
    rows, dropped = kept.get("sites", {}), kept.get("dropped_rows") or {}
    told: dict[str, Any] = {"title": kept.get("case") or kept.get("name", "")}
    if "file" in kept:
        told["command"] = f"foedus run {kept['file']}"
    if rows:
        where = f"at {words.count(len(rows), 'site')}"
        known = None not in rows.values()  # sites of a federation do not tell how many rows they have
        told["Data"] = f"{words.count(sum(rows.values()), 'row')} {where}" if known else where
    if kept.get("features"):
        told["Features"] = words.listed(list(map(str, kept["features"])), 12)
    if dropped:
        left = ", ".join(f"{number(count)} at {site}" for site, count in dropped.items())
        told["warnings"] = [f"Rows with missing values were left out: {left}."]
    return told


def page(runs: Mapping[str, Run], asked: Mapping[str, Any], live: str = "") -> str:
    """The whole page; `live` is put into its head by the page that follows a running job."""
    alike = tradeoff.one_problem(runs) and not asked.get("data_differ")
    drawn = sections.charts_of(runs, alike)
    if len(runs) == 1:
        ((name, run),) = runs.items()
        title, content = _one(name, run, asked, drawn)
    else:
        title, content = (_several if alike else _different)(runs, asked, drawn)
    return assemble(title, content, drawn, live)


def assemble(title: str, content: str, drawn: list[Chart], live: str = "") -> str:
    """A complete HTML document around the content: style, script and the data of the charts are inside."""
    package = files("foedus.report")
    style, script = (package.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    data = json.dumps([charts.data_of(chart) for chart in drawn], separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)} – foedus</title>{live}<style>{style}</style></head>\n<body>{content}"
        f'<script type="application/json" id="series">{data}</script><script>{script}</script></body></html>\n'
    )


def _one(name: str, run: Run, asked: Mapping[str, Any], drawn: list[Chart]) -> tuple[str, str]:
    title = str(asked.get("title") or name)
    verdict, present = words.verdict(run), sections.presence(run)
    said = [*words.warnings(run, None if present is None else present[1]), *map(str, asked.get("warnings", ()))]
    tightest = words.worst(run)
    silent = run.certificate.silent
    tiles = [("Objective", "–" if silent else number(run.objective), "not measured" if silent else "lower is better")]
    if tightest is not None:
        tiles.append(("Tightest term", number(tightest.slack), f"slack at {tightest.site}"))
    shifted = getattr(run, "worst_case", None)
    tiles += [
        ("Worst case", number(shifted.value), "loss after the worst shift allowed for")
        if shifted is not None
        else ("Distance from optimality", "–", "not measured")
        if silent
        else ("Distance from optimality", number(run.certificate.stationarity), "stationarity; 0 is exact"),
        ("Rounds", number(run.rounds), f"of messages with {words.count(len(run.names), 'site')}"),
        ("Sent", size(run.traffic.up + run.traffic.down), f"{size(run.traffic.up)} up, {size(run.traffic.down)} down"),
        ("Time", words.duration(run.seconds), f"{words.duration(run.compile_seconds)} of it compiling"),
    ]
    parts = [
        ("asked", "What was asked", sections.asked_for([run], asked)),
        ("terms", "The terms, site by site", sections.certificate(run)),
        ("convergence", "How it got there", sections.convergence(drawn, [])),
        ("sites", "Who took part", sections.who_took_part(run, present)),
        ("worst-case", "The worst case", sections.worst_case(run)),
        ("privacy", "Privacy", privacy.ledger(run)),
        ("settings", "Settings and versions", sections.settings(run)),
        ("words", "How to read this page", sections.glossary([run])),
    ]
    return title, body(title, verdict, tiles, said, parts)


def _several(runs: Mapping[str, Run], asked: Mapping[str, Any], drawn: list[Chart]) -> tuple[str, str]:
    title = str(asked.get("title") or "Comparison of " + words.listed(list(runs)))
    reached = {name: run for name, run in runs.items() if words.verdict(run).level == "good"}
    usable = {name: run for name, run in (reached or runs).items() if math.isfinite(run.objective)} or dict(runs)
    best = min(usable, key=lambda name: usable[name].objective)
    fewest = min(usable, key=lambda name: usable[name].traffic.up + usable[name].traffic.down)
    constrained = any(run.certificate.rows for run in runs.values())
    ended = "is certified" if constrained else "reached its stopping test"
    first = f"{len(reached)} of {len(runs)} runs {'certified' if constrained else 'reached their stopping test'}."
    sentence = (
        f"The smallest objective among {'those' if reached else 'them'} is {number(runs[best].objective)}, by {best}"
    )
    least = size(runs[fewest].traffic.up + runs[fewest].traffic.down)
    if len({run.traffic for run in runs.values()}) == 1:
        sentence += "; all sent the same."
    else:
        sentence += (
            f", which also sent the least, {least}." if best == fewest else f"; {fewest} sent the least, {least}."
        )
    level = "good" if len(reached) == len(runs) else "fair" if reached else "bad"
    if not reached:
        first = f"None of the {len(runs)} runs {ended}."
    verdict = words.Verdict(level, f"{best} does best" if reached else "No run got there", (first, sentence))
    parts = [
        ("asked", "What was asked", sections.asked_for(list(runs.values()), asked)),
        ("runs", "The runs", sections.table_of_runs(runs)),
        *_beside(runs, drawn),
    ]
    return title, body(title, verdict, [], _warned(runs, asked), parts)


def _different(runs: Mapping[str, Run], asked: Mapping[str, Any], drawn: list[Chart]) -> tuple[str, str]:
    """Runs of different problems: what each was asked and what it reached, with a curve where caps alone differ."""
    title = str(asked.get("title") or "Comparison of " + words.listed(list(runs)))
    data_differ = bool(asked.get("data_differ"))
    found = [] if data_differ else tradeoff.curves(runs)
    parts = [
        ("tradeoff", "What a tighter cap costs", tradeoff.section(found)),
        ("asked", "What was asked", sections.asked_for(list(runs.values()), asked)),
        ("own", "Each run's own terms", tradeoff.own_terms(runs)),
        ("runs", "The runs", sections.table_of_runs(runs)),
        *_beside(runs, drawn),
    ]
    return title, body(title, tradeoff.verdict(runs, found, data_differ), [], _warned(runs, asked), parts)


def _warned(runs: Mapping[str, Run], asked: Mapping[str, Any]) -> list[str]:
    warned = words.gathered([(name, text) for name, run in runs.items() for text in words.warnings(run)])
    return [*(f"{name}: {text}" for name, text in warned), *map(str, asked.get("warnings", ()))]


def _beside(runs: Mapping[str, Run], drawn: list[Chart]) -> list[tuple[str, str, str]]:
    """The sections of runs side by side that come last on every page of several."""
    return [
        ("terms", "The terms, site by site", sites.dots(runs)),
        ("convergence", "How they got there", sections.convergence(drawn, list(runs))),
        ("settings", "Settings that differ", sections.differences(runs)),
        ("words", "How to read this page", sections.glossary(list(runs.values()))),
    ]


def body(title: str, verdict: words.Verdict, tiles: list, said: list[str], parts: list[tuple[str, str, str]]) -> str:
    """Header, verdict, tiles (name, figure, remark), warnings, and those sections (key, title, HTML) not empty."""
    parts = [part for part in parts if part[2]]
    links = "".join(f'<a href="#{key}">{escape(head)}</a>' for key, head, _ in parts)
    shown = "".join(
        f"<div><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>" for a, b, c in tiles
    )
    advice = "".join(f"<li>{escape(text)}</li>" for text in verdict.advice)
    alarm = "".join(f"<li>{escape(text)}</li>" for text in said)
    sections = "".join(
        f'<section id="{key}"><h2>{escape(head)}</h2>{content}</section>' for key, head, content in parts
    )
    return (
        f'<header class="top"><a class="brand" href="#">foedus</a><nav>{links}</nav></header><main>'
        f'<section class="hero {verdict.level}"><svg class="seal" viewBox="0 0 64 64" aria-hidden="true">'
        f'<circle class="teeth" cx="32" cy="32" r="29"/><circle cx="32" cy="32" r="23"/>{SEAL[verdict.level]}</svg>'
        f'<div><p class="kicker">{escape(title)}</p><h1>{escape(verdict.title)}</h1>'
        + "".join(f"<p>{escape(text)}</p>" for text in verdict.sentences)
        + (f"<h3>What to try</h3><ul>{advice}</ul>" if advice else "")
        + "</div></section>"
        + (f'<dl class="tiles">{shown}</dl>' if shown else "")
        + (f'<aside class="warnings"><h2>Keep in mind</h2><ul>{alarm}</ul></aside>' if alarm else "")
        + f"{sections}</main><footer>Made by foedus. This file is complete in itself and asks nothing of the network."
        "</footer>"
    )
