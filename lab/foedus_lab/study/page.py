"""The page of the study, docs/study.md, with its pictures and its table as CSV; made from the results and nothing else.

The conclusions are written by hand: they stand between two marks, and a new page keeps them.
"""

from collections.abc import Sequence
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.runtime.run import versions
from foedus_lab.study.forecast import Forecast
from foedus_lab.study.grid import DELTA, FULL, PRIVATE_ROUNDS, STILL, Scale, cells
from foedus_lab.study.growth_page import growth_section
from foedus_lab.study.instances import CAP, FAIR, PROBLEMS, RADIUS, RIDGE, THETA
from foedus_lab.study.methods import CANDIDATES, DEFAULT, KINDS, PUBLISHED, TUNED
from foedus_lab.study.networks import NETWORKS
from foedus_lab.study.pictures import profile_picture
from foedus_lab.study.play import CAPACITY
from foedus_lab.study.profiles import by, number, profiles, summary, winner, with_figures
from foedus_lab.study.rows import ABSENT, ACCURACIES, FAILED, KEY, tag, to_csv

BEGIN, END = "<!-- conclusions: written by hand, kept by foedus study --write -->", "<!-- end of the conclusions -->"
NO_CONCLUSIONS = "None have been written for these results yet."
PICTURES = (
    ("rounds", 1e-4, "rounds to a gap of 1e-4"),
    ("rounds", 1e-8, "rounds to a gap of 1e-8"),
    ("bytes_up", 1e-4, "bytes from the sites to a gap of 1e-4"),
    ("gradients", 1e-4, "local gradients to a gap of 1e-4"),
    ("hospitals", 1e-4, "modelled time over hospitals to a gap of 1e-4"),
    ("phones", 1e-4, "modelled time over phones, 10 % of replies lost, to a gap of 1e-4"),
)
OPENING = """\
# The study: which algorithm for which problem

Every algorithm on every problem that it solves, on the same footing. This page, its pictures and its
[table](study/{name}.csv) are written by `{command} --write` from the results of

    FOEDUS_DATA=folder {command}              # {seeds} seeds; can be interrupted, and goes on where it was
    {command} --only logistic/w8a/FedGiA      # some rows again
    {command} --algorithm my_module:MyAlgorithm      # an algorithm of yours takes part

The results have {count:,} of the {size:,} rows of the **{name} grid**{more} ({used}), which took {minutes:.0f}
processor minutes, {compiling:.0f} of them compiling. {forecast}

- **Accuracy.** Measured to relative gaps (f − f\\*)/|f\\*| of {accuracies}. Where there are constraints, the
  largest violation is that small too. f\\* is computed from pooled rows by code that no algorithm uses: Newton's
  method, least squares, SLSQP with a Newton finish, one linear system, CVXPY with Clarabel; tests compare it with
  scikit-learn and CVXPY. An algorithm's own stopping test is set as strict as it goes. A dash means: not within
  {rounds:,} rounds and {gradients:,} local gradients, or the run stood still and was ended: {capacity} further
  rounds did not bring its least gap below {still:g} times what it was.
- **Gradients** are passes over a site's data, two reads for one gradient, counted in the traced program; a loop
  whose length is known only when it runs counts as 8 turns.
- **Networks.** Modelled: {networks}. A round lasts one round trip, one site's bytes over its own link, and one
  site's computing on a machine like ours; a lost reply costs no waiting, and the server's link is not modelled.
  Runs over phones were played with the replies lost.
- **Seeds** draw the data anew; figures are medians, with the {interval} over {seeds} seeds in brackets.
- **Problems.** Logistic losses have a ridge of {ridge:g}; the cap is {cap:g}, the gap between groups {fair:g};
  robust problems have balls of radius {radius:g} around rows and of θ = {theta:g} around the sites' weights;
  private ones spend ε over {private} rounds with δ = {delta:g}.
"""
FORECAST = (
    "The full grid has larger data, {seeds} seeds, up to {rounds:,} rounds and {tries} settings tried in tuning: "
    "{rows:,} rows. {time}"
)
GENERAL = ("least-squares", "logistic", "nonconvex-logistic")  # problems that every algorithm for smooth sums takes


WINNERS = """\
Default settings; the least modelled time (geometric mean over data sets and seeds) at the strictest accuracy that
anybody reached, of those that reached it most often. In brackets: seconds, and how many times as long the next
one takes.
"""
PROFILES = f"""\
The share of instances that an algorithm solves at no more than so many times the cost of the cheapest one (Dolan
and Moré), over the problems that all of these algorithms take: {", ".join(GENERAL)}; default settings. Higher is
better, and the left edge is the share of wins.
"""
TABLES = """\
Default settings. kB: both ways, all sites; gradients: of one site; s: processor seconds of the simulator for all
sites, without compiling. The last three are to a gap of 1e-4.
"""
SETTINGS = """\
Rounds to a gap of 1e-4. Tuning tries {tries} of the settings listed for an algorithm in `foedus_lab.study.methods`
beside the defaults, on a draw of the data that is not measured, and keeps the best; {count} algorithms have
something to tune. Where the defaults win, tuned and default are the same run.
"""
PRIVATE = f"""\
The relative gap to the optimum without privacy after {PRIVATE_ROUNDS} rounds, or after as many as an algorithm has for
private runs (`PrivateNewton`: 9); each site keeps (ε, {DELTA:g}) over the whole run. The model w = 0 has a
gap of about 0.8.
"""


def write_page(
    rows: Sequence[Json], growth: Sequence[Json], scale: Scale, folder: Path, full: Sequence[Json] = ()
) -> list[Path]:
    """Write study.md, study/*.svg and study/NAME.csv into a folder of documentation, and return their paths.

    `full` are rows of the full grid, with which its computed time is compared.
    """
    if not with_figures(rows):
        raise FoedusError(
            "there are no results to write about yet; run foedus study first, with the same --quick and --out."
        )
    (folder / "study").mkdir(parents=True, exist_ok=True)
    page = folder / "study.md"
    conclusions = NO_CONCLUSIONS
    if page.exists() and BEGIN in (text := page.read_text()) and END in text:
        conclusions = text.split(BEGIN)[1].split(END)[0].strip()
    files = {f"study/{name}.svg": picture for name, picture in _pictures(rows).items()}
    words, growth_pictures = growth_section(growth)
    files |= {f"study/{name}.svg": picture for name, picture in growth_pictures.items()}
    files[f"study/{scale.name}.csv"] = to_csv(rows)
    if growth:
        files["study/growth.csv"] = to_csv(growth)
    parts = [
        *_opening(rows, scale, full),
        "## What follows\n",
        f"{BEGIN}\n\n{conclusions}\n\n{END}\n",
        *_winners(rows),
        *_profiles(),
        *_tables(rows),
        *_settings(rows, scale),
        *_private(rows),
        *words,
        *_absent(rows),
    ]
    files["study.md"] = ("\n".join(parts).rstrip() + "\n").encode()
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]


def _opening(rows: Sequence[Json], scale: Scale, full: Sequence[Json]) -> list[str]:
    grid = {cell.key for cell in cells(scale)}
    count = sum(tuple(row[name] for name in KEY) in grid for row in rows)
    compiling, measuring = (sum(float(r.get(f"{k}_seconds", 0.0)) for r in rows) for k in ("compile", "measuring"))
    forecast = FORECAST.format(
        seeds=FULL.seeds,
        rounds=FULL.rounds,
        tries=FULL.tries,
        rows=sum(1 for _ in cells(FULL)),
        time=Forecast(rows).sentence(full),
    )
    return [
        OPENING.format(
            command="foedus study --quick" if scale.quick else "foedus study",
            name=scale.name,
            seeds=scale.seeds,
            count=count,
            size=len(grid),
            more=f", and {len(rows) - count} further ones" if len(rows) > count else "",
            used=", ".join(f"{name} {text}" for name, text in versions().items()),
            minutes=measuring / 60,
            compiling=compiling / 60,
            forecast=forecast if scale.quick else "",
            accuracies=", ".join(map(tag, ACCURACIES)),
            rounds=scale.rounds,
            gradients=scale.gradients,
            capacity=CAPACITY,
            still=STILL,
            networks="; ".join(network.title for network in NETWORKS),
            interval="range" if scale.seeds < 6 else "95 % interval of the median",
            ridge=RIDGE,
            cap=CAP,
            fair=FAIR,
            radius=RADIUS,
            theta=THETA,
            private=PRIVATE_ROUNDS,
            delta=DELTA,
        )
    ]


def _winners(rows: Sequence[Json]) -> list[str]:
    """The table of winners per problem and network, with default settings."""
    lines = ["## Winners per problem and network\n"]
    lines += [WINNERS]
    lines += ["| problem | gap | " + " | ".join(n.name.replace("-", " ") for n in NETWORKS) + " |"]
    lines += ["|---|---:|" + "---|" * len(NETWORKS)]
    for problem in PROBLEMS:
        mine = with_figures(rows, problem=problem, settings=DEFAULT)
        if not mine or PROBLEMS[problem].objective == "private":
            continue
        winners = [winner(mine, network.name) for network in NETWORKS]
        accuracy = next((tag(w.accuracy) for w in winners if w), "–")
        texts = []
        for w in winners:
            if w is None:
                texts.append("–")
                continue
            after = f"; {w.runner_up} {number(w.factor, 2)} x" if w.runner_up else ""
            other = f" at {tag(w.accuracy)}" if tag(w.accuracy) != accuracy else ""
            texts.append(f"**{w.algorithm}**{other} ({w.cost.text(2)} s{after})")
        lines.append(f"| {problem} | {accuracy} | " + " | ".join(texts) + " |")
    return [*lines, ""]


def _pictures(rows: Sequence[Json]) -> dict[str, bytes]:
    mine = [r for r in with_figures(rows, settings=DEFAULT) if r["problem"] in GENERAL]
    order = {name: place for place, name in enumerate(sorted({str(r["algorithm"]) for r in mine}))}
    pictures = {}
    for column, accuracy, title in PICTURES:
        curves = profiles(mine, f"{column}_{tag(accuracy)}")
        if curves:
            pictures[f"profile-{column}-{tag(accuracy)}"] = profile_picture(title[0].upper() + title[1:], curves, order)
    return pictures


def _profiles() -> list[str]:
    lines = ["## Performance profiles\n"]
    lines += [PROFILES]
    lines += [f"![{title}](study/profile-{column}-{tag(accuracy)}.svg)\n" for column, accuracy, title in PICTURES]
    return lines


def _tables(rows: Sequence[Json]) -> list[str]:
    """One table for each problem: rounds to two accuracies and the kilobytes and gradients to the first."""
    lines = ["## Rounds, bytes, gradients, seconds\n"]
    lines += [TABLES]
    for (problem, data), mine in by(with_figures(rows, settings=DEFAULT), "problem", "data").items():
        if PROBLEMS[problem].objective == "private":
            continue
        first = mine[0]
        lines += [f"**{problem}, {data}** ({first['sites']} sites, {first['columns']} columns)\n"]
        lines += ["| algorithm | " + " | ".join(f"rounds to {tag(a)}" for a in ACCURACIES) + " | kB | gradients | s |"]
        lines += ["|---|" + "---:|" * (len(ACCURACIES) + 3)]
        for (name,), own in by(mine, "algorithm").items():
            texts = [summary([r[f"rounds_{tag(a)}"] for r in own]).text() for a in ACCURACIES]
            both = [
                None if r["bytes_up_1e-4"] is None else (r["bytes_up_1e-4"] + r["bytes_down_1e-4"]) / 1e3 for r in own
            ]
            rest = [both, [r["gradients_1e-4"] for r in own], [r["seconds_1e-4"] for r in own]]
            medians = [number(summary(values).median) if None not in values else "–" for values in rest]
            lines.append(f"| {name} | {' | '.join([*texts, *medians])} |")
        lines.append("")
    return lines


def _settings(rows: Sequence[Json], scale: Scale) -> list[str]:
    """Defaults beside published and tuned settings: rounds to 1e-4."""
    keys = by([r for r in with_figures(rows) if r["settings"] != DEFAULT], "problem", "data", "algorithm")
    lines = ["## Published and tuned settings\n"]
    lines += [SETTINGS.format(tries=scale.tries, count=len(CANDIDATES))]
    lines += [
        "| problem | data | algorithm | default | published | tuned | tuned to |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for problem, data, name in keys:
        texts = []
        for kind in KINDS:
            own = with_figures(rows, problem=problem, data=data, algorithm=name, settings=kind)
            texts.append(summary([r["rounds_1e-4"] for r in own]).text() if own else "")
        own = with_figures(rows, problem=problem, data=data, algorithm=name, settings=TUNED)
        choice = ", ".join(f"{k} = {v}" for k, v in own[0]["with"].items()) if own else ""
        lines.append(
            f"| {problem} | {data} | {name} | {' | '.join(texts)} | {choice or ('the defaults' if own else '')} |"
        )
    return [*lines, ""] if keys else [*lines[:1], f"No {PUBLISHED} or {TUNED} settings have been measured yet.\n"]


def _private(rows: Sequence[Json]) -> list[str]:
    mine = [r for r in with_figures(rows) if PROBLEMS[r["problem"]].objective == "private"]
    if not mine:
        return []
    lines = ["## Under privacy\n"]
    lines += [PRIVATE]
    lines += ["| problem | data | algorithm | settings | gap at the end |", "|---|---|---|---|---:|"]
    for (problem, data, name, kind), own in by(mine, "problem", "data", "algorithm", "settings").items():
        lines.append(f"| {problem} | {data} | {name} | {kind} | {summary([r['gap_end'] for r in own]).text(2)} |")
    return [*lines, ""]


def _absent(rows: Sequence[Json]) -> list[str]:
    """What was left out or failed, and why: never silently."""
    missing = [r for r in rows if r["status"] in (ABSENT, FAILED)]
    if not missing:
        return []
    lines = ["## Left out\n", "| problem and data | algorithms | why |", "|---|---|---|"]
    names: dict[tuple[str, str], list[str]] = {}  # by where and why
    for problem, data, name, why in by(missing, "problem", "data", "algorithm", "why"):
        names.setdefault((f"{problem}/{data}", why.replace(f"{name} ", "it ").replace("|", "/")), []).append(name)
    places: dict[tuple[str, str], list[str]] = {}  # by algorithms and why
    for (place, why), algorithms in names.items():
        places.setdefault((", ".join(algorithms), why), []).append(place)
    lines += [f"| {', '.join(where)} | {algorithms} | {why} |" for (algorithms, why), where in places.items()]
    return [*lines, ""]
