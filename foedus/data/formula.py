"""Formulas such as "y ~ age + C(ward, ref='A') + bs(x, df=4) + offset(log(days))": a small language, and its columns.

`formulaic` makes the columns of a formula. What it would learn from all rows (the levels of a category, a mean to
centre by, the knots of a spline) is given to it, the same at every site; who finds it, and how, is not known here. A
formula is no Python: it holds names of columns, numbers, arithmetic, and the functions listed here.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.data.columns import listing

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


@dataclass(frozen=True)
class FormulaColumns:
    """The columns that a formula names, in some rows.

    Args:
        columns: arrays by name; words as objects, None where a row has none of the levels.
        words: the names of those that hold words.
    """

    columns: Mapping[str, np.ndarray]
    words: tuple[str, ...]

    @property
    def frame(self) -> Any:
        """The columns as a data frame."""
        import pandas

        return pandas.DataFrame(dict(self.columns))


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
    def _parts(self) -> tuple[str, Any, str | None]:
        """The response, the columns of the right side, and the offset."""
        from formulaic import Formula
        from formulaic.errors import FormulaSyntaxError

        left, right = self.formula.split("~")
        make: Any = Formula
        try:
            terms: list[Any] = list(make(right))
        except (FormulaSyntaxError, SyntaxError) as error:
            raise FoedusError(f"the formula {self.formula!r} cannot be read: {str(error).splitlines()[0]}.") from None
        offsets = [term for term in terms if any(_is_offset(factor.expr) for factor in term.factors)]
        if len(offsets) > 1 or any(len(term.factors) > 1 for term in offsets):
            raise FoedusError(f"the formula {self.formula!r} must have one offset(…), added to the other terms.")
        rest = make([term for term in terms if term not in offsets])
        return left.strip(), rest, offsets[0].factors[0].expr[len("offset(") : -1] if offsets else None

    @property
    def response(self) -> str:
        """The expression on the left side."""
        return self._parts[0]

    @property
    def offset(self) -> str | None:
        """The expression that is added to the scores; None without one."""
        return self._parts[2]

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """The expressions of which the right side is made, each once."""
        exprs = (f.expr for term in self._parts[1] for f in term.factors if f.eval_method.value != "literal")
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
        return any(str(term) == "1" for term in self._parts[1])

    def categories(self, words: Sequence[str]) -> dict[str, str]:
        """Return by factor the column of each category; `words` are the columns that hold words."""
        factors = {expr: expr for expr in self.factors if expr in words}
        for expr in self.factors:
            node = _tree(expr)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "C":
                if not node.args or not isinstance(node.args[0], ast.Name):
                    raise FoedusError(f"{expr!r} in the formula: C(…) takes the name of a column first.")
                factors[expr] = node.args[0].id
        return factors

    def steps(self) -> Iterator[Step]:
        """Return what has to be learnt, inner calls first."""
        keys = set()
        for expression in self.expressions:
            for node in reversed(list(ast.walk(_tree(expression)))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LEARNT:
                    key = ast.unparse(node)
                    if key not in keys:
                        keys.add(key)
                        yield Step(key, node.func.id, ast.unparse(node.args[0]), _settings(node))

    def evaluate(self, expression: str, rows: FormulaColumns) -> np.ndarray:
        """Return the values of an expression in some rows, one each."""
        from formulaic.utils.stateful_transforms import stateful_eval

        states = copy.deepcopy(dict(self.states))
        values = stateful_eval(expression, {**rows.columns, **_context()}, None, states, None)
        return np.asarray(values, dtype=float)

    def columns_of(self, rows: FormulaColumns) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return X for some rows, and the names of its columns."""
        from formulaic import ModelSpec
        from formulaic.materializers.types import NAAction
        from formulaic.parser.types import Factor

        kind = Factor.Kind.CATEGORICAL
        encoders = {expr: (kind, {"categories": list(self.levels[name])})
                    for expr, name in self.categories(rows.words).items()}  # fmt: skip
        states = copy.deepcopy(dict(self.states))
        spec = ModelSpec(
            self._parts[1], na_action=NAAction.IGNORE, output="pandas", transform_state=states, encoder_state=encoders
        )
        matrix = spec.get_model_matrix(rows.frame, context=_context())
        names = tuple("(intercept)" if name == "Intercept" else str(name) for name in matrix.columns)
        return np.asarray(matrix, dtype=float), names


def spline_state(step: Step, ends: tuple[float, float], knots: Sequence[float]) -> dict[str, Any]:
    """Return what formulaic keeps of a call of bs with these ends, and these knots between them."""
    degree, inside = int(step.settings.get("degree", 3)), [ends[0], *knots, ends[1]]
    return {"lower_bound": ends[0], "upper_bound": ends[1], "knots": [ends[0]] * degree + inside + [ends[1]] * degree}


def stated_spline(step: Step) -> dict[str, Any]:
    """Return the same where the formula states all of it; raise where something is left to the rows."""
    settings = step.settings
    needed = ("knots", "lower_bound", "upper_bound")
    if any(name not in settings for name in needed) or settings.get("extrapolation") not in ("clip", "extend"):
        raise FoedusError(
            f"{step.key!r} in the formula: in an experiment file bs states its knots, lower_bound and upper_bound, and "
            "extrapolation = 'clip' or 'extend' for values beyond them; no row then decides what is learnt or refused."
        )
    knots, low, high = ([float(k) for k in np.atleast_1d(settings[name])] for name in needed)
    return spline_state(step, (low[0], high[0]), knots)


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


def check_references(design: Design) -> None:
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
