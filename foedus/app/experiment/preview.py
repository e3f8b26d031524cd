"""The preview of `foedus check`: what a run would do, without training; sites, classes, columns, messages, rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from foedus.app.experiment import build, figures
from foedus.app.experiment.build import RunSetup, fit_of
from foedus.base.engine import float64
from foedus.base.pytrees import nbytes
from foedus.base.quantities import count, number, short, size
from foedus.data import preprocess, tables
from foedus.data.columns import Words, listing, missing_in, text_of
from foedus.data.doubts import Doubt
from foedus.data.preprocess import Category, Number, Preprocessing
from foedus.data.sites import Cohort
from foedus.privacy.releasing import sound_noise
from foedus.problem.pooled import Pooled
from foedus.protocol.algorithm import name_of
from foedus.runtime.simulate import start
from foedus.runtime.traffic import traffic_of
from foedus.sums.masking import masking_of

# Rounds until the stopping test on the reference problems of tests/app/test_outlook.py, which measures them again: the
# breast-cancer set at 5 and 20 sites with a small ridge, and a cap on one class for the methods that take constraints.
TYPICAL: dict[str, tuple[int, int]] = {
    "CentralProxAL": (36, 52),
    "FedGiA": (4700, 7400),
    "FedPD": (5900, 9400),
    "InexactADMM": (140, 220),
    "ProxAL": (36, 52),
    "Scaffold": (5700, 9100),
}
UNENDING = ("FedAvg", "FedProx", "LocalSGD")  # they come near the optimum and did not pass the test in 20,000 rounds
SITES, FIRST, LAST = 30, 15, 10  # a longer list of sites shows its first and its last ones
HOPELESS = 10.0  # how many times as long as any mean of gradients the noise of a round is where nothing can be learnt
COLUMNS = 40  # the most rows in the table of columns


@dataclass(frozen=True)
class DataOutlook:
    """What the preview says about the rows: the sites, the columns in words, and the columns side by side."""

    sites: Table
    features: list[str]
    columns: Table


@dataclass(frozen=True)
class Messages:
    """The bytes that one site receives and sends in a round of each kind."""

    kinds: tuple[tuple[int, int], ...]

    def most(self, rounds: int, sites: int) -> int:
        """Return the most bytes that so many rounds with so many sites can add up to."""
        return rounds * sites * max(down + up for down, up in self.kinds)


@float64()
def messages(setup: RunSetup) -> Messages:
    """Return the sizes of the messages, from their shapes alone; nothing is computed."""
    fit = fit_of(setup)
    algorithm, problem, terms = fit.algorithm, fit.problem, fit.problem.terms
    w0 = jax.ShapeDtypeStruct((terms.dim,), float)
    if isinstance(problem, Pooled):
        return Messages(((0, nbytes(setup.problem.data)),))
    at = jax.eval_shape(lambda w, data, own: start(algorithm, terms, w, data, own), w0, problem.data, problem.server)
    masking = masking_of(algorithm, terms) if build.secure_of(setup.settings) else None
    return Messages(traffic_of(algorithm, terms, at.carry.server, at.clients, problem.data, masking))


def about_data(cohort: Cohort, rules: Preprocessing) -> DataOutlook:
    """Return what the preview says about the rows, from the tables themselves."""
    return DataOutlook(sites_table(cohort), features_lines(cohort, rules), columns_table(cohort))


def sites_table(cohort: Cohort) -> Table:
    """Return a table of each site's rows, by class and by group; the ends of a long list."""
    table_of_sites = Table(box=None, pad_edge=False, header_style="dim")
    table_of_sites.add_column("site")
    table_of_sites.add_column("rows", justify="right")
    for label in cohort.labels:
        table_of_sites.add_column(f"{cohort.roles.label} {label}", justify="right")
    for group in cohort.groups:
        table_of_sites.add_column(f"{cohort.roles.group} {group}", justify="right")
    if not cohort.labels:
        table_of_sites.add_column(f"{cohort.roles.label}, mean", justify="right")
    names = list(cohort.everyone)
    for name in names if len(names) <= SITES else [*names[:FIRST], "", *names[-LAST:]]:
        if not name:
            table_of_sites.add_row(f"… {len(names) - FIRST - LAST} more")
            continue
        table = cohort.everyone[name]
        y, group = cohort.y(table), cohort.group(table)
        cells = [f"{int(np.sum(y == code)):,}" for code in range(len(cohort.labels))] or [f"{float(np.mean(y)):.4g}"]
        if group is not None:
            cells += [f"{int(np.sum(group == code)):,}" for code in range(len(cohort.groups))]
        table_of_sites.add_row(name, f"{table.rows:,}", *cells)
    return table_of_sites


def columns_table(cohort: Cohort) -> Table:
    """Return the columns of the sites side by side: median and range, or the commonest word, and the missing share."""
    names = [*dict.fromkeys([*cohort.features, cohort.roles.label])]
    more = len(names) - COLUMNS + 1 if len(names) > COLUMNS else 0
    head, rows = side_by_side(cohort, names[: len(names) - more])
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, title in enumerate(head):
        table.add_column(Text(title), overflow="fold", no_wrap=place == 0)
    rows += [[f"… {more} more", *[""] * (len(head) - 1)]] if more else []
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def side_by_side(cohort: Cohort, names: Sequence[str], most: int = 4) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of a table of some columns at each site; of many sites, the least and the greatest."""
    few = len(cohort.tables) <= most
    head = ["column", *cohort.tables] if few else ["column", "least at", "", "most at", ""]
    rows = []
    for name in names:
        is_words = name in cohort.words or (name == cohort.roles.label and bool(cohort.labels))
        cells = {site: _cell(table, name, is_words) for site, table in cohort.tables.items()}
        if few:
            rows.append([name, *(text for _, text in cells.values())])
        else:
            low, high = (pick(cells, key=lambda site: cells[site][0]) for pick in (min, max))
            rows.append([name, low, cells[low][1], high, cells[high][1]])
    return head, rows


def _cell(table: tables.Table, name: str, is_words: bool) -> tuple[float, str]:
    """The figure to order sites by, and a column at a site in a few characters."""
    column = table.columns[name]
    missing = float(np.mean(missing_in(column)))
    absence = f", {100 * missing:.0f} % missing" if missing >= 0.005 else ""
    if is_words:
        words = text_of(column).used()
        if not words.levels:
            return 0.0, "no value"
        counts = np.bincount(words.codes[words.codes >= 0], minlength=len(words.levels))
        top = int(np.argmax(counts))
        share = float(counts[top] / counts.sum())
        return share, f"{words.levels[top]} {100 * share:.0f} %{absence}"
    assert not isinstance(column, Words)
    values = column[~np.isnan(column)]
    if not len(values):
        return float("-inf"), "no value"
    low, middle, high = (float(q) for q in np.quantile(values, (0, 0.5, 1)))
    return middle, f"{_short(middle)} [{_short(low)}, {_short(high)}]{absence}"


def _short(value: float) -> str:
    """A number to four digits, without an exponent below a million."""
    return f"{float(f'{value:.4g}'):,g}"


def features_lines(cohort: Cohort, rules: Preprocessing) -> list[str]:
    """Describe the columns: how they are prepared, what is missing, and which are of no use."""
    numbers = [c.name for c in rules.columns if isinstance(c, Number)]
    lines = []
    if numbers:
        scaling = preprocess.IN_WORDS[rules.scale]
        lines.append(f"numbers, {scaling}: {listing(numbers)}")
    words = [f"{c.name} ({len(c.levels)})" for c in rules.columns if isinstance(c, Category)]
    if words:
        lines.append(f"categories, a 0/1 column for each word: {listing(words)}")
    missing = {
        name: count
        for name in cohort.features
        if (count := sum(int(missing_in(t.columns[name]).sum()) for t in cohort.tables.values()))
    }
    if missing:
        names = listing(f"{name} ({count:,})" for name, count in missing.items())
        lines.append(f"missing values, filled with the mean or as a category of their own: {names}")
    if cohort.dropped:
        names = listing(f"{count:,} at {site}" for site, count in cohort.dropped.items())
        lines.append(f"rows left out because a value is missing: {names}")
    constant = [c.name for c in rules.columns if isinstance(c, Number) and c.scale == 1.0 and rules.scale == "standard"]
    if constant:
        lines.append(f"the same at every row, so of no use: {listing(constant)}")
    lines.append(f"the model has {len(rules.names)} numbers" + (", with the intercept" if rules.intercept else ""))
    return lines


def terms_lines(setup: RunSetup) -> list[str]:
    """Describe the objective and the constraints."""
    problem = setup.problem
    loss = problem.terms.loss
    where = setup.settings["problem"]["where"]
    name = "loss" if loss is None else f"{setup.settings['problem']['loss']['name'].replace('_', ' ')} loss"
    weights = "averaged over the sites" if problem.terms.weights is None else problem.terms.weights.words
    lines = [f"make small: the mean {name}{f' on {where}' if where else ''}, {weights}"]
    where_it_holds = {
        "local": "at every site",
        "global": "on the server's own data",
        "coupled": "on average over the sites",
    }
    rates = figures.rates_of(setup.settings)
    requests = [one for one in setup.settings["constraints"] if one["type"] not in {rate.name for rate in rates}]
    for request, constraint in zip(requests, problem.terms.constraints, strict=True):
        sentence = {
            "LossCap": lambda a=request: f"the mean loss on {a.get('where')} is at most {limit(a['at_most'])}",
            "LossGap": lambda a=request: (
                f"the mean losses on {a.get('first')} and {a.get('second')} differ by at most {limit(a['at_most'])}"
            ),
            "Linear": lambda a=request: (
                " + ".join(f"{v:g}·{k}" for k, v in a["coefficients"].items())
                + f" {'is' if a.get('kind') == '==' else 'is at most'} {a['at_most']} in the model (of scaled columns)"
            ),
            "NormBall": lambda a=request: f"the model's length is at most {limit(a['radius'])}",
        }.get(request["type"], lambda a=request: ", ".join(f"{k} {v}" for k, v in a.items()))()
        lines.append(f"keep: {sentence}, {where_it_holds[constraint.scope]}")
    lines += [f"keep: {rate.words}, by a threshold that is chosen after training" for rate in rates]
    return lines


def kept_out_lines(setup: RunSetup) -> list[str]:
    """Say how many rows take no part in training, and what they are for."""
    kept_out = setup.kept_out
    if kept_out is None:
        return []
    uses = (
        ("held out to evaluate the model on", kept_out.held_out),
        ("to choose the threshold by", kept_out.threshold),
    )
    totals = {use: sum(table.rows for table in tables.values()) for use, tables in uses}
    return [f"{rows:,} {use}" for use, rows in totals.items() if rows]


def limit(value: object) -> str:
    """Return a limit as text: one number for all sites, or that of each site."""
    return " / ".join(f"{v} ({site})" for site, v in value.items()) if isinstance(value, Mapping) else str(value)


def rounds_of(setup: RunSetup, limit: int) -> str:
    """Say how many rounds to expect of a run; measured ones are quoted only for an algorithm with default settings."""
    usual = set(setup.settings["algorithm"]) == {"name"} and getattr(setup.algorithm, "inner", "newton") == "newton"
    return rounds_line(name_of(setup.algorithm) if usual or name_of(setup.algorithm) in UNENDING else "", limit)


def rounds_line(name: str, limit: int) -> str:
    """Say how many rounds to expect of an algorithm; an empty name stands for one that was not measured."""
    if name in UNENDING:
        return f"it comes near the best model without reaching it, so it will mostly play all {limit:,} rounds"
    if name not in TYPICAL:
        return f"at most {limit:,} rounds; how many it needs depends on the data"
    low, high = TYPICAL[name]
    advice = "; raise max_rounds in [run] to let it finish" if low > limit else ""
    return (
        f"at most {limit:,} rounds; the breast-cancer set took {low:,} to {high:,} at 5 and 20 sites, and other data, "
        f"more columns or caps that bind at more sites may take many times as many{advice}"
    )


def noise_doubts(setup: RunSetup) -> list[Doubt]:
    """Return doubts about noise that drowns whatever the data say; no data are looked at but the numbers of rows."""
    rules, sites = setup.rules, setup.problem.terms.clients
    rows = {name: table.rows for name, table in setup.cohort.tables.items()}
    doubts = []
    if rules.epsilon is not None:
        # Laplace noise of scale b has the variance 2b², and the noises of all sites add up
        spread = preprocess.FIGURES * len(rules.columns) / rules.epsilon * (2.0 * sites) ** 0.5
        if spread > sum(rows.values()):
            doubts.append(
                Doubt("[preprocess] epsilon", "", f"{short(rules.epsilon)} is too small to scale columns by: the "
                      f"noise of a count is about {number(spread)} rows, and there are {number(sum(rows.values()))}.")
            )  # fmt: skip
    noise = sound_noise(fit_of(setup).algorithm)
    if noise is not None and rows:
        # one row changes the mean of clipped gradients by this share of the longest one
        change = noise.gradient_change / noise.clip / min(rows.values())
        ratio = noise.multiplier * change * (setup.problem.terms.dim / sites) ** 0.5
        if ratio > HOPELESS:
            total = noise.epsilon if noise.total is None else noise.total[0]
            doubts.append(
                Doubt("[privacy] epsilon", "", f"{short(total)} is too small to learn from these rows: the noise of "
                      f"one round is {number(ratio)} times as long as the longest mean of clipped gradients; raise "
                      "it, play fewer rounds, or bring more rows.")
            )  # fmt: skip
    return doubts


def describe(setup: RunSetup, data: DataOutlook, out: Path, state: str) -> Group:
    """Return the whole preview of one run."""
    problem, rules = setup.problem, setup.rules
    sites, rows = problem.terms.clients, sum(table.rows for table in setup.cohort.tables.values())
    limit = build.rounds_of(setup.settings, setup.algorithm, setup.problem)
    asked_sites = setup.participation.size(sites)
    bytes_of_round = messages(setup)
    down = sorted({d for d, _ in bytes_of_round.kinds})
    up = sorted({u for _, u in bytes_of_round.kinds})

    def between(values: list[int]) -> str:
        return size(values[0]) if len(values) == 1 else f"{size(values[0])} to {size(values[-1])}"

    parts: list[Text | Table] = [Text(f"{sites} sites, {rows:,} rows", style="bold"), data.sites]

    def section(title: str, lines: list[str]) -> None:
        parts.append(Text(""))
        parts.append(Text(title, style="bold"))
        parts.extend(Text(f"  {line}") for line in lines)

    if kept_out := kept_out_lines(setup):
        section("Beside these rows, which train the model", kept_out)
    section("Columns", data.features)
    section("Sites side by side: median [least, greatest], or the commonest word", [])
    parts.append(data.columns)
    section("Terms", terms_lines(setup))
    who = "all sites" if asked_sites == sites else f"{asked_sites} of {sites} sites"
    section(
        f"Training with {name_of(fit_of(setup).algorithm)}",
        [
            f"before it, the scales and words of the columns in {count(rules.rounds, 'round')}: {size(rules.up)} up, "
            f"{size(rules.down)} down" + (f", privacy epsilon {rules.epsilon:g}" if rules.epsilon is not None else ""),
            f"each round asks {who}; a site receives {between(down)} and sends {between(up)}",
            rounds_of(setup, limit),
            f"at most {size(bytes_of_round.most(limit, asked_sites))} travel in all",
        ],
    )
    words_of_state = {
        "new": "does not exist yet",
        "begun": "holds an unfinished run, which goes on",
        "finished": "is finished",
    }
    section("Result", [f"{out}, which {words_of_state.get(state, state)}"])
    return Group(*parts)
