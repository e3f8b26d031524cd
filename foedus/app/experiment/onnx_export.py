"""Exports a linear model as an ONNX graph over raw rows, in double precision, that answers like `foedus predict`.

One input for each column, of shape (rows, 1): a double (NaN where missing) or a string. Outputs, of shape (rows,):
`prediction` (the label, or a double for a regression), `score`, and `probability` for the logistic loss.

The graph is written with onnx itself. The converter skl2onnx 1.20 takes neither the rule for missing words nor, in
double precision, a filled-in missing number (its `Imputer` has no such kernel in onnxruntime 1.31).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foedus.app.experiment.predict import SavedModel, open_model
from foedus.base.errors import FoedusError
from foedus.data.columns import MISSING
from foedus.data.preprocess import Category, Number
from foedus.data.sums import ABSENT
from foedus.statistics.tally import Rule

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

OPSETS = {"": 18, "ai.onnx.ml": 3}
IR_VERSION = 9  # the file format of opset 18's time: readers older than onnx's newest take it


def to_onnx(model: SavedModel | Path | str) -> "ModelProto":
    """Return the model of a run directory as an `onnx.ModelProto`, whose `SerializeToString` gives a file's bytes."""
    try:
        from onnx import checker, helper
    except ImportError:
        raise FoedusError("the export to ONNX needs the package onnx: pip install 'foedus[onnx]'.") from None

    if not isinstance(model, SavedModel):
        model = open_model(Path(model))
    model.check_linear()
    graph = _Graph()
    rules = model.rules
    parts = [graph.number(rule) if isinstance(rule, Number) else graph.words(rule) for rule in rules.columns]
    weights = model.w[:-1] if rules.intercept else model.w
    product = graph.node("MatMul", graph.node("Concat", *parts, axis=1), graph.constant(weights[:, None]))
    total = graph.node("Add", product, graph.constant(model.w[-1:] if rules.intercept else np.zeros(1)))
    score = graph.node("Reshape", total, graph.constant(np.array([-1])))
    if rules.missing != "mean":
        score = graph.unless_missing(rules.columns, score)
    answer = graph.node("Exp", score) if model.loss.link == "log" and not rules.labels else score
    outputs = [graph.prediction(answer, rules.labels, model.rule), graph.output("score", score)]
    if model.loss.log_odds:
        outputs.insert(1, graph.output("probability", graph.node("Sigmoid", score)))
    proto = helper.make_model(
        helper.make_graph(graph.nodes, "foedus", graph.inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in OPSETS.items()],
        ir_version=IR_VERSION,
        producer_name="foedus",
    )
    checker.check_model(proto, full_check=True)
    return proto


class _Graph:
    """A graph under construction; every method adds nodes and returns the name of the last one's output."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.inputs: list[ValueInfoProto] = []

    @staticmethod
    def type(name: str) -> int:
        from onnx import TensorProto

        return getattr(TensorProto, name)

    def node(self, kind: str, *inputs: str, domain: str = "", **settings: Any) -> str:
        """Add a node of an operator, with its settings."""
        from onnx import helper

        name = f"{kind}:{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], domain=domain, **settings))
        return name

    def constant(self, value: np.ndarray) -> str:
        from onnx import numpy_helper

        name = f"constant:{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def output(self, name: str, source: str, words: bool = False) -> "ValueInfoProto":
        """Give a node's output a name of its own, and return its type as an output of the graph."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [source], [name]))
        return helper.make_tensor_value_info(name, self.type("STRING" if words else "DOUBLE"), ["rows"])

    def _input(self, name: str, words: bool) -> None:
        from onnx import helper

        kind = self.type("STRING" if words else "DOUBLE")
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["rows", 1]))

    def number(self, rule: Number) -> str:
        """(value − shift)/scale, with the rule's number in the place of NaN."""
        self._input(rule.name, words=False)
        value = self.node("Where", self.node("IsNaN", rule.name), self.constant(np.array(float(rule.fill))), rule.name)
        difference = self.node("Sub", value, self.constant(np.array(float(rule.shift))))
        return self.node("Div", difference, self.constant(np.array(float(rule.scale))))

    def codes(self, column: str, code_of: dict[str, int], other: int) -> str:
        """The code of each word, and `other` for a word without one."""
        return self.node(
            "LabelEncoder",
            column,
            domain="ai.onnx.ml",
            keys_strings=list(code_of),
            values_int64s=list(code_of.values()),
            default_int64=other,
        )

    def words(self, rule: Category) -> str:
        """One 0/1 column for each level; a word that no site had in training is 0 in all of them."""
        self._input(rule.name, words=True)
        # every other word gets a place beyond the last level, which equals the number of no column
        code_of = {level: place for place, level in enumerate(rule.levels)}
        code_of |= dict.fromkeys(MISSING, code_of.get(ABSENT, len(code_of)))
        place = self.codes(rule.name, code_of, len(rule.levels))
        hot = self.node("Equal", place, self.constant(np.arange(len(rule.levels))[None, :]))
        return self.node("Cast", hot, to=self.type("DOUBLE"))

    def unless_missing(self, columns: tuple[Number | Category, ...], score: str) -> str:
        """The score, and NaN in a row with a missing value."""
        absent = []
        for rule in columns:
            if isinstance(rule, Number):
                absent.append(self.node("IsNaN", rule.name))
                continue
            flag = self.codes(rule.name, dict.fromkeys(MISSING, 1), 0)
            absent.append(self.node("Equal", flag, self.constant(np.array(1))))
        together = absent[0]
        for flag in absent[1:]:
            together = self.node("Or", together, flag)
        flat = self.node("Reshape", together, self.constant(np.array([-1])))
        return self.node("Where", flat, self.constant(np.array(np.nan)), score)

    def prediction(self, score: str, labels: tuple[str, ...], rule: Rule) -> "ValueInfoProto":
        """The output `prediction`: the score itself in a regression, else the label that the rule says."""
        if not labels:
            return self.output("prediction", score)
        # 0 and 1 are the labels, 2 the empty answer to a row with no score
        test, limit = ("Greater", 0.0) if rule.cut is None else ("GreaterOrEqual", rule.cut)
        positive = self.node("Cast", self.node(test, score, self.constant(np.array(limit))), to=self.type("INT64"))
        place = self.node("Where", self.node("IsNaN", score), self.constant(np.array(2)), positive)
        answers = self.constant(np.array([*labels, ""], dtype=object))
        return self.output("prediction", self.node("Gather", answers, place), words=True)
