"""Formulas such as "y ~ age + C(ward, ref='A') + bs(x, df=4) + offset(log(days))", with rows that stay at sites.

`formulaic` makes the columns of a formula. What it would learn from all rows (the levels of a category, a mean to
centre by, the knots of a spline) comes from questions, whose sums give the same numbers: means and deviations from
sums, levels from sets of words, and a quantile from counts of rows below thresholds, 63 at a time, until one number is
left between them. Every site then makes its own columns from the same numbers. A knot that is found so is a row's
value, and so are a spline's ends; whoever writes bs(x, knots=[…], lower_bound=…, upper_bound=…) is told none.

A formula is a small language and not Python: names of columns, numbers, arithmetic, and the functions listed here.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.data.columns import Words, is_number, listing, missing_in
from foedus.data.masked_sums import InSums
from foedus.data.sites import in_order
from foedus.data.sums import Replies
from foedus.data.tables import Table
from foedus.statistics.survival.stratified import reals, wholes
from foedus.sums.questions import Here, Question, Sites

PLAIN: dict[str, Callable[..., Any]] = {
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "exp": np.exp, "sqrt": np.sqrt, "abs": np.abs,
}  # fmt: skip
SETTINGS = {
    "center": (),
    "scale": ("center", "scale", "ddof"),
    "standardize": ("center", "rescale", "ddof"),
    "poly": ("degree", "raw"),
    "bs": ("df", "knots", "degree", "include_intercept", "lower_bound", "upper_bound", "extrapolation"),
    "C": ("contrasts",),
}  # of functions, by place
LEARNT = ("center", "scale", "standardize", "poly", "bs")  # whose numbers come from all rows
SYNTAX = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.BinOp, ast.UnaryOp, ast.Compare,
    ast.List, ast.Tuple, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
MOST_LEVELS = 500  # of a category
FANS = 63  # thresholds in one question
LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Step:
    """One number, or several, that a formula learns from all rows.

    Args:
        key: what formulaic calls the call.
        name: of the function.
        source: the expression that it is applied to.
        settings: its other arguments.
    """

    key: str
    name: str
    source: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Design:
    """What a formula says, and what it has learnt so far: the same at every site.

    Args:
        formula: as it is written.
        levels: by column, those of a category, in order.
        states: by call, what formulaic keeps of it.
    """

    formula: str
    levels: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_formula(self.formula)
        for expression in self.expressions:
            _check(expression, self.formula)

    @cached_property
    def _parsed(self) -> tuple[str, Any, str | None]:
        """The response, the columns of the right side, and the offset."""
        from formulaic import Formula
        from formulaic.errors import FormulaSyntaxError

        left, right = self.formula.split("~")
        parsed: Any = Formula
        try:
            terms: list[Any] = list(parsed(right))
        except (FormulaSyntaxError, SyntaxError) as error:
            raise FoedusError(f"the formula {self.formula!r} cannot be read: {str(error).splitlines()[0]}.") from None
        offsets = [term for term in terms if any(_is_offset(factor.expr) for factor in term.factors)]
        if len(offsets) > 1 or any(len(term.factors) > 1 for term in offsets):
            raise FoedusError(f"the formula {self.formula!r} must have one offset(…), added to the other terms.")
        rest = parsed([term for term in terms if term not in offsets])
        return left.strip(), rest, offsets[0].factors[0].expr[len("offset(") : -1] if offsets else None

    @property
    def response(self) -> str:
        """The expression on the left side."""
        return self._parsed[0]

    @property
    def offset(self) -> str | None:
        """The expression that is added to the scores; None without one."""
        return self._parsed[2]

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """The expressions of which the right side is made, each once."""
        exprs = (f.expr for term in self._parsed[1] for f in term.factors if f.eval_method.value != "literal")
        return tuple(dict.fromkeys(exprs))

    @property
    def expressions(self) -> tuple[str, ...]:
        """All expressions of the formula."""
        return (self.response, *self.factors, *(() if self.offset is None else (self.offset,)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns of a table that the formula names."""
        functions = {*PLAIN, *LEARNT, "C", "I"}
        nodes = [n for e in self.expressions for n in ast.walk(_tree(e)) if isinstance(n, ast.Name)]
        return tuple(dict.fromkeys(n.id for n in nodes if n.id not in functions))

    @property
    def has_intercept(self) -> bool:
        """Whether one of the columns is a constant."""
        return any(str(term) == "1" for term in self._parsed[1])

    def categories(self, words: Sequence[str]) -> dict[str, str]:
        """Return by factor the column of each category; `words` are the columns that hold words."""
        found = {expr: expr for expr in self.factors if expr in words}
        for expr in self.factors:
            node = _tree(expr)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "C":
                if not node.args or not isinstance(node.args[0], ast.Name):
                    raise FoedusError(f"{expr!r} in the formula: C(…) takes the name of a column first.")
                found[expr] = node.args[0].id
        return found

    def steps(self) -> Iterator[Step]:
        """Return what has to be learnt, inner calls first."""
        seen = set()
        for expression in self.expressions:
            for node in reversed(list(ast.walk(_tree(expression)))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LEARNT:
                    key = ast.unparse(node)
                    if key not in seen:
                        seen.add(key)
                        yield Step(key, node.func.id, ast.unparse(node.args[0]), _settings(node))

    def evaluate(self, expression: str, rows: "FormulaRows") -> np.ndarray:
        """Return the values of an expression in some rows, one each."""
        from formulaic.utils.stateful_transforms import stateful_eval

        states = copy.deepcopy(dict(self.states))
        values = stateful_eval(expression, rows.columns | _context(), None, states, None)
        return np.asarray(values, dtype=float)

    def columns_of(self, rows: "FormulaRows") -> tuple[np.ndarray, tuple[str, ...]]:
        """Return X for some rows, and the names of its columns."""
        from formulaic import ModelSpec
        from formulaic.materializers.types import NAAction
        from formulaic.parser.types import Factor

        kind = Factor.Kind.CATEGORICAL
        encoders = {expr: (kind, {"categories": list(self.levels[name])})
                    for expr, name in self.categories(rows.words).items()}  # fmt: skip
        states = copy.deepcopy(dict(self.states))
        spec = ModelSpec(
            self._parsed[1], na_action=NAAction.RAISE, output="pandas", transform_state=states, encoder_state=encoders
        )
        matrix = spec.get_model_matrix(rows.frame, context=_context())
        names = tuple("(intercept)" if name == "Intercept" else str(name) for name in matrix.columns)
        return np.asarray(matrix, dtype=float), names


class FormulaRows:
    """One site's rows that lack no value that the formula names.

    Args:
        table: of the site.
        design: of which the columns are taken.
        more: columns beside those of the formula.
    """

    def __init__(self, table: Table, design: Design, more: Sequence[str] = ()):
        names = (*design.names, *more)
        for name in names:
            table.column(name, "the formula")
        keep = ~np.logical_or.reduce([missing_in(table.columns[name]) for name in names])
        if not np.any(keep):
            raise FoedusError(f"{table.source}: no row has a value in every column of the formula.")
        self.missing = int(np.sum(~keep))
        self.table = table.take(np.flatnonzero(keep))

    @property
    def words(self) -> tuple[str, ...]:
        """The columns that hold words."""
        return tuple(name for name, column in self.table.columns.items() if isinstance(column, Words))

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The columns as arrays by name."""
        plain: dict[str, Any] = {}
        for name, column in self.table.columns.items():
            if isinstance(column, Words):
                levels = np.array([*column.levels, None], dtype=object)
                plain[name] = levels[column.codes]
            else:
                plain[name] = np.asarray(column)
        return plain

    @property
    def frame(self) -> Any:
        """The columns as a data frame."""
        import pandas

        return pandas.DataFrame(self.columns)


@dataclass(frozen=True, eq=False)
class Below(Question):
    """How many rows of an expression are at or below each threshold?

    Args:
        design: with what is known so far.
        source: the expression.
        thresholds: (any shape)
    """

    kind: ClassVar[str] = "formula-below"
    design: Design
    source: str
    thresholds: np.ndarray

    @property
    def fields(self) -> Json:
        return {"of": self.source}

    @property
    def arrays(self) -> PyTree:
        return self.thresholds

    @property
    def shape(self) -> PyTree:
        return wholes(*self.thresholds.shape)

    def answer(self, data: FormulaRows) -> PyTree:
        values = np.sort(self.design.evaluate(self.source, data))
        return np.searchsorted(values, self.thresholds, side="right").astype(int)


@dataclass(frozen=True, eq=False)
class PowerSums(Question):
    """What do the rows of an expression v, a weight u and their products add up to: n, Σu, Σvu?

    Args:
        design: with what is known so far.
        source: the expression v.
        centre: u is (v − centre)²; None: u is 1.
        polynomial: u is the squared polynomial with these numbers (α, norms) instead; None: as `centre` says.
    """

    kind: ClassVar[str] = "formula-sums"
    design: Design
    source: str
    centre: float | None = None
    polynomial: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def fields(self) -> Json:
        return {"of": self.source, "centre": self.centre, "polynomial": self.polynomial}

    @property
    def shape(self) -> PyTree:
        return wholes(), reals(), reals()

    def answer(self, data: FormulaRows) -> PyTree:
        v = self.design.evaluate(self.source, data)
        u = np.ones_like(v)
        if self.polynomial is not None:
            alpha, norms = self.polynomial
            last, now = np.zeros_like(v), np.ones_like(v)
            for k, a in enumerate(alpha):
                last, now = now, (v - a) * now - (norms[k] / norms[k - 1] * last if k else 0.0)
            u = now**2
        elif self.centre is not None:
            u = (v - self.centre) ** 2
        return len(v), np.sum(u), np.sum(v * u)


def learn(
    formula: str, tables: Mapping[str, Table], more: Sequence[str], secure: bool, listed: Sequence[str] = ()
) -> tuple[Design, Here]:
    """Return the formula with all that it learns from the rows of all sites, and the sites with these rows.

    Args:
        formula: as it is written.
        tables: by site.
        more: columns beside those of the formula, which must not be missing either.
        secure: whether sums alone are seen.
        listed: columns whose levels are learnt, beside those of categories.
    """
    design = Design(formula)
    _check_names(design, tables, more)
    sites = Here({site: FormulaRows(table, design, more) for site, table in tables.items()}, secure)
    rows: Mapping[str, FormulaRows] = sites.data  # pyright: ignore[reportAssignmentType]
    words = sorted({name for own in rows.values() for name in own.words})
    for name in (name for name in words if name in design.names):
        for site, own in rows.items():
            if name not in own.words:
                raise FoedusError(f"the column {name!r} holds numbers at site {site!r}, and words at others.")
    columns = sorted({*design.categories(words).values(), *listed})
    told = InSums(Here({site: Replies(own.table, None) for site, own in rows.items()}, secure), formula, MOST_LEVELS)
    levels = {name: _typed(in_order({*found}), name in words) for name, found in told.values(columns).items()}
    design = Design(formula, levels)
    _check_references(design)
    for step in design.steps():
        state = _spline(design, step, sites) if step.name == "bs" else _moments(design, step, sites)
        design = Design(formula, levels, {**design.states, step.key: state})
    return design, sites


def _moments(design: Design, step: Step, sites: Sites) -> dict[str, Any]:
    """What center, scale, standardize and poly keep of all rows."""
    settings = step.settings
    rows, _, total = sites.total(PowerSums(design, step.source))
    if step.name == "poly":
        degree, raw = int(settings.get("degree", 1)), settings.get("raw", False)
        alpha, norms = [], []
        for k in range(0 if raw else degree + 1):
            _, norm, product = sites.total(PowerSums(design, step.source, None, (tuple(alpha), tuple(norms))))
            norms.append(float(norm))
            alpha += [float(product) / float(norm)] if k < degree else []
        return {} if raw else {"alpha": dict(enumerate(alpha)), "norms2": dict(enumerate(norms))}
    centre = settings.get("center", True) if step.name != "center" else True
    wide = step.name != "center" and settings.get("rescale" if step.name == "standardize" else "scale", True)
    ddof = settings.get("ddof", 0 if step.name == "standardize" else 1)
    mean = float(total) / int(rows)
    _, squares, _ = sites.total(PowerSums(design, step.source, mean if centre else 0.0))
    return {
        "ddof": ddof,
        "center": np.float64(mean) if centre is True else None if centre is False else np.float64(centre),
        "scale": np.sqrt(float(squares) / (int(rows) - ddof)) if wide is True else None,
    }


def _spline(design: Design, step: Step, sites: Sites) -> dict[str, Any]:
    """What bs keeps of all rows: its ends and its knots."""
    settings = step.settings
    df, knots, degree = settings.get("df"), settings.get("knots"), int(settings.get("degree", 3))
    low, high = settings.get("lower_bound"), settings.get("upper_bound")
    if df is not None and knots is not None:
        raise FoedusError(f"{step.key!r} in the formula: give df or knots, and not both.")
    inner = 0 if df is None else int(df) - degree - bool(settings.get("include_intercept", False))
    if inner < 0:
        raise FoedusError(f"{step.key!r} in the formula: df must be at least {int(df or 0) - inner}. Got {df} instead.")
    if settings.get("extrapolation", "raise") != "raise" and inner:
        raise FoedusError(f"{step.key!r} in the formula: with extrapolation state the knots, and not df.")
    places = np.linspace(0.0, 1.0, inner + 2)[1:-1]
    ends = [end for end, stated in ((0.0, low), (1.0, high)) if stated is None]
    found = iter(_quantiles(design, step.source, sites, [*ends, *places]) if ends or inner else [])
    low, high = (next(found) if stated is None else float(stated) for stated in (low, high))
    between = list(found) if inner else [float(k) for k in knots or ()]
    inside = [low, *between, high]
    return {"lower_bound": low, "upper_bound": high, "knots": [low] * degree + inside + [high] * degree}


def _quantiles(design: Design, source: str, sites: Sites, shares: Sequence[float]) -> list[float]:
    """The quantiles of all rows, as NumPy has them: a row's value, or what lies between two."""
    rows = int(sites.total(Below(design, source, np.array([np.inf])))[0])
    places = [(rows - 1) * share for share in shares]
    ranks = sorted({rank for p in places for rank in (int(np.floor(p)), int(np.ceil(p)))})
    values = dict(zip(ranks, _order_statistics(design, source, sites, ranks), strict=True))
    result = []
    for p in places:
        a, b, t = values[int(np.floor(p))], values[int(np.ceil(p))], p - np.floor(p)
        result.append(b - (b - a) * (1.0 - t) if t >= 0.5 else a + (b - a) * t)
    return result


def _order_statistics(design: Design, source: str, sites: Sites, ranks: Sequence[int]) -> list[float]:
    """The values of the rows with these ranks, from counts at or below thresholds: each question leaves 1/64 of them.

    float64 numbers are in the order of the integers that stand for them, which are halved until one is left.
    """
    wanted = np.array(ranks) + 1
    low, high = np.full(len(ranks), -LARGEST), np.full(len(ranks), LARGEST)  # the answer is in (low, high]
    while np.any(high - 1 > low):
        step = [[int(a) + (int(b) - int(a)) * k // (FANS + 1) for k in range(1, FANS + 1)]
                for a, b in zip(low.tolist(), high.tolist(), strict=True)]  # fmt: skip
        tried = np.array(step, dtype=np.int64)
        enough = np.asarray(sites.total(Below(design, source, _number(tried)))) >= wanted[:, None]
        first = np.argmax(enough, axis=1)
        some, row = enough.any(axis=1), np.arange(len(ranks))
        before = np.where(some, first - 1, FANS - 1)
        low, high = (
            np.where(before >= 0, np.maximum(tried[row, before], low), low),
            np.where(some, tried[row, first], high),
        )
    return [float(value) for value in _number(high)]


def _number(order: np.ndarray) -> np.ndarray:
    """The float64 at a place in their order; places beyond the infinite ones are infinite."""
    bits = np.where(order >= 0, order, np.int64(-LARGEST - 1) - order)
    with np.errstate(invalid="ignore"):
        values = bits.astype(np.int64).view(np.float64)
    return np.where(np.isnan(values), np.where(order >= 0, np.inf, -np.inf), values)


def _typed(levels: tuple[str, ...], wordy: bool) -> tuple[Any, ...]:
    if wordy or not all(map(is_number, levels)):
        return levels
    numbers = [float(level) for level in levels]
    return tuple(int(n) for n in numbers) if all(n == int(n) for n in numbers) else tuple(numbers)


def _context() -> dict[str, Any]:
    """The functions of a formula."""
    from formulaic.transforms import TRANSFORMS
    from formulaic.transforms.contrasts import C, TreatmentContrasts

    def category(data: Any, contrasts: Any = None, *, ref: Any = None, levels: Any = None) -> Any:
        return C(data, contrasts if ref is None else TreatmentContrasts(base=ref), levels=levels)

    return PLAIN | {name: TRANSFORMS[name] for name in LEARNT} | {"C": category, "I": lambda values: values}


def _tree(expression: str) -> ast.expr:
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except SyntaxError:
        raise FoedusError(f"{expression!r} in the formula cannot be read.") from None


def _settings(node: ast.Call) -> dict[str, Any]:
    """The settings of a call by their names."""
    name = ast.unparse(node.func)
    try:
        own = dict(zip(SETTINGS[name], map(ast.literal_eval, node.args[1:]), strict=False))
        if len(node.args) - 1 > len(SETTINGS[name]):
            raise ValueError
        return own | {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except ValueError:
        raise FoedusError(
            f"{ast.unparse(node)!r} in the formula: the settings of {name} must be numbers or words, and are "
            f"{listing(SETTINGS[name], 8) or 'none'}."
        ) from None


def _is_offset(expression: str) -> bool:
    return expression.startswith("offset(") and expression.endswith(")")


def _check_formula(formula: object) -> None:
    if not isinstance(formula, str) or formula.count("~") != 1 or not all(map(str.strip, formula.split("~"))):
        raise FoedusError(f"expected a formula such as 'y ~ age + C(ward)'. Got {formula!r} instead.")
    if "|" in formula:
        raise FoedusError(
            f"the formula {formula!r}: write random='site' or site_intercepts=True instead of a term with '|'."
        )
    try:
        import formulaic  # noqa: F401
    except ImportError:
        raise FoedusError("formulas need formulaic; install it with: pip install 'foedus[formula]'.") from None


def _check(expression: str, formula: str) -> None:
    """Raise where an expression holds more than names, numbers, arithmetic and the functions of a formula."""
    functions = (*PLAIN, *LEARNT, "C", "I")
    tree = _tree(expression)
    for node in ast.walk(tree):
        if not isinstance(node, SYNTAX) or (isinstance(node, ast.Name) and node.id.startswith("__")):
            raise FoedusError(f"{expression!r} in the formula {formula!r}: expected names, numbers and arithmetic.")
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
            if name not in functions:
                hint = did_you_mean(name, functions)
                raise FoedusError(
                    f"{expression!r} in the formula {formula!r}: there is no function {name!r}, only "
                    f"{listing(functions, 20)}.{hint}"
                )
            if not node.args:
                raise FoedusError(f"{expression!r} in the formula {formula!r}: {name}(…) needs a column.")


def _check_names(design: Design, tables: Mapping[str, Table], more: Sequence[str]) -> None:
    everyone = {name for table in tables.values() for name in table.columns}
    for name in (*design.names, *more):
        if name not in everyone:
            raise FoedusError(
                f"no site has a column {name!r}, which the formula names; their columns are "
                f"{listing(sorted(everyone), 20)}.{did_you_mean(name, everyone)}"
            )


def _check_references(design: Design) -> None:
    """Raise where a reference level is none of the levels of its category."""
    for expression in design.factors:
        node = _tree(expression)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "C":
            reference, column = _settings(node).get("ref"), ast.unparse(node.args[0])
            levels = design.levels.get(column, ())
            if reference is not None and reference not in levels:
                raise FoedusError(
                    f"{expression!r} in the formula: the column {column!r} has no level {reference!r}, only "
                    f"{listing([repr(level) for level in levels], 10)}.{did_you_mean(str(reference), map(str, levels))}"
                )
