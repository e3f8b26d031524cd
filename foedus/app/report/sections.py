"""The sections of the report; each function returns a piece of HTML."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

import numpy as np

from foedus.app.report import charts, sites, words
from foedus.app.report.charts import Chart, ChartSeries
from foedus.app.report.privacy import NO_SEED, noise_from_seed, public_settings, solve_arguments, total_epsilon
from foedus.app.report.words import number, size
from foedus.base.files import Json
from foedus.problem.stacked import Stacked
from foedus.protocol.participation import attendance, participation_from
from foedus.runtime.run import Run
from foedus.statistics.evaluate import figure_text
from foedus.statistics.figures import TITLES

# the title of a series of the history, and a remark on it; in the order of the page
SERIES = {
    "objective": ("Objective", "the number that training minimises"),
    "minibatch_objective": ("Objective on minibatches", "noisy, as each site uses a few examples"),
    "feasibility": ("Largest violation", "of a cap, at the worst site; 0 is at the bottom"),
    "worst_case": ("Worst-case loss", "the number that training minimises: the loss after the worst shift allowed for"),
    "adversarial_objective": ("Loss at moved examples", "the objective, at points made worse on purpose"),
    "snapshot_loss": ("Loss of the drawn sites", "at a model on the way; noisy"),
    "gap": ("Still to be had", "the solver's own estimate of how far the objective is above the best possible one"),
    "stationarity": ("Distance from optimality", "0 where no small change helps"),
    "barrier": ("Barrier", "the weight that keeps the solver inside the terms; it falls to 0"),
    "step": ("Step length", "1 is a whole Newton step; 0 tests a point without moving"),
    "gradient": ("Distance from optimality", "squared gradient; stops below the line"),
    "primal": ("Disagreement", "how far the sites' models are from the server's"),
    "dual": ("Movement", "the length of the last step; near 0 at the end"),
    "residual": ("Distance from optimality", "within the present outer step; rises when a new one begins"),
}
COMPARED = ("accuracy", "miss_rate", "false_alarms", "auc", "r2", "mae")  # figures on new rows in tables of runs
# series of the history that count things; other sections show them
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


def request_section(runs: Sequence[Run], request: Json) -> str:
    """Return what the user asked for, in words and as a problem; what differs between runs is only named."""
    rows: list[tuple[str, str]] = []
    if request.get("words"):
        rows.append(("In words", escape(str(request["words"]))))

    def add(name: str, answers: list[str]) -> None:
        rows.append((name, answers[0] if len(set(answers)) == 1 else "each run its own, listed below"))

    add("Make small", [escape(words.objective(run)) for run in runs])
    add("Keep", ["<br>".join(map(escape, words.terms(run))) or "nothing: no terms were set" for run in runs])
    add("Method", [escape(str(run.settings.get("algorithm", {}).get("name", "unknown"))) for run in runs])
    who = [run.settings.get("participation") for run in runs]
    if any(isinstance(one, Mapping) for one in who):
        add("Sites asked", [escape(_participation(dict(one))) if isinstance(one, Mapping) else "" for one in who])
    privacy = [run.settings.get("privacy") for run in runs]
    if any(isinstance(one, Mapping) for one in privacy):
        add("Privacy", [escape(_flat(one)) if isinstance(one, Mapping) else "none" for one in privacy])
    own_rows = {"title", "words", "command", "warnings", "data_differ"}
    rows += [(str(k), escape(_flat(v))) for k, v in request.items() if k not in own_rows]
    if request.get("command"):
        rows.append(("Command", f"<code>{escape(str(request['command']))}</code>"))
    return '<dl class="asked">' + "".join(f"<div><dt>{escape(a)}</dt><dd>{b}</dd></div>" for a, b in rows) + "</dl>"


def _participation(who: Json) -> str:
    losses = f"; {100 * who['dropout']:g} % of the replies are lost on purpose" if who.get("dropout") else ""
    if who.get("name") == "Schedule":
        return "by a plan that was given" + losses
    share = float(who.get("fraction", 1.0))
    every = f", each at least once in {who['every']} rounds" if "every" in who else ""
    return ("all in every round" if share == 1 else f"{100 * share:g} % in each round, drawn anew{every}") + losses


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_flat, value))
    # not isinstance: a bool is an int too
    return number(value) if type(value) is int or type(value) is float else str(value)


def certificate(run: Run) -> str:
    """Return the certificate: its four figures, then every term at every site."""
    c = run.certificate
    if c.silent:
        return f"<p>{escape(words.not_measured(run))}</p>"
    counts = "".join(f"<p>{escape(text)}</p>" for text in words.counts_of_terms(run))
    if counts and not c.rows:
        return counts
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
    items = "".join(
        f'<li class="{"met" if value <= eps else "broken"}"><b>{name}</b> {number(value)} '
        f"<small>{'within' if value <= eps else 'over'} {number(eps)}</small></li>"
        for name, value, eps in figures
    )
    return f'{counts}<ul class="figures">{items}</ul>{sites.table(run)}'


def charts_of(runs: Mapping[str, Run], alike: bool = True) -> list[Chart]:
    """Return the charts of the runs' histories in the order of the page; `alike` if all runs solve one problem."""
    names = {name for run in runs.values() for name, values in run.history.items() if values.ndim == 1}
    first = [name for name in SERIES if name in names]
    others = sorted(
        n for n in names - COUNTED - set(SERIES) if any(_moves(run.history.get(n)) for run in runs.values())
    )
    page_charts = []
    for key in [*first, *others]:
        series = []
        for i, (name, run) in enumerate(runs.items()):
            y = run.history.get(key)
            if y is None or not np.isfinite(np.asarray(y, dtype=float)).any():
                continue
            up, down = (
                np.asarray(run.history.get(k, np.zeros(len(y))), dtype=float) for k in ("bytes_up", "bytes_down")
            )
            series.append(ChartSeries(name, np.asarray(y, dtype=float), np.cumsum(up + down), i % 8))
        if series:
            title, remark = SERIES.get(key, (key.replace("_", " "), "as the method reports it"))
            if any(_has_absences(run) for run in runs.values()) and key in ("objective", "gradient"):
                remark += ", of the sites it heard from"
            if key == "objective" and alike and (flat := charts.above_least(series)) is not None:
                series, least = flat
                title, remark = "Objective above its smallest", f"the smallest that was seen is {number(least)}"
            page_charts.append(Chart(key, title, remark, tuple(series), _limit(key, runs)))
    # of many runs each is drawn more coarsely, so that a page of a sweep can still be mailed
    points = max(100, min(charts.POINTS, charts.ALL_POINTS // max(1, sum(len(chart.series) for chart in page_charts))))
    return [replace(chart, points=points) for chart in page_charts]


def _has_absences(run: Run) -> bool:
    """Whether there are rounds that not every site answered."""
    replies = run.history.get("answered")
    return replies is not None and bool(np.any(replies < len(run.names)))


def _moves(values: np.ndarray | None) -> bool:
    return values is not None and values.dtype.kind in "fiu" and len(values) > 0 and bool(np.ptp(values) > 0)


def _limit(key: str, runs: Mapping[str, Run]) -> float | None:
    """Return the tolerance that a series is compared with, if all runs have the same one."""
    if key == "feasibility":
        tolerances = {run.certificate.eps2 for run in runs.values() if run.certificate.rows}
    elif key == "gradient":
        tolerances = {run.settings.get("algorithm", {}).get("tol") for run in runs.values()}
    else:
        return None
    first = next(iter(tolerances), None)
    return float(first) if len(tolerances) == 1 and isinstance(first, int | float) else None


def convergence(page_charts: list[Chart], legend: list[str]) -> str:
    """Return the charts, over rounds and over bytes; the switch between them works without JavaScript."""
    if not page_charts:
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
    usual, others = ([c for c in page_charts if (c.key in SERIES) is is_usual] for is_usual in (True, False))
    further = f"<details><summary>What else the method reports</summary>{grid(others)}</details>" if others else ""
    return (
        '<input type="radio" name="by" id="by-rounds" checked><input type="radio" name="by" id="by-bytes">'
        '<div class="tools"><span class="switch"><label for="by-rounds">by round</label><label for="by-bytes">by bytes '
        f'sent</label></span><span class="legend">{buttons}</span><span class="hint script">Drag across a chart to '
        f"zoom, double-click to go back.</span></div>{grid(usual)}{further}"
    )


def presence(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Return who was asked and who answered, each (rounds, sites), or None if only their numbers are known."""
    n, rounds = len(run.names), run.rounds
    requests, replies = run.history.get("asked"), run.history.get("answered")
    if requests is None or replies is None or not rounds:
        return None
    if np.all(requests == n) and np.all(replies == n):
        everyone = np.ones((rounds, n), dtype=bool)
        return everyone, everyone
    participation = run.settings.get("participation")
    if not isinstance(participation, Mapping) or "keyed_by" not in participation:
        return None
    who = participation_from(dict(participation))
    if who is None:
        return None
    names = tuple(run.names) if participation["keyed_by"] == "names" else None
    uids = Stacked({"y": np.zeros((n, 1))}, names=names).uids()
    who_was_asked, who_answered = attendance(who, int(run.settings["seed"]), uids, rounds)
    # A run records only numbers of sites. The seed tells which sites these were, unless a real network lost replies.
    same = np.array_equal(who_was_asked.sum(axis=1), requests) and np.array_equal(who_answered.sum(axis=1), replies)
    return (who_was_asked, who_answered) if same else None


def who_took_part(run: Run, present: tuple[np.ndarray, np.ndarray] | None) -> str:
    """Return who answered when: a sentence, and a picture unless all sites answered every round."""
    n = len(run.names)
    replies = run.history.get("answered")
    if replies is None or not len(replies):
        return ""
    if present is not None and present[1].all():
        who = f"All {n} sites" if n > 1 else "The one site"
        return f"<p>{who} answered in each of {words.count(run.rounds, 'round')}.</p>"
    text = f"<p>On average {number(float(np.mean(replies)))} of {n} sites answered a round; the fewest were "
    text += f"{number(int(np.min(replies)))}, the most {number(int(np.max(replies)))}.</p>"
    if present is None:
        return text + "<p>The run does not record which sites these were.</p>"
    return text + charts.attendance(run.names, *present)


def worst_case(run: Run) -> str:
    """Return the worst case of a robust method: each site's loss at its worst distribution, and the worst weights."""
    stress = getattr(run, "worst_case", None)
    if stress is None:
        return ""
    text = (
        f"<p>If the data move as far as was allowed for, the loss is at most <b>{number(stress.value)}</b>, measured "
        f"at the returned model over all sites: {escape(stress.optimality)}. Each site's own worst case is below, "
        "beside its mean loss on the data as they are, and the weight that the worst mixture of sites gives it.</p>"
    )
    if len(stress.clients) > sites.MOST:
        return text
    return text + sites.bars(
        ("Site", "Worst case", "Worst case", "Mean loss", "Radius", "Weight"),
        [
            (name, float(c.value), (number(c.nominal), number(c.radius), number(float(stress.q.get(name, 1.0)))))
            for name, c in stress.clients.items()
        ],
    )


def _pairs(value: object, name: str = "") -> list[tuple[str, str]]:
    """Return nested settings as pairs of a dotted name and a value."""
    if isinstance(value, Mapping) and value:
        return [pair for k, v in value.items() for pair in _pairs(v, f"{name}.{k}" if name else str(k))]
    if isinstance(value, list) and value and any(isinstance(v, Mapping) for v in value):
        return [pair for i, v in enumerate(value) for pair in _pairs(v, f"{name}[{i}]")]
    text = json.dumps(value, ensure_ascii=False, default=str)
    return [(name, text if len(text) <= 300 else text[:300] + " …")]


def _code(value: object) -> str:
    """Return a setting as Python code."""
    if isinstance(value, Mapping) and "name" in value:
        return f"fd.{value['name']}({', '.join(f'{k}={_code(v)}' for k, v in value.items() if k != 'name')})"
    return repr(value)


def call(run: Run) -> str:
    """Return the call of `solve` that repeats the run; it leaves out a seed from which noise was drawn."""
    keys = ("max_rounds",) if noise_from_seed(run) else ("seed", "max_rounds")
    arguments = [f"{k}={run.settings[k]!r}" for k in keys if k in run.settings]
    who = run.settings.get("participation")
    if isinstance(who, Mapping) and (who.get("name") == "Schedule" or who.get("fraction") != 1 or who.get("dropout")):
        fields = ", ".join(f"{k}={v!r}" for k, v in who.items() if k in ("fraction", "dropout", "every"))
        arguments.append(f"participation=fd.{who['name']}({fields if who['name'] != 'Schedule' else '...'})")
    algorithm, noise = solve_arguments(run.settings.get("algorithm", {"name": "Algorithm"}))
    arguments += [f"privacy={_code(noise)}"] if noise is not None else []
    return f"run = fd.solve(problem, {_code(algorithm)}, {', '.join(arguments)})"


def settings(run: Run) -> str:
    """Return all settings of the run, and the call that repeats it."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in _pairs(public_settings(run))
    )
    repeats = (
        f"{NO_SEED} The call, without it:"
        if noise_from_seed(run)
        else "The same settings, data and seed give the same history on the same machine:"
    )
    return (
        f"<p>{escape(repeats)}</p>"
        f"<pre>{escape(call(run))}</pre><details><summary>All settings, as they were resolved</summary>"
        f'<table class="plain">{rows}</table></details>'
    )


def figure_cell(name: str, run: Run) -> tuple[float, str]:
    """Return a figure on new rows as a number to sort by and as text."""
    figure = None if run.evaluation is None else run.evaluation.overall.get(name)
    return (math.inf, "–") if figure is None else (figure.value, figure_text(name, figure))


def table_of_runs(runs: Mapping[str, Run]) -> str:
    """Return a table with one row for each run: its verdict, its final figures, and its rounds, bytes and time."""
    heads = ["Run", "Verdict", "Objective", "Largest violation", "Stationarity", "Rounds", "Up", "Down", "Time"]
    private = any(getattr(run, "ledger", None) is not None for run in runs.values())
    loss = "ε, simulated" if any(map(noise_from_seed, runs.values())) else "ε"
    figure_names = [
        name for name in COMPARED if any(r.evaluation and name in r.evaluation.overall for r in runs.values())
    ]
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
            epsilon = total_epsilon(run)
            cells.append((math.inf if epsilon is None else epsilon, "–" if epsilon is None else number(epsilon)))
        cells += [figure_cell(name, run) for name in figure_names]
        titles_of_cells = [*heads[2:], *([loss] if private else []), *(TITLES[name][0] for name in figure_names)]
        figures = "".join(
            f'<td class="n" data-v="{float(value)!r}"><span class="mini">{escape(head)}</span>{escape(text)}</td>'
            for head, (value, text) in zip(titles_of_cells, cells, strict=True)
        )
        body += (
            f'<tr><th scope="row" data-v="{escape(name)}"><i class="c{i % 8}"></i>{escape(name)}</th>'
            f'<td class="v" data-v="{verdict.level}"><span class="badge {badge}">{escape(verdict.title)}</span></td>'
            f"{figures}</tr>"
        )
    kinds = {"Run": "", "Verdict": "v"}
    titles = "".join(
        f'<th scope="col" class="{kinds.get(h, "n")}">{h}</th>'
        for h in [*heads, *([loss] if private else []), *(f"{TITLES[name][0]}, new rows" for name in figure_names)]
    )
    reasons = words.group_names([(name, run.reason) for name, run in runs.items()])
    items = "".join(f"<li><b>{escape(name)}</b>: {escape(text)}.</li>" for name, text in reasons)
    return (
        f'<div class="scroll"><table class="sites sortable runs"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody>'
        f'</table></div><p class="note">Time is without compiling.</p><ul class="reasons">{items}</ul>'
    )


def differences(runs: Mapping[str, Run]) -> str:
    """Return a table of the settings that are not the same in all runs."""
    flat = {name: dict(_pairs(public_settings(run))) for name, run in runs.items()}
    keys = list(dict.fromkeys(key for pairs in flat.values() for key in pairs))
    keys = [key for key in keys if len({flat[name].get(key, "–") for name in runs}) > 1]
    cells = [["", *runs], *([key, *(flat[name].get(key, "–") for name in runs)] for key in keys)]
    if len(runs) > 4:  # too many for columns, so each run gets a row
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
    """Return explanations of the words of the page."""
    eps2 = " or ".join(number(eps) for eps in sorted({run.certificate.eps2 for run in runs}))
    entries = {name: text.replace("{eps2}", eps2) for name, text in GLOSSARY.items()}
    rows = "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in entries.items())
    return f'<dl class="asked">{rows}</dl>'
