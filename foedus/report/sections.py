"""The sections of the report, each a piece of HTML."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from foedus.report import charts, sites, words
from foedus.report.charts import Chart, Series
from foedus.report.privacy import NO_SEED, shown, simulated, spent, unmixed
from foedus.report.words import number, size
from foedus.run import Run
from foedus.runtime.participation import attendance, restored
from foedus.stacked import Stacked

# what a series of the history is called, and how it reads; in the order of the page
SERIES = {
    "objective": ("Objective", "what is made small"),
    "minibatch_objective": ("Objective on minibatches", "noisy: each site looks at a few examples"),
    "feasibility": ("Largest violation", "of a cap, at the worst site; 0 is at the bottom"),
    "worst_case": ("Worst-case loss", "what is made small: the loss after the worst shift allowed for"),
    "adversarial_objective": ("Loss at moved examples", "the objective, at points made worse on purpose"),
    "snapshot_loss": ("Loss of the drawn sites", "at a model on the way; noisy"),
    "stationarity": ("Distance from optimality", "0 where no small change helps"),
    "gradient": ("Distance from optimality", "squared gradient; stops below the line"),
    "primal": ("Disagreement", "how far the sites' models are from the server's"),
    "dual": ("Movement", "how far the last step has moved; near 0 at the end"),
    "residual": ("Distance from optimality", "of the present step; rises when a new one begins"),
}
COUNTED = {"phase", "asked", "answered", "bytes_up", "bytes_down"}
GLOSSARY = {
    "Objective": "the number that training makes small: the mean loss over the sites, plus penalties if there are any.",
    "Term, cap": "what was promised about each site, such as a loss of at most 0.2 on one kind of case.",
    "Slack": "the room left below a cap. A slack between −{eps2} and {eps2}, the certificate's tolerance, reads 'at "
    "its cap'; below −{eps2} the cap is broken there.",
    "Multiplier": "the price of a cap: by how much the objective would fall for each unit that the cap is raised. "
    "It is 0 where the cap costs nothing.",
    "Stationarity": "how far the model is from satisfying the conditions of optimality, as the largest entry of a "
    "gradient in which the caps count with their multipliers. 0 would be exact.",
    "Feasibility": "the largest violation over all terms and sites.",
    "Complementarity, distance": "whether the multipliers fit the terms: only a cap that is reached has a price.",
    "Certificate": "these figures measured after training, at the returned model and over all sites, by code that the "
    "training algorithm has no part in. They speak about the training data, not about future patients.",
    "Round": "one exchange of messages between the server and the sites.",
}


def asked_for(runs: Sequence[Run], asked: Mapping[str, Any]) -> str:
    """What was asked, in the asker's words and in those of the problem; what differs between runs is only named."""
    rows: list[tuple[str, str]] = []
    if asked.get("words"):
        rows.append(("In words", escape(str(asked["words"]))))

    def add(name: str, told: list[str]) -> None:
        rows.append((name, told[0] if len(set(told)) == 1 else "each run its own, listed below"))

    add("Make small", [escape(words.objective(run)) for run in runs])
    add("Keep", ["<br>".join(map(escape, words.terms(run))) or "nothing: no terms were set" for run in runs])
    add("Method", [escape(str(run.settings.get("algorithm", {}).get("name", "unknown"))) for run in runs])
    who = [run.settings.get("participation") for run in runs]
    if any(isinstance(one, Mapping) for one in who):
        add("Sites asked", [escape(_participation(one)) if isinstance(one, Mapping) else "" for one in who])
    privacy = [run.settings.get("privacy") for run in runs]
    if any(isinstance(one, Mapping) for one in privacy):
        add("Privacy", [escape(_flat(one)) if isinstance(one, Mapping) else "none" for one in privacy])
    known = {"title", "words", "command", "warnings", "data_differ"}
    rows += [(str(k), escape(_flat(v))) for k, v in asked.items() if k not in known]
    if asked.get("command"):
        rows.append(("Command", f"<code>{escape(str(asked['command']))}</code>"))
    return '<dl class="asked">' + "".join(f"<div><dt>{escape(a)}</dt><dd>{b}</dd></div>" for a, b in rows) + "</dl>"


def _participation(who: Mapping[str, Any]) -> str:
    lost = f"; {100 * who['dropout']:g} % of the replies are lost on purpose" if who.get("dropout") else ""
    if who.get("name") == "Schedule":
        return "by a plan that was given" + lost
    share = float(who.get("fraction", 1.0))
    every = f", each at least once in {who['every']} rounds" if "every" in who else ""
    return ("all in every round" if share == 1 else f"{100 * share:g} % in each round, drawn anew{every}") + lost


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_flat, value))
    return number(value) if type(value) in (int, float) else str(value)


def certificate(run: Run) -> str:
    """The certificate: its four figures, then every term at every site."""
    c = run.certificate
    if c.silent:
        return f"<p>{escape(words.unmeasured(run))}</p>"
    if not c.rows and getattr(run, "worst_case", None) is not None:
        return "<p>No terms were set, so there is nothing to hold each site to.</p>"
    if not c.rows:
        return (
            "<p>No terms were set, so there is nothing to hold each site to. At the returned model the largest entry "
            f"of the gradient over all sites is <b>{number(c.stationarity)}</b> (stationarity), measured after "
            "training.</p>"
        )
    figures = (
        ("stationarity", c.stationarity, c.eps1),
        ("feasibility", c.feasibility, c.eps2),
        ("complementarity", c.complementarity, c.eps2),
        ("distance", c.distance, c.eps2),
    )
    shown = "".join(
        f'<li class="{"met" if value <= eps else "broken"}"><b>{name}</b> {number(value)} '
        f"<small>{'within' if value <= eps else 'over'} {number(eps)}</small></li>"
        for name, value, eps in figures
    )
    return f'<ul class="figures">{shown}</ul>{sites.table(run)}'


def charts_of(runs: Mapping[str, Run], alike: bool = True) -> list[Chart]:
    """The charts of the runs' histories, in the order of the page; `alike`: the runs solve the same problem."""
    names = {name for run in runs.values() for name, values in run.history.items() if values.ndim == 1}
    known = [name for name in SERIES if name in names]
    others = sorted(
        n for n in names - COUNTED - set(SERIES) if any(_moves(run.history.get(n)) for run in runs.values())
    )
    made = []
    for key in [*known, *others]:
        series = []
        for i, (name, run) in enumerate(runs.items()):
            y = run.history.get(key)
            if y is None or not np.isfinite(np.asarray(y, dtype=float)).any():
                continue
            up, down = (
                np.asarray(run.history.get(k, np.zeros(len(y))), dtype=float) for k in ("bytes_up", "bytes_down")
            )
            series.append(Series(name, np.asarray(y, dtype=float), np.cumsum(up + down), i % 8))
        if series:
            title, said = SERIES.get(key, (key.replace("_", " "), "as the method reports it"))
            if any(_missed(run) for run in runs.values()) and key in ("objective", "gradient"):
                said += ", of the sites it heard from"
            if key == "objective" and alike and (flat := charts.above_least(series)) is not None:
                series, least = flat
                title, said = "Objective above its smallest", f"the smallest that was seen is {number(least)}"
            made.append(Chart(key, title, said, tuple(series), _limit(key, runs)))
    # of many runs each is drawn more coarsely, so that a page of a sweep can still be mailed
    points = max(100, min(charts.POINTS, charts.ALL_POINTS // max(1, sum(len(chart.series) for chart in made))))
    return [replace(chart, points=points) for chart in made]


def _missed(run: Run) -> bool:
    """Whether there were rounds that not every site answered."""
    answered = run.history.get("answered")
    return answered is not None and bool(np.any(answered < len(run.names)))


def _moves(values: np.ndarray | None) -> bool:
    return values is not None and values.dtype.kind in "fiu" and len(values) > 0 and bool(np.ptp(values) > 0)


def _limit(key: str, runs: Mapping[str, Run]) -> float | None:
    """The tolerance that a series is held against, where all runs have the same one."""
    if key == "feasibility":
        found = {run.certificate.eps2 for run in runs.values() if run.certificate.rows}
    elif key == "gradient":
        found = {run.settings.get("algorithm", {}).get("tol") for run in runs.values()}
    else:
        return None
    return float(next(iter(found))) if len(found) == 1 and isinstance(next(iter(found)), int | float) else None


def convergence(drawn: list[Chart], legend: list[str]) -> str:
    """The charts, over rounds and over bytes; the choice between them works without JavaScript."""
    if not drawn:
        return ""

    def grid(those: list[Chart]) -> str:
        return (
            '<div class="charts">'
            + "".join(charts.line_chart(c, by) for c in those for by in ("rounds", "bytes"))
            + "</div>"
        )

    buttons = "".join(
        f'<button type="button" data-toggle="{escape(name)}" aria-pressed="true"><i class="c{i % 8}"></i>'
        f"{escape(name)}</button>"
        for i, name in enumerate(legend)
    )
    known, others = ([c for c in drawn if (c.key in SERIES) is wanted] for wanted in (True, False))
    further = f"<details><summary>What else the method reports</summary>{grid(others)}</details>" if others else ""
    return (
        '<input type="radio" name="by" id="by-rounds" checked><input type="radio" name="by" id="by-bytes">'
        '<div class="tools"><span class="switch"><label for="by-rounds">by round</label><label for="by-bytes">by bytes '
        f'sent</label></span><span class="legend">{buttons}</span><span class="hint script">Drag across a chart to '
        f"zoom, double-click to go back.</span></div>{grid(known)}{further}"
    )


def presence(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Who was asked and who answered in each round, or None where it is not known site by site. (rounds, sites) each"""
    n, rounds = len(run.names), run.rounds
    asked, answered = run.history.get("asked"), run.history.get("answered")
    if asked is None or answered is None or not rounds:
        return None
    if np.all(asked == n) and np.all(answered == n):
        everyone = np.ones((rounds, n), dtype=bool)
        return everyone, everyone
    told = run.settings.get("participation")
    who = restored(dict(told)) if isinstance(told, Mapping) and "keyed_by" in told else None
    if who is None:
        return None
    assert isinstance(told, Mapping)
    names = tuple(run.names) if told["keyed_by"] == "names" else None
    uids = Stacked({"y": np.zeros((n, 1))}, names=names).uids()
    called, came = attendance(who, int(run.settings["seed"]), uids, rounds)
    # replies that were lost on a real network are not drawn from keys
    same = np.array_equal(called.sum(axis=1), asked) and np.array_equal(came.sum(axis=1), answered)
    return (called, came) if same else None


def who_took_part(run: Run, present: tuple[np.ndarray, np.ndarray] | None) -> str:
    """Who answered when: a sentence, and a picture where not everybody always did."""
    n = len(run.names)
    answered = run.history.get("answered")
    if answered is None or not len(answered):
        return ""
    if present is not None and present[1].all():
        who = f"All {n} sites" if n > 1 else "The one site"
        return f"<p>{who} answered in each of {words.count(run.rounds, 'round')}.</p>"
    text = f"<p>On average {number(float(np.mean(answered)))} of {n} sites answered a round; the fewest were "
    text += f"{number(int(np.min(answered)))}, the most {number(int(np.max(answered)))}.</p>"
    if present is None:
        return text + "<p>Which sites these were was not kept.</p>"
    return text + charts.attendance(run.names, *present)


def worst_case(run: Run) -> str:
    """What a robust method guards against: each site's loss at its worst distribution, and the weights that hurt."""
    found = getattr(run, "worst_case", None)
    if found is None:
        return ""
    text = (
        f"<p>If the data move as far as was allowed for, the loss is at most <b>{number(found.value)}</b>, measured at "
        "the returned model over all sites. Each site's own worst case is below, beside its mean loss on the data as "
        "they are, and the weight that the worst mixture of sites gives it.</p>"
    )
    if len(found.clients) > sites.MOST:
        return text
    return text + sites.bars(
        ("Site", "Worst case", "Worst case", "Mean loss", "Radius", "Weight"),
        [
            (name, float(c.value), (number(c.nominal), number(c.radius), number(float(found.q.get(name, 1.0)))))
            for name, c in found.clients.items()
        ],
    )


def _pairs(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested settings as dotted names."""
    if isinstance(value, Mapping) and value:
        return [pair for k, v in value.items() for pair in _pairs(v, f"{name}.{k}" if name else str(k))]
    if isinstance(value, list) and value and any(isinstance(v, Mapping) for v in value):
        return [pair for i, v in enumerate(value) for pair in _pairs(v, f"{name}[{i}]")]
    text = json.dumps(value, ensure_ascii=False, default=str)
    return [(name, text if len(text) <= 300 else text[:300] + " …")]


def _written(value: Any) -> str:
    """A setting as it is typed."""
    if isinstance(value, Mapping) and "name" in value:
        return f"fd.{value['name']}({', '.join(f'{k}={_written(v)}' for k, v in value.items() if k != 'name')})"
    return repr(value)


def call(run: Run) -> str:
    """The call of `solve` that repeats the run; with noise from a seed, but for the seed."""
    keys = ("max_rounds",) if simulated(run) else ("seed", "max_rounds")
    given = [f"{k}={run.settings[k]!r}" for k in keys if k in run.settings]
    who = run.settings.get("participation")
    if isinstance(who, Mapping) and (who.get("name") == "Schedule" or who.get("fraction") != 1 or who.get("dropout")):
        kept = ", ".join(f"{k}={v!r}" for k, v in who.items() if k in ("fraction", "dropout", "every"))
        given.append(f"participation=fd.{who['name']}({kept if who['name'] != 'Schedule' else '...'})")
    algorithm, noise = unmixed(run.settings.get("algorithm", {"name": "Algorithm"}))
    given += [f"privacy={_written(noise)}"] if noise is not None else []
    return f"run = fd.solve(problem, {_written(algorithm)}, {', '.join(given)})"


def settings(run: Run) -> str:
    """What the run was made with, and the call that repeats it."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in _pairs(shown(run))
    )
    repeats = (
        f"{NO_SEED} The call, without it:"
        if simulated(run)
        else "The same settings, data and seed give the same history on the same machine:"
    )
    return (
        f"<p>{escape(repeats)}</p>"
        f"<pre>{escape(call(run))}</pre><details><summary>All settings, as they were resolved</summary>"
        f'<table class="plain">{rows}</table></details>'
    )


def table_of_runs(runs: Mapping[str, Run]) -> str:
    """One row a run: how it ended, what it reached, and what that took."""
    heads = ["Run", "Verdict", "Objective", "Largest violation", "Stationarity", "Rounds", "Up", "Down", "Time"]
    private = any(getattr(run, "ledger", None) is not None for run in runs.values())
    loss = "ε, simulated" if any(map(simulated, runs.values())) else "ε"
    body = ""
    for i, (name, run) in enumerate(runs.items()):
        verdict, c = words.verdict(run), run.certificate
        badge = {"good": "met", "fair": "binding", "bad": "broken"}[verdict.level]
        cells = [
            (run.objective, "not measured" if c.silent else number(run.objective)),
            (c.feasibility, number(c.feasibility) if c.rows else "–"),
            (c.stationarity, "not measured" if c.silent else number(c.stationarity)),
            (run.rounds, number(run.rounds)),
            (run.traffic.up, size(run.traffic.up)),
            (run.traffic.down, size(run.traffic.down)),
            (run.seconds - run.compile_seconds, words.duration(run.seconds - run.compile_seconds)),
        ]
        if private:
            epsilon = spent(run)
            cells.append((math.inf if epsilon is None else epsilon, "–" if epsilon is None else number(epsilon)))
        shown = "".join(
            f'<td class="n" data-v="{float(value)!r}"><span class="mini">{escape(head)}</span>{escape(text)}</td>'
            for head, (value, text) in zip([*heads[2:], loss], cells, strict=False)
        )
        body += (
            f'<tr><th scope="row" data-v="{escape(name)}"><i class="c{i % 8}"></i>{escape(name)}</th>'
            f'<td class="v" data-v="{verdict.level}"><span class="badge {badge}">{escape(verdict.title)}</span></td>'
            f"{shown}</tr>"
        )
    kinds = {"Run": "", "Verdict": "v"}
    titles = "".join(
        f'<th scope="col" class="{kinds.get(h, "n")}">{h}</th>' for h in [*heads, *([loss] if private else [])]
    )
    ended = words.gathered([(name, run.reason) for name, run in runs.items()])
    reasons = "".join(f"<li><b>{escape(name)}</b>: {escape(text)}.</li>" for name, text in ended)
    return (
        f'<div class="scroll"><table class="sites sortable runs"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody>'
        f'</table></div><p class="note">Time is without compiling.</p><ul class="reasons">{reasons}</ul>'
    )


def differences(runs: Mapping[str, Run]) -> str:
    """The settings that are not the same in all runs."""
    flat = {name: dict(_pairs(shown(run))) for name, run in runs.items()}
    keys = list(dict.fromkeys(key for pairs in flat.values() for key in pairs))
    keys = [key for key in keys if len({flat[name].get(key, "–") for name in runs}) > 1]
    cells = [["", *runs], *([key, *(flat[name].get(key, "–") for name in runs)] for key in keys)]
    if len(runs) > 4:  # a row a run
        cells = [list(column) for column in zip(*cells, strict=True)]
    lines = ["".join(f'<th scope="col">{escape(cell)}</th>' for cell in cells[0])]
    lines += [
        f'<th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in others)
        for first, *others in cells[1:]
    ]
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f'<div class="scroll"><table class="plain">{rows}</table></div>' if keys else ""
    calls = "".join(f"<pre>{escape(call(run))}</pre>" for run in runs.values())
    return f"{table}<details><summary>The calls that repeat them</summary>{calls}</details>"


def glossary(runs: Sequence[Run]) -> str:
    """The words of the page, explained."""
    eps2 = " or ".join(number(eps) for eps in sorted({run.certificate.eps2 for run in runs}))
    told = {name: text.replace("{eps2}", eps2) for name, text in GLOSSARY.items()}
    rows = "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in told.items())
    return f'<dl class="asked">{rows}</dl>'
