"""Preparation: before the first round, sites whose tables nobody else sees agree on columns, scales and words.

Messages to every site. `columns`: what the columns are for; a site tells which it has. `sums`: what
`foedus.data.preprocess` needs, and `squares` after it where the plan asks for noise, which the site itself adds, or for
masked sums. `prepare`: the rules that came of it, with which the site turns its table into
the arrays that the rounds work on.

A refusal tells something, and nobody charges for it. So a site refuses for what its rows hold at the first message
alone, and then for what they are as a whole: no number of the server moves that. Later a cell that cannot be used is
replaced, and a number of the server is refused for itself, where it lies outside a range that everybody knows.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.data.columns import Words, missing_in
from foedus.data.holdout import Split, split
from foedus.data.masked_sums import ColumnFigures, InSums, RowCount, SquaredDeviations
from foedus.data.preprocess import Category, Number, Preprocessing, arrays_of, valued_columns
from foedus.data.sites import Cohort, Roles, Sketch, cohort_from, sketch
from foedus.data.sums import ABSENT, Answers, FigureNoise, FiguresRequest, Replies, Sums, word_counts
from foedus.data.tables import Table
from foedus.federation.asking import MaskedSites
from foedus.federation.exchange import Exchange
from foedus.federation.gate import Gate, Outgoing, unfit
from foedus.federation.holdout import Holdout, seeded
from foedus.federation.masked_rounds import PREPARATION, MaskedExchange
from foedus.federation.order import Order
from foedus.federation.packing import whole
from foedus.federation.plan import Request
from foedus.federation.policy import Policy, Refusal, Source
from foedus.federation.site_evaluation import SiteEvaluation
from foedus.federation.site_ledger import Release
from foedus.privacy.sampling import release as exact_release
from foedus.statistics import rates
from foedus.sums.questions import Coding, Form, Here, Question, Sites, checked_total
from foedus.sums.word_sets import LONGEST

MOST_WORDS = 10**4  # different words of a column that a masked sum may be made for
MOST_ROWS = 10**12  # that a site may say it has
LARGEST = 1e100  # of a number in a table, of a bound, a shift and a scale: sums of squares of such numbers are finite


class Apart:
    """The sites' answers over a network, in the form in which `foedus.data.preprocess` asks for them."""

    def __init__(self, exchange: Exchange, noise: Json | None):
        self.exchange, self.noise = exchange, noise

    @property
    def sites(self) -> int:
        return len(self.exchange.client)

    def first(self, request: FiguresRequest) -> list[Sums]:
        content = {"columns": dataclasses.asdict(request), "noise": self.noise}
        return [_sums(header["sums"]) for header in self.exchange.headers("sums", content).values()]

    def second(self, means: Mapping[str, float]) -> list[dict[str, float]]:
        headers = self.exchange.headers("squares", {"means": dict(means), "noise": self.noise}).values()
        return [{str(name): float(value) for name, value in header["squares"].items()} for header in headers]

    def rows(self) -> int:
        return sum(whole(header["rows"], 1, MOST_ROWS, "rows") for header in self.exchange.headers("rows", {}).values())


def _sums(record: Json) -> Sums:
    parts: Json = {
        k: {n: float(v) for n, v in record[k].items()} for k in ("count", "total", "least", "most", "spread")
    }
    return Sums(**parts, words={n: tuple(map(str, words)) for n, words in record["words"].items()})


def settle(request: Request, sketches: Mapping[str, Sketch], answers: Answers) -> Preprocessing:
    """Return the rules of preprocessing, from what the sites answer.

    It is a pure function of the plan and the answers: the server plays it, and in a checked run every site does.
    """
    roles = request.plan.roles
    if isinstance(answers, InSums):
        values = answers.values(valued_columns(roles))
        known = {"labels": values.get(roles.label, ()), "groups": values.get(roles.group or "", ())}
        sketches = {site: dataclasses.replace(one, **known) for site, one in sketches.items()}
    cohort = cohort_from(sketches, roles)
    return request.plan.rules(cohort, answers)


def in_sums(request: Request, sites: Sites) -> InSums:
    """Return the sites' answers in the form for preprocessing, where sums over all of them alone are seen."""
    return InSums(sites, request.run, request.plan.roles.max_categories, request.plan.noise)


class Ahead(Exception):
    """The answers that are known end here; `question` comes next."""

    def __init__(self, question: Question):
        super().__init__()
        self.question = question


class Alone(Here):
    """One site, as it would be by itself: `words` are those that it tells of a column."""

    def __init__(self, data: Mapping[str, object], words: Callable[[str], tuple[str, ...]]):
        super().__init__(data)
        self.words = words

    def _answers(self, question: Question) -> dict[str, PyTree]:
        if not isinstance(question, ColumnFigures):
            return super()._answers(question)
        words = {name: self.words(name) for name in question.request.words}
        return {
            name: question.in_cells(dataclasses.replace(own.first(question.request), words=words))
            for name, own in self.data.items()
            if isinstance(own, Replies)
        }


class KnownSums:
    """Sites of whose sums the first ones are known: what comes of them is played again, up to the next question."""

    shows_each = False

    def __init__(self, names: tuple[str, ...], totals: Sequence[np.ndarray]):
        self.names, self.rest = names, list(totals)

    def each(self, question: Question) -> dict[str, PyTree]:
        raise FoedusError("single answers are not seen where sums are masked (secure).")

    def total(self, question: Question) -> PyTree:
        if not self.rest:
            raise Ahead(question)
        return checked_total(question, Coding.of(question.form, len(self.names)), self.rest.pop(0))


def prepare(request: Request, exchange: Exchange) -> tuple[Order, Preprocessing]:
    """Play the preparation at the server; return the order and the rules of preprocessing."""
    plan, count = request.plan, len(request.sites)
    headers = exchange.greet("columns", request.to_json())
    sketches = {site: Sketch.from_json(header["sketch"]) for site, header in headers.items()}
    answers: Answers = Apart(exchange, plan.noise)
    if plan.secure:
        everyone, verified = dataclasses.replace(exchange.patience, minimum=None), plan.verified(count)
        if verified:
            exchange.headers("cohort", {"sketches": {site: one.to_json() for site, one in sketches.items()}})
        sums = MaskedExchange(request.sites, exchange, everyone, PREPARATION, verified)
        answers = in_sums(request, MaskedSites(exchange, sums))
    rules = settle(request, sketches, answers)
    rules_for_sites = {} if plan.secure and plan.verified(count) else {"rules": rules.to_json()}
    replies = exchange.headers("prepare", rules_for_sites)
    for term in () if plan.secure else plan.holdout.rates:
        kept = {exchange.client[site]: int(header["kept"][term.name]) for site, header in replies.items()}
        rates.check_counts(term, kept)
    order = plan.order(cohort_of(rules, plan.roles), rules, request.run, request.sites)
    return dataclasses.replace(order, prepared=True), rules


def cohort_of(rules: Preprocessing, roles: Roles) -> Cohort:
    """Return the columns, labels and groups that the rules speak of."""
    words = frozenset(rule.name for rule in rules.columns if isinstance(rule, Category))
    return Cohort({}, roles, tuple(rule.name for rule in rules.columns), words, rules.labels, rules.groups)


# --- at a site ---


def exact_laplace(value: float, scale: float) -> float:
    """Return the value with Laplace noise from the operating system's randomness, by OpenDP's exact sampler."""
    return float(exact_release("laplace", np.array([value]), scale)[0])


class TableSession:
    """A site's answers before the first round, from its own table."""

    def __init__(
        self, site: str, request: Request, source: Source, policy: Policy, holdout: Holdout,
        note: Callable[[str], None], gate: Gate, is_private: bool = False,
    ):  # fmt: skip
        self.site, self.run, self.source, self.policy, self.is_private = site, request.run, source, policy, is_private
        self.request, self.holdout, self.note, self.gate = request, holdout, note, gate
        self.is_verified = request.stated["verify"]
        self.sketches: dict[str, Sketch] = {}  # of all sites, in a checked run
        self.totals: list[np.ndarray] = []  # the sums so far, which the site has added up itself
        self.rows = {"training": "", "held-out": ""}  # how the ledger calls the rows of each part
        self.evaluation: SiteEvaluation | None = None

    def columns(self) -> Json:
        """Answer which columns the site has, and which labels and groups occur in enough rows."""
        self.roles, self.stated_roles = self.request.plan.roles, self.request.stated["roles"]
        self.rows = {part: self.holdout.rows(part, self.stated_roles) for part in self.rows}
        self.is_secure = self.request.plan.secure
        if self.is_private and self.roles.missing != "mean":
            raise Refusal(
                "policy",
                f"under privacy missing = {self.roles.missing!r} would make the number of rows depend on what is in "
                "them; write missing = 'mean'",
            )
        try:
            table = _bounded(self.source.table(self.roles), self.note)
            named = (self.roles.label, self.roles.group, self.roles.cluster)
            for name in (*named, *(self.roles.features or ()), *self.roles.categorical):
                if name is not None and name not in table.columns:
                    raise Refusal("data", f"it has no column {name!r}, which the experiment names")
            for name in valued_columns(self.roles):
                self._check_values(table, name)
            if not self.roles.classification and isinstance(table.columns[self.roles.label], Words):
                raise FoedusError(f"the label {self.roles.label!r} holds words; this loss expects numbers.")
            table, self.sketch = sketch(table, self.roles)
        except FoedusError as error:
            raise unfit(str(error), self.note) from None
        self.split = self._split(table) if self.holdout else None
        self.table = table if self.split is None else self.split.training
        if self.table.rows < max(self.policy.min_rows, self.policy.min_subset):
            raise unfit("there are fewer rows than the policy asks for", self.note)
        # where only sums may be seen, the values of label and group are told in one, and not here
        silence = {"labels": (), "groups": ()} if self.is_secure else {}
        return {"sketch": dataclasses.replace(self.sketch, **silence).to_json()}

    def cohort(self, header: Json) -> None:
        """Note the columns of all sites, this site's own among them: the sums of a checked run follow from them."""
        if not self.is_verified:
            raise Refusal("unknown", "it checks no sums in this run")
        sketches = {str(site): Sketch.from_json(one) for site, one in header["sketches"].items()}
        own = dataclasses.replace(self.sketch, labels=(), groups=())
        if tuple(sketches) != self.request.sites or sketches[self.site] != own:
            raise Refusal("breach", "it is told other columns of the sites than they have")
        self.sketches = sketches

    def _follow(self) -> Question | Preprocessing:
        """Return what follows from the sums so far: the next question, or the rules."""
        try:
            answers = in_sums(self.request, KnownSums(self.request.sites, self.totals))
            return settle(self.request, self.sketches, answers)
        except Ahead as one:
            return one.question
        except FoedusError as error:  # from what all parties know
            raise Refusal("policy", str(error).removesuffix(".")) from None

    def rules_alone(self) -> Preprocessing:
        """Return the rules as they would be with this site alone: with others there may be more words.

        What is asked on the way is what the site will be asked, so a word that it may not tell keeps it out here.
        """
        alone = in_sums(self.request, Alone({self.site: self._replies(None)}, self._words_told))
        return settle(self.request, {self.site: self.sketch}, alone)

    def _words_told(self, name: str) -> tuple[str, ...]:
        """Return the words of a column that the site will tell; it stays out where they are too many, or too long."""
        words = self._common_words(name)
        if len(words) > self.policy.max_words:
            raise unfit(f"the column {name!r} has more words than the policy (max_words) lets it tell", self.note)
        if self.is_secure and any(len(word.encode()) > LONGEST for word in words):
            raise unfit(f"a word of {name!r} takes more than the {LONGEST} bytes of masked sums", self.note)
        return words

    def _check_next(self, kind: str, header: Json) -> None:
        """Refuse, in a checked run, a question that is not the next one."""
        if not self.is_verified:
            return
        question = self._follow()
        if isinstance(question, Preprocessing) or question.kind != kind:
            raise Refusal("breach", f"the question {kind!r} does not follow from the sums that it has added up")
        fields = {name: header.get(name) for name in question.fields}
        if json.dumps(fields, sort_keys=True) != json.dumps(question.fields, sort_keys=True):
            raise Refusal("breach", f"it is asked for other {kind} than follow from the sums that it has added up")

    def add_total(self, number: int, words: np.ndarray) -> None:
        """Note a sum; one that is shown again changes nothing."""
        if number > len(self.totals):
            raise Refusal("breach", "it is shown a sum before the one that comes first")
        if number == len(self.totals):
            self.totals.append(words)

    def _check_values(self, table: Table, name: str) -> None:
        """Refuse a label or a group with a rare value, over all rows of the file, whatever the run leaves out."""
        counts = {word: count for word, count in word_counts(table.columns[name]).items() if count and word != ABSENT}
        self._check_words(len(counts))
        if min(counts.values(), default=0) < self.policy.min_subset:
            raise unfit(f"a value of {name!r} stands in fewer than {self.policy.min_subset} rows", self.note)

    def _split(self, table: Table) -> Split:
        """Divide the rows by the site's own draw; refuse shares for which a part would have too few, by their number.

        The difference between sums over all rows and over those that train is about the rows that are held out.
        """
        shares, least = seeded(self.holdout.shares, self.gate.folder), 1 if self.is_private else self.policy.min_subset
        held_out = math.floor(shares.evaluate * table.rows + 0.5)
        threshold = math.floor(shares.threshold * (table.rows - held_out) + 0.5)
        sizes = [size for size, share in ((held_out, shares.evaluate), (threshold, shares.threshold)) if share]
        if min(sizes) < max(1, least):
            raise unfit(f"a part of the rows would be fewer than the {least} that the policy asks for", self.note)
        one = split(table, self.roles, self.site, shares)
        if any(0 < part.rows < least for part in (one.training, one.held_out, one.threshold)):
            one = split(table, self.roles, self.site, dataclasses.replace(shares, by_class=False))
        return one

    def _check_words(self, words: int) -> None:
        if words > self.policy.max_words:
            raise Refusal("policy", f"its policy lets it tell no more than {self.policy.max_words} words of a column")

    def _common_words(self, name: str) -> tuple[str, ...]:
        """Return the words of a column that occur in enough rows to be told."""
        counts = word_counts(self.table.columns[name])
        return tuple(word for word, count in counts.items() if count >= max(1, self.policy.min_subset))

    def row_count(self, header: Json, is_masked: bool) -> Outgoing:
        """Answer how many rows train, where the plan weighs sites by them; under a mask, where one is due."""
        self._check_next("rows", header)
        if not self.request.plan.counts_rows:
            raise Refusal("policy", "it is asked for its number of rows, which the plan does not need")
        if not is_masked:
            return Outgoing({"rows": self.table.rows}, exact=True)
        question = RowCount()
        return self._in_sum(question.form, lambda: question.answer(self._replies(None)), exact=True, releases=())

    def sums(self, header: Json, is_masked: bool) -> Outgoing:
        """Answer with sums, counts, ranges and words of columns, as far as the policy allows each; under a mask."""
        self._check_next("sums", header)
        columns = {str(k): tuple(map(str, v)) for k, v in header["columns"].items()}
        ask = FiguresRequest(columns["sums"], columns["ranges"], columns["words"], columns.get("spread", ()))
        numeric = {f for f, holds in zip(self.sketch.features, self.sketch.holds, strict=True) if holds != "words"}
        word_columns = {*self.sketch.features, self.roles.group}
        word_columns |= {self.roles.label} if self.roles.classification else set()
        sums_fit = {*ask.spread} <= {*ask.sums} and {*ask.sums, *ask.ranges} <= numeric
        if not sums_fit or not {*ask.words} <= word_columns:
            raise Refusal("unknown", "it is asked for sums of columns that are no features")
        if ask.ranges and not self.policy.ranges:
            raise Refusal(
                "policy",
                "the least and the greatest value of a column are single rows' values, which its policy does not tell; "
                "state bounds in [preprocess], or use another scale",
            )
        noise = self._noise(header["noise"], ask.sums)
        beyond = {*ask.words} - {self.roles.label, self.roles.group}
        if self.policy.limits_privacy and (ask.ranges or beyond or (ask.sums and noise is None)):
            raise Refusal(
                "policy",
                "its policy asks for privacy, and the preparation would send exact sums or words; state bounds and "
                "categories in [preprocess], or add epsilon",
            )
        exact = bool(ask.ranges or beyond or (ask.sums and noise is None))
        words = {name: self._common_words(name) for name in ask.words}
        for levels in words.values():
            self._check_words(len(levels))
        sums = dataclasses.replace(self._replies(noise).first(ask), words=words)
        releases = self._releases(noise)
        if not is_masked:
            return Outgoing({"sums": dataclasses.asdict(sums)}, exact=exact, releases=releases)
        if ask.ranges:
            raise Refusal("unknown", "least and greatest values are no sums, and this run has agreed on masked sums")
        table = header["table"]
        question = ColumnFigures(ask, whole(table["capacity"], 1, MOST_WORDS, "capacity"), str(table["salt"]))
        return self._in_sum(question.form, lambda: question.in_cells(sums), exact, releases)

    def _in_sum(self, form: Form, answer: Callable[[], PyTree], exact: bool, releases: tuple[Release, ...]) -> Outgoing:
        try:
            return Outgoing(answer=answer(), form=form, exact=exact, releases=releases)
        except FoedusError as error:
            raise unfit(str(error), self.note) from None

    def _known(self) -> Table:
        """Return the table for exact sums: of a column with few values none is told, as if it had none here."""
        columns = dict(self.table.columns)
        for name, holds in zip(self.sketch.features, self.sketch.holds, strict=True):
            column = columns[name]
            if holds != "words" and int(np.sum(~missing_in(column))) < self.policy.min_subset:
                columns[name] = np.full(len(column), np.nan)
        return dataclasses.replace(self.table, columns=columns)

    def _replies(self, noise: FigureNoise | None) -> Replies:
        return Replies(self._known() if noise is None else self.table, noise)

    def _noise(self, record: Json | None, names: tuple[str, ...]) -> FigureNoise | None:
        if record is None:
            return None
        bounds = {str(name): (float(low), float(high)) for name, (low, high) in record["bounds"].items()}
        for name in names:
            low, high = bounds.get(name, (0.0, 0.0))
            if not (-LARGEST <= low < high <= LARGEST and high - low >= 1 / LARGEST):
                raise Refusal(
                    "unknown",
                    f"noise on the sums of {name!r} needs its bounds, a low and a high number up to {LARGEST:g}",
                )
        epsilon, figures = float(record["epsilon"]), whole(record["figures"], 1, 10**6, "figures")
        if not 1 / LARGEST <= epsilon <= LARGEST:
            raise Refusal("unknown", f"noise on sums needs an epsilon > 0, up to {LARGEST:g}")
        return FigureNoise(bounds, epsilon, figures, exact_laplace)

    def _releases(self, noise: FigureNoise | None) -> tuple[Release, ...]:
        """Return the releases since the last call, for the site's ledger."""
        if noise is None:
            return ()
        releases = tuple(
            Release(f"preparation: {what}", "laplace", change, scale, rows=self.rows["training"])
            for what, change, scale in noise.noted
        )
        noise.noted.clear()
        return releases

    def squares(self, header: Json, is_masked: bool) -> Outgoing:
        """Answer with the sums of squared deviations from the means over all sites; under a mask, where one is due."""
        self._check_next("squares", header)
        means = {str(name): float(mean) for name, mean in header["means"].items()}
        noise = self._noise(header["noise"], tuple(means))
        if noise is None and self.policy.limits_privacy:
            raise Refusal("policy", "its policy asks for privacy, and the preparation would send exact sums")
        columns = {*self.sketch.features} & ({*self.sketch.features} if noise is None else {*noise.bounds})
        if not {*means} <= columns or not all(map(math.isfinite, means.values())):
            raise Refusal("unknown", "it is asked for squares of columns that are no features")
        if any(abs(mean) > LARGEST for mean in means.values()):
            raise Refusal("unknown", f"it is asked for squares from a mean beyond {LARGEST:g}")
        if noise is not None:  # the proof of the sensitivity needs a mean within the bounds
            means = {name: min(max(mean, noise.bounds[name][0]), noise.bounds[name][1]) for name, mean in means.items()}
        squares = self._replies(noise).second(means)
        releases = self._releases(noise)
        if not is_masked:
            return Outgoing({"squares": squares}, exact=noise is None, releases=releases)
        question = SquaredDeviations(means)
        return self._in_sum(question.form, lambda: question.in_order(squares), noise is None, releases)

    def prepare(self, header: Json) -> dict[str, np.ndarray]:
        """Return the arrays that the rounds work on, from the site's table by the rules."""
        rules = self._follow() if self.is_verified else Preprocessing.from_json(header["rules"])
        if not isinstance(rules, Preprocessing) or (self.is_verified and "rules" in header):
            raise Refusal("breach", "in a checked run the rules follow from the sums, and not from a message")
        self._check_rules(rules)
        if rules.formula != self.request.plan.formula:
            raise Refusal("policy", "the rules have another formula than the plan")
        self.rules = rules
        if self.split is not None:
            held_out, threshold = (self._numbers(rules, part) for part in (self.split.held_out, self.split.threshold))
            self.evaluation = SiteEvaluation(
                held_out, threshold, self.holdout, self.rows["held-out"], self.policy, len(rules.groups)
            )
        return self.arrays(rules)

    def arrays(self, rules: Preprocessing) -> dict[str, np.ndarray]:
        """Return the arrays of the rows that train, by these rules."""
        table = self.table if self.is_private else self._known()
        clusters = cohort_of(rules, self.roles).cluster(table)
        named = dict(zip(("x", "y", "group"), self._numbers(rules, table), strict=False))
        return named | ({} if clusters is None else {"cluster": clusters})

    def _numbers(self, rules: Preprocessing, table: Table) -> Sequence[np.ndarray]:
        # rows that the agreed rule leaves out are gone; the message's own rule could only refuse for what is in a row
        own = dataclasses.replace(self._without_rare(rules), missing="mean")
        return arrays_of(cohort_of(rules, self.roles), own, table)

    def kept_rows(self) -> Json:
        """Return how many rows are kept out for each term on a rate; nothing where only sums may be seen."""
        if self.evaluation is None or self.is_secure or not self.holdout.rates:
            return {}
        return {"kept": self.evaluation.counts()}

    def _check_rules(self, rules: Preprocessing) -> None:
        """Refuse rules by their own names and numbers; for no row of the table they can then fail."""
        if tuple(rule.name for rule in rules.columns) != self.sketch.features:
            raise Refusal("unknown", "the rules are not about the features that it has told")
        for rule, holds in zip(rules.columns, self.sketch.holds, strict=True):
            if isinstance(rule, Category) != (holds == "words") and holds != "nothing":
                raise Refusal("unknown", f"the rule of the column {rule.name!r} does not fit what the column holds")
            if isinstance(rule, Number):
                for field, least in (("shift", -LARGEST), ("scale", 1 / LARGEST), ("fill", -LARGEST)):
                    value = getattr(rule, field)
                    if not (isinstance(value, int | float) and least <= value <= LARGEST):
                        raise Refusal(
                            "unknown", f"the {field} of the column {rule.name!r} must be from {least:g} to {LARGEST:g}"
                        )
        if self.roles.classification and len(rules.labels) != 2:
            raise Refusal("unknown", "the rules must say which label counts as 0 and which as 1")

    def _without_rare(self, rules: Preprocessing) -> Preprocessing:
        """Return rules by which a word that few rows have here counts as one that no row has.

        Otherwise a gradient would have an entry that is a sum over those few rows alone. Under privacy noise covers it,
        and a word that becomes rare with one row less must not change what is in others.
        """
        if self.is_private:
            return rules
        columns: list[Number | Category] = []
        for rule in rules.columns:
            if isinstance(rule, Category):
                common = {*self._common_words(rule.name)}
                levels = tuple(f"{level}\0" if level not in common else level for level in rule.levels)
                rule = Category(rule.name, levels)
            columns.append(rule)
        return dataclasses.replace(rules, columns=tuple(columns))


def _bounded(table: Table, note: Callable[[str], None]) -> Table:
    """Return the table with its numbers cut to a range in which nothing that is computed from them overflows."""
    columns = dict(table.columns)
    for name, column in columns.items():
        if not isinstance(column, Words) and np.any(np.abs(column) > LARGEST):
            columns[name] = np.clip(column, -LARGEST, LARGEST)
            note(f"{table.source}: numbers of column {name!r} are cut to the range of {LARGEST:g}")
    return dataclasses.replace(table, columns=columns)
