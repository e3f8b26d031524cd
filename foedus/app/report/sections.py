"""The sections of the report; each function returns a piece of HTML."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from markupsafe import Markup

from foedus.app.report import charts, sites, words
from foedus.app.report.charts import Chart, ChartSeries
from foedus.app.report.render import Cell, Column, Line, columns, paragraphs, piece, table
from foedus.base.files import Json
from foedus.base.quantities import count, duration, number, size
from foedus.privacy.ledger import NOT_TOLD, SIMULATED, TIGHT
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
    "adversarial_objective": ("Loss at perturbed examples", "the objective, at examples moved to be worse"),
    "snapshot_loss": ("Loss of the sampled sites", "at a recent model; noisy"),
    "gap": ("Optimality gap", "the solver's own estimate of how far the objective is above the best possible one"),
    "stationarity": ("Stationarity", "distance from optimality; 0 where no small change helps"),
    "barrier": ("Barrier", "weight of the logarithmic barrier; it falls to 0"),
    "step": ("Step length", "1 is a full Newton step; 0 evaluates a trial point"),
    "gradient": ("Distance from optimality", "squared gradient; stops below the line"),
    "primal": ("Primal residual", "how far the sites' models are from the server's"),
    "dual": ("Dual residual", "the length of the last step; near 0 at the end"),
    "residual": ("Distance from optimality", "within the present outer step; rises when a new one begins"),
}
FOR_DEVELOPERS = ("barrier", "step")  # shown beside what a method reports of its own
COMPARED = ("sensitivity", "specificity", "accuracy", "auc", "r2", "mae")  # figures on new rows in tables of runs
# series of the history that count things; other sections show them
COUNTED = {"phase", "asked", "answered", "bytes_up", "bytes_down"}
NO_SEED = (
    "The seed of this run is not shown: the noise was drawn from it, so that whoever knows it can run two guesses of "
    "the data and see which of them gives this model."
)

EXCESS = (
    "The verdict follows from the excess: the mean over all rows of a site of loss minus cap on the rows that the cap "
    "is about, and 0 on the others. It is at most 0 where the cap is kept; the noise is its standard deviation. The "
    "value is the mean loss on the cap's own rows, whose number is measured with noise as well."
)
GLOSSARY = {
    "Objective": "the number that training minimises: the mean loss over the sites, plus penalties if there are any.",
    "Constraint, cap": "what must hold at each site, such as a loss of at most 0.2 on one kind of case.",
    "Slack": "the distance below a cap. A slack between −{eps2} and {eps2}, the certificate's tolerance, reads "
    "'binding'; below −{eps2} the constraint is violated there.",
    "Multiplier": "the shadow price of a cap: by how much the objective would fall for each unit that the cap is "
    "raised. It is 0 where the cap costs nothing.",
    "Stationarity": "how far the model is from satisfying the first-order conditions of optimality: the largest entry "
    "of the Lagrangian's gradient. 0 would be exact.",
    "Feasibility": "the largest violation over all constraints and sites.",
    "Complementarity, distance": "whether the multipliers fit the constraints: only a binding one has a multiplier.",
    "Optimality gap": "how far the objective is above the best possible one: a bound that always holds where there is "
    "a ridge, else an estimate from second derivatives.",
    "Certificate": "these figures measured after training, at the returned model and over all sites, by code that the "
    "training algorithm has no part in. They speak about the training rows; figures on new rows speak about others.",
    "Round": "one exchange of messages between the server and the sites; most methods make one iteration in it.",
}


def request_section(runs: Sequence[Run], request: Json) -> Markup:
    """Return what the user asked for, in words and as a problem; what differs between runs is only named."""
    rows: list[tuple[str, str]] = [("In words", str(request["words"]))] if request.get("words") else []

    def add(name: str, answers: Sequence[str]) -> None:
        rows.append((name, answers[0] if len(set(answers)) == 1 else "each run its own, listed below"))

    add("Minimise", [words.objective(run) for run in runs])
    add("Subject to", [promises(run) for run in runs])
    add("Algorithm", [str(run.settings.get("algorithm", {}).get("name", "unknown")) for run in runs])
    who = [run.settings.get("participation") for run in runs]
    if any(isinstance(one, Mapping) for one in who):
        add("Participation", [_participation(dict(one)) if isinstance(one, Mapping) else "" for one in who])
    privacy = [run.settings.get("privacy") for run in runs]
    if any(isinstance(one, Mapping) for one in privacy):
        add("Privacy", [_flat(one) if isinstance(one, Mapping) else "none" for one in privacy])
    own_rows = {"title", "words", "command", "warnings", "data_differ", "cohort"}
    rows += [(str(k), _flat(v)) for k, v in request.items() if k not in own_rows]
    if request.get("command"):
        rows.append(("Command", Markup("<code>{}</code>").format(request["command"])))
    return piece("definitions", rows)


def promises(run: Run) -> str:
    """Return the constraints of a run, one below the other."""
    return Markup("<br>").join(words.terms(run)) or "nothing: no constraints were set"


def _participation(who: Json) -> str:
    losses = f"; {100 * who['dropout']:g} % of the replies are lost on purpose" if who.get("dropout") else ""
    if who.get("name") == "Schedule":
        return "by a plan that was given" + losses
    share = float(who.get("fraction", 1.0))
    every = f", each at least once in {count(int(who['every']), 'round')}" if "every" in who else ""
    return ("all in every round" if share == 1 else f"{100 * share:g} % in each round, drawn anew{every}") + losses


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_flat, value))
    # not isinstance: a bool is an int too
    return number(value) if type(value) is int or type(value) is float else str(value)


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


def convergence(page_charts: list[Chart], legend: list[str]) -> Markup:
    """Return the charts, over rounds and over bytes."""
    if not page_charts:
        return Markup("")
    usual, others = (
        [charts.line_chart(c, by) for c in page_charts if is_main(c) is is_usual for by in ("rounds", "bytes")]
        for is_usual in (True, False)
    )
    return piece("convergence", usual, others, legend)


def is_main(chart: Chart) -> bool:
    """Whether a chart is shown at once, and not behind "For developers"."""
    return chart.key in SERIES and chart.key not in FOR_DEVELOPERS


def traffic(run: Run) -> Markup:
    """Return the rounds, bytes and seconds of a run as a sentence."""
    up, down = size(run.traffic.up), size(run.traffic.down)
    text = f"{count(run.rounds, 'round')} with {count(len(run.names), 'site')}: {up} up and {down} down, in "
    return paragraphs([f"{text}{duration(run.seconds)}, {duration(run.compile_seconds)} of it compiling."])


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


def who_took_part(run: Run, present: tuple[np.ndarray, np.ndarray] | None) -> Markup:
    """Return who answered when: a sentence, and a picture unless all sites answered every round."""
    n = len(run.names)
    replies = run.history.get("answered")
    if replies is None or not len(replies):
        return Markup("")
    if present is not None and present[1].all():
        who = f"All {n} sites" if n > 1 else "The one site"
        return paragraphs([f"{who} answered in each of {count(run.rounds, 'round')}."])
    text = f"On average {number(float(np.mean(replies)))} of {n} sites answered a round; the fewest were "
    text += f"{number(int(np.min(replies)))}, the most {number(int(np.max(replies)))}."
    if present is None:
        return paragraphs([text, "The run does not record which sites these were."])
    return paragraphs([text]) + charts.attendance(run.names, *present)


def worst_case(run: Run) -> Markup:
    """Return the worst case of a robust method: each site's loss at its worst distribution, and the worst weights."""
    stress = getattr(run, "worst_case", None)
    if stress is None:
        return Markup("")
    rows = [
        (name, float(c.value), (number(c.nominal), number(c.radius), number(float(stress.q.get(name, 1.0)))))
        for name, c in stress.clients.items()
    ]
    titles = ("Site", "Worst case", "Worst case", "Mean loss", "Radius", "Weight")
    bars = sites.bars(titles, rows) if len(rows) <= sites.MOST else ""
    return piece("worst_case", stress.value, stress.optimality, bars)


def total_epsilon(run: Run) -> float | None:
    """Return the largest total ε of a site, by the tightest composition; None without a guarantee."""
    book = getattr(run, "ledger", None)
    if book is None or not getattr(book, "sound", False) or not len(book.releases):
        return None
    return max(float(book.total(name, TIGHT)) for name in book.names)


def noise_from_seed(run: Run) -> bool:
    """Whether the noise of a private run was drawn from its seed."""
    book = getattr(run, "ledger", None)
    return book is not None and bool(getattr(book, "simulated", False))


def ledger(run: Run) -> Markup:
    """Return the privacy section: a sentence, the ε of each site and the whole ledger; empty without a ledger."""
    book = getattr(run, "ledger", None)
    if book is None:
        return Markup("")
    is_simulated, bars = noise_from_seed(run), ""
    if total_epsilon(run) is not None and len(book.names) <= sites.MOST:
        titles = ("Site", "Spent", "ε in all, simulated" if is_simulated else "ε in all", "Releases", "Examples")
        rows = [
            (name, float(book.total(i, TIGHT)), (number(int(n)), number(int(count)) if count >= 0 else NOT_TOLD))
            for i, (name, n, count) in enumerate(zip(book.names, book.releases, book.counts, strict=True))
        ]
        bars = sites.bars(titles, rows)
    summary = words.capital(book.summary().splitlines()[0].removeprefix("privacy: "))
    return piece("ledger", summary, SIMULATED if is_simulated else "", bars, str(book))


def plan(run: Run) -> Markup:
    """Return the plan that the sites have agreed to; nothing for a simulation."""
    rows = words.plan(run)
    return piece("definitions", rows) if rows else Markup("")


def noisy_caps(run: Run) -> Markup:
    """Return the caps as they were measured under noise: sentences and a table; empty where they were not."""
    certificate = run.certificate.private
    if certificate is None:
        return Markup("")
    return paragraphs(words.caps_under_noise(run)) + sites.noisy_table(certificate) + piece("note", EXCESS)


def public_settings(run: Run) -> Json:
    """Return the settings that a page may show: without the seed if the noise of a private run was drawn from it."""
    return {k: v for k, v in run.settings.items() if k != "seed"} if noise_from_seed(run) else run.settings


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


def solve_arguments(algorithm: Json) -> tuple[Json, Json | None]:
    """Split the settings of a private algorithm into the arguments of `solve`: the plain method, and privacy=."""
    noise = algorithm.get("noise")
    if not isinstance(noise, Mapping) or "sampler" not in noise:
        return algorithm, None
    # version 0.1 kept the settings of a private form's plain algorithm under "method"
    plain = algorithm.get("plain") or algorithm.get("method") or {k: v for k, v in algorithm.items() if k != "noise"}
    if noise.get("total") is None:
        return plain, {k: v for k, v in noise.items() if k != "total"}
    epsilon, delta = noise["total"]
    clipping = {k: noise[k] for k in ("clip", "rows", "neighbours", "sampler")}
    if "least_rows" in noise:  # in shares; the call needs secure=True beside it
        shares = {k: noise[k] for k in ("tolerate", "least_rows")}
        return plain, {"name": "Central", "epsilon": epsilon, "delta": delta, **clipping, **shares}
    return plain, {"name": "Local", "epsilon": epsilon, "delta": delta, **clipping}


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


def settings(run: Run) -> Markup:
    """Return all settings of the run, and the call that repeats it."""
    repeats = (
        f"{NO_SEED} The call, without it:"
        if noise_from_seed(run)
        else "The same settings, data and seed give the same history on the same machine:"
    )
    return piece("settings", repeats, call(run), _pairs(public_settings(run)))


def figure_cell(name: str, run: Run) -> tuple[float, str]:
    """Return a figure on new rows as a number to sort by and as text."""
    figure = None if run.evaluation is None else run.evaluation.overall.get(name)
    return (math.inf, "–") if figure is None else (figure.value, figure_text(name, figure))


def table_of_runs(runs: Mapping[str, Run]) -> Markup:
    """Return a table with one row for each run: its verdict, its final figures, and its rounds, bytes and time."""
    private = any(getattr(run, "ledger", None) is not None for run in runs.values())
    names = [name for name in COMPARED if any(r.evaluation and name in r.evaluation.overall for r in runs.values())]
    heads = ["Objective", "Largest violation", "Stationarity", "Rounds", "Up", "Down", "Time"]
    heads += ["ε, simulated" if any(map(noise_from_seed, runs.values())) else "ε"] if private else []
    heads += [f"{TITLES[name][0]}, new rows" for name in names]
    lines = []
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
            (run.seconds - run.compile_seconds, duration(run.seconds - run.compile_seconds)),
        ]
        if private:
            epsilon = total_epsilon(run)
            cells.append((math.inf, "–") if epsilon is None else (epsilon, number(epsilon)))
        cells += [figure_cell(figure, run) for figure in names]
        title = Cell(piece("badge", badge, verdict.title), verdict.level)
        lines.append(Line(name, [title, *(Cell(text, float(value)) for value, text in cells)], colour=i % 8))
    reasons = words.group_names([(name, run.reason) for name, run in runs.items()])
    figures = table([Column("Run", ""), Column("Verdict", "v"), *columns(*heads)], lines, "sortable runs")
    return piece("runs", figures, reasons)


def differences(runs: Mapping[str, Run]) -> Markup:
    """Return a table of the settings that are not the same in all runs."""
    flat = {name: dict(_pairs(public_settings(run))) for name, run in runs.items()}
    keys = list(dict.fromkeys(key for pairs in flat.values() for key in pairs))
    keys = [key for key in keys if len({flat[name].get(key, "–") for name in runs}) > 1]
    lines = [["", *runs], *([key, *(flat[name].get(key, "–") for name in runs)] for key in keys)]
    if len(runs) > 4:  # too many for columns, so each run gets a row
        lines = [list(column) for column in zip(*lines, strict=True)]
    return piece("differences", lines if keys else [], [call(run) for run in runs.values()])


def glossary(runs: Sequence[Run]) -> Markup:
    """Return explanations of the words of the page."""
    eps2 = " or ".join(number(eps) for eps in sorted({run.certificate.eps2 for run in runs}))
    return piece("definitions", [(name, text.replace("{eps2}", eps2)) for name, text in GLOSSARY.items()])
