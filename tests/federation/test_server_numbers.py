"""Numbers that a server chooses: none makes a site refuse for what is in a row, and none breaks a proved bound.

Each test is an attack. The bytes are those that travel over a federation; no FLARE is needed.
"""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clerks import PRIVATE, ROWS, Clerk, noise
from evaluated_wards import HELD, Attack
from hypothesis import given, settings
from hypothesis import strategies as st
from intruders import DIM, Intruder, private, problem, rows

import foedus as fd
from foedus.algorithms import private_newton
from foedus.algorithms.fedavg import PrivateDescent
from foedus.algorithms.fedgia import PrivateGiA
from foedus.app.experiment import build
from foedus.data.holdout import split
from foedus.data.sums import UNIT, FigureNoise, FiguresRequest, Replies
from foedus.data.tables import Table
from foedus.federation import agreement, packing
from foedus.federation.gate import REFUSED
from foedus.federation.holdout import SECRET, Holdout
from foedus.federation.policy import Policy, Refusal
from foedus.federation.site import SiteSession
from foedus.federation.site_evaluation import SiteEvaluation
from foedus.privacy import sensitivity
from foedus.privacy.clipping import clipped_gradient
from foedus.privacy.releasing import make_private
from foedus.runtime.spine import message_for
from foedus.statistics import noisy
from foedus.statistics.tally import Rule

FEATURES = {"features": ["age", "dose"]}


class Reader(Clerk):
    """A clerk that states the rules itself, and joins a private run with them."""

    def holdout(self, share: float, **more) -> dict:
        return {"share": share, "threshold": 0.0, "noise": None, "rates": []} | more

    def greet(self, holdout: dict | None = None, secure: bool = False, **roles) -> dict:
        return self.columns(kept_out=holdout, secure=secure, **FEATURES | roles)

    def prepare(self, **change) -> dict:
        numbers = [{"kind": "number", "name": name, "shift": 0.0, "scale": 1.0, "fill": 0.0} | change
                   for name in ("age", "dose")]  # fmt: skip
        rules = {"schema": 1, "columns": numbers, "label": "ill", "labels": ["no", "yes"]}
        return self.say("prepare", rules=rules)

    def codes(self, **change) -> list[str]:
        """What the site says to the rules, to the greeting and to the join."""
        return [reply["code"] for reply in (self.prepare(**change), self.say("hello"), self.say("join"))]


def empty_one_cell(clerk: Clerk, column: str) -> None:
    """Take one patient's value of a column out of the file."""
    path = clerk.folder / "table.csv"
    head, first, *rest = path.read_text().splitlines()
    cells = first.split(",")
    cells[head.split(",").index(column)] = ""
    path.write_text("\n".join([head, ",".join(cells), *rest]) + "\n")


# --- refusals after acceptance ---


def test_a_stated_scale_does_not_tell_on_which_side_of_it_a_patient_is(tmp_path):
    """With a scale of 1e-308 a number overflowed exactly where |value − shift| was large: one exact bit for nothing."""
    clerk = Reader(tmp_path, PRIVATE, noisy=True)
    assert clerk.greet()["code"] == "ok"
    shifts = (0.0, 40.0, 78.0, 5000.0)
    for scale in (1e-308, 5e-324, 1e300, 0.0, -1.0, float("nan"), float("inf"), "1"):
        assert {clerk.prepare(scale=scale, shift=shift)["code"] for shift in shifts} == {"unknown"}, scale
    for wild in (1e101, float("-inf"), None):
        assert clerk.prepare(shift=wild)["code"] == clerk.prepare(fill=wild)["code"] == "unknown"
    for scale, wide in ((1e-100, 1e100), (1e-100, 40.0), (1e100, 40.0)):
        assert clerk.codes(scale=scale, shift=wide) == ["ok"] * 3
    assert clerk.spent == 0.0


def test_numbers_of_a_file_are_cut_before_anything_is_computed_with_them(tmp_path):
    clerk = Reader(tmp_path, PRIVATE, noisy=True)
    path = tmp_path / "table.csv"
    path.write_text(path.read_text().replace("patient-0,", "patient-0,1.7e308,", 1).replace(",isolation", "", 1))
    path.write_text(path.read_text().splitlines()[0] + "\n" + "\n".join(
        f"p{i},{'1.7e308' if i == 3 else 40 + i % 20},{'-1.7e308' if i == 4 else 1},east,f,{'yes' if i % 2 else 'no'}"
        for i in range(ROWS)) + "\n")  # fmt: skip
    assert clerk.greet()["code"] == "ok"
    assert clerk.codes(scale=1e-100, shift=-1e100) == ["ok"] * 3
    assert np.all(np.isfinite(clerk.site.arrays["x"]))


@pytest.mark.parametrize("missing", ["drop", "error"])
def test_the_rule_of_the_message_that_states_the_rules_does_not_tell_of_a_missing_value(tmp_path, missing):
    answers = []
    for name in ("whole", "without"):
        (tmp_path / name).mkdir()
        clerk = Reader(tmp_path / name, PRIVATE, noisy=True)
        if name == "without":
            empty_one_cell(clerk, "age")
        assert clerk.greet()["code"] == "ok"
        numbers = [{"kind": "number", "name": name} for name in ("age", "dose")]
        rules = {"schema": 1, "columns": numbers, "label": "ill", "labels": ["no", "yes"], "missing": missing}
        answers.append(clerk.say("prepare", rules=rules))
    assert answers[0] == answers[1]
    assert answers[0]["code"] == "ok"


def test_rules_about_other_columns_or_of_another_kind_are_refused(tmp_path):
    clerk = Reader(tmp_path, PRIVATE, noisy=True)
    assert clerk.greet()["code"] == "ok"
    for names, kind in ((["dose", "age"], "number"), (["age", "ill"], "number"), (["age"], "number")):
        copies = [{"kind": kind, "name": name} for name in names]
        rules = {"schema": 1, "columns": copies, "label": "ill", "labels": ["no", "yes"]}
        assert clerk.say("prepare", rules=rules)["code"] == "unknown"
    words = [{"kind": "category", "name": name, "levels": ["40"]} for name in ("age", "dose")]
    rules = {"schema": 1, "columns": words, "label": "ill", "labels": ["no", "yes"]}
    assert clerk.say("prepare", rules=rules)["code"] == "unknown"
    assert clerk.say("prepare", rules=rules | {"columns": [], "labels": ["no"]})["code"] == "unknown"


def test_a_group_that_the_rules_leave_out_does_not_stop_the_site(tmp_path):
    """It failed where the site had such a group, which masked runs do not tell."""
    clerk = Reader(tmp_path)
    assert clerk.greet(group="sex")["code"] == "ok"
    numbers = [{"kind": "number", "name": name} for name in ("age", "dose")]
    rules = {"schema": 1, "columns": numbers, "label": "ill", "labels": ["no", "yes"], "group": "sex", "groups": ["f"]}
    assert clerk.say("prepare", rules=rules)["code"] == "ok"
    assert set(clerk.site.arrays["group"]) == {-1.0, 0.0}


def test_a_column_with_few_values_is_told_as_one_without_any(tmp_path):
    clerk = Reader(tmp_path)
    path = tmp_path / "table.csv"
    lines = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text("\n".join(",".join(c if j != 1 or i < 5 else "" for j, c in enumerate(line))
                              for i, line in enumerate(lines)) + "\n")  # fmt: skip
    assert clerk.greet()["code"] == "ok"
    reply = clerk.sums(sums=("age", "dose"))
    assert reply["code"] == "ok"
    assert (reply["sums"]["count"]["age"], reply["sums"]["total"]["age"]) == (0, 0.0)
    assert reply["sums"]["count"]["dose"] == ROWS
    assert clerk.say("squares", means={"age": 50.0}, noise=None)["squares"] == {"age": 0.0}


def test_under_privacy_a_rare_word_is_no_reason_to_change_other_rows(tmp_path):
    """With one row less a word was rare, and its column became 0 in nineteen other rows too, whatever the policy."""
    arrays = []
    for east in (19, 20):
        (tmp_path / str(east)).mkdir()
        clerk = Reader(tmp_path / str(east), noisy=True)
        lines = ["name,age,dose,ward,sex,ill"]
        lines += [f"p{i},{30 + i % 40},1,{'east' if i < east else 'west'},f,{'yn'[i % 2]}" for i in range(ROWS)]
        (tmp_path / str(east) / "table.csv").write_text("\n".join(lines) + "\n")
        assert clerk.greet(features=["ward"], positive="y")["code"] == "ok"
        words = [{"kind": "category", "name": "ward", "levels": ["east", "west"]}]
        rules = {"schema": 1, "columns": words, "label": "ill", "labels": ["n", "y"]}
        assert clerk.say("prepare", rules=rules)["code"] == "ok"
        arrays.append(clerk.site.arrays["x"])
    assert np.sum(np.any(arrays[0] != arrays[1], axis=1)) == 1


def test_a_private_join_does_not_tell_whether_a_group_has_a_row(tmp_path):
    """A subset without rows was refused, and so was one with fewer than the policy's; both are counts."""
    caps = [fd.constraints.LossCap(at_most=0.9, where=fd.label(1))]
    honest = problem(constraints=caps)
    algorithm = fd.PrivateNewton(rounds=4)
    algorithm = make_private(algorithm, fd.Gaussian(epsilon=0.01, delta=1e-6, clip=1.0), None, honest, 4)
    algorithm = dataclasses.replace(algorithm, noise=dataclasses.replace(algorithm.noise, sampler="opendp"))
    codes = []
    for k, ill in enumerate((0, 1, 19, 20, ROWS)):
        arrays = rows()
        arrays["y"] = (np.arange(len(arrays["y"])) < ill).astype(float)
        (tmp_path / str(k)).mkdir()
        intruder = Intruder(tmp_path / str(k), algorithm, Policy(privacy=True), arrays=arrays, problem=honest)
        extra = {"cap0.cap": np.full(1, 0.9)}
        codes.append((intruder.hello(extra=extra)["code"], intruder.join(extra=extra)["code"]))
    assert set(codes) == {("ok", "ok")}


def test_a_private_join_does_not_evaluate_an_own_objective_at_the_servers_start():
    def objective(params, data):
        return data.mean(jnp.exp(data["x"] @ params))

    noisy_one = fd.FedAvg(k0=1, lr=0.1)
    for largest in (1.0, 800.0):
        x = np.eye(DIM) * largest
        terms = fd.Problem({"a": {"x": x}}, objective=objective).over(np.zeros(DIM)).terms
        noisy_one = make_private(fd.FedAvg(k0=1, lr=0.1), fd.Laplace(epsilon=1.0, clip=1.0), None, problem(), 4)
        data = agreement.checked_data("a", terms, noisy_one, {"x": x})
        np.testing.assert_array_equal(data["x"], x)


# --- rows that are held out ---


def numbers_of(clerk: Reader) -> tuple[int, ...]:
    assert clerk.site.tables is not None
    return tuple(clerk.site.tables.table.numbers.tolist())


def test_a_server_does_not_choose_which_rows_are_held_out(tmp_path):
    """By a seed of its choice it read values and labels of single patients from refusals and differences of sums."""
    trained = {}
    for site in ("here", "there"):
        (tmp_path / site).mkdir()
        clerk = Reader(tmp_path / site)
        for seed in range(4):
            assert clerk.greet(clerk.holdout(0.3, seed=seed))["code"] == "ok"
            trained.setdefault(site, set()).add(numbers_of(clerk))
        clerk.site = SiteSession("city", clerk.site.site, tmp_path / site / "site", clerk.notes.append)
        assert clerk.say("columns", run="r2", **clerk.plan(kept_out=clerk.holdout(0.3), **FEATURES))["code"] == "ok", (
            "another run, after a restart"
        )
        trained[site].add(numbers_of(clerk))
        assert (tmp_path / site / "site" / SECRET).stat().st_mode & 0o777 == 0o600
        shares = Holdout.from_json(clerk.holdout(0.3)).shares
        table = clerk.site.tables.source.table(clerk.site.tables.roles)
        guesses = {tuple(split(table, clerk.site.tables.roles, "city", dataclasses.replace(shares, seed=seed)).training
                         .numbers.tolist()) for seed in range(50)}  # fmt: skip
        assert not guesses & trained[site]
    assert len(trained["here"]) == len(trained["there"]) == 1
    assert trained["here"] != trained["there"]


@pytest.mark.parametrize("share", [0.3000001, 0.04, 0.51, 0.999, -0.1, 1, True, "0.3", float("nan")])
def test_only_a_few_shares_may_be_asked_for(tmp_path, share):
    clerk = Reader(tmp_path)
    reply = clerk.greet(clerk.holdout(share))
    assert reply["code"] in ("unknown", "policy")
    assert "whole hundredths" in reply["sentence"] or "the number nan" in reply["sentence"]


def test_a_difference_of_sums_is_about_no_fewer_rows_than_the_policy_allows(tmp_path):
    """Sums over all rows less those over the rows that train are sums over the rows that are held out."""
    clerk = Reader(tmp_path)
    reply = clerk.greet(clerk.holdout(0.19))
    assert (reply["code"], reply["sentence"]) == ("data", REFUSED)
    assert any("fewer than the 20" in line for line in clerk.notes)
    for share in (0.2, 0.35, 0.5):
        assert clerk.greet(clerk.holdout(share))["code"] == "ok"
        tables = clerk.site.tables
        assert min(tables.split.held_out.rows, tables.split.training.rows) >= 20
        assert clerk.greet(clerk.holdout(share), group="sex")["code"] == "ok"
        assert min(tables.split.held_out.rows, tables.split.training.rows) >= 20


def test_small_classes_do_not_round_a_part_below_the_policy(tmp_path):
    """Of ten rows 0.23 are two, and of fifteen three: class by class that makes 20 of 100."""
    clerk = Reader(tmp_path, Policy(min_subset=23), groups=("ward",))
    lines = ["name,age,dose,ward,sex,ill"]
    lines += [f"p{i},{30 + i % 40},1,{'abcd'[i // 25]},f,{'y' if i % 25 < 10 else 'n'}" for i in range(100)]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    assert clerk.greet(clerk.holdout(0.23), group="ward", positive="y")["code"] == "ok"
    assert clerk.site.tables.split.held_out.rows == 23


def test_the_least_number_of_rows_of_a_group_is_one_of_the_whole_file(tmp_path):
    """Over the rows that train, the share moved the refusal, and told how many rows a group has."""
    for east, code in ((19, "data"), (20, "ok"), (24, "ok"), (40, "ok")):
        folder = tmp_path / str(east)
        folder.mkdir()
        clerk = Reader(folder, groups=("ward",))
        lines = ["name,age,dose,ward,sex,ill"]
        lines += [f"p{i},{30 + i % 40},1,{'east' if i < east else 'west'},f,{'yn'[i % 2]}" for i in range(ROWS)]
        (folder / "table.csv").write_text("\n".join(lines) + "\n")
        statement = {
            clerk.greet(clerk.holdout(share), group="ward", positive="y")["code"] for share in (0.2, 0.3, 0.4, 0.5)
        }
        assert statement == {code}, east


# --- evaluation ---


def test_a_site_answers_one_question_about_one_model(tmp_path):
    """406 thresholds told the exact value and the label of 90 of 90 rows, for one model."""

    def forge(header, payload):
        yield header, payload
        for cut in (0.0, 0.25, "-inf", 1e-300):
            yield header | {"cut": cut}, payload
        yield header | {"again": 1}, payload
        ward.site[ward.names[0]].tables.evaluation = None  # as after a crash: what was asked is on the disk
        yield from past
        yield header | {"cut": 0.0}, payload
        yield header, payload

    past, kinds = [], ("columns", "sums", "squares", "prepare", "hello", "join")
    ward = Attack(tmp_path, HELD, forge)
    real = ward.ask

    def ask(messages, timeout):
        if (name := ward.names[0]) in messages and packing.unseal(messages[name])[0]["ask"] in kinds:
            past.append(packing.unseal(messages[name]))
        return real(messages, timeout)

    ward.ask = ask
    ward.play()
    codes = [a["code"] for a in ward.answers if a["ask"] == "evaluate"]
    assert codes == ["ok", *["policy"] * 5, "policy", "ok"]
    assert ward.answers[1]["sentence"] == "it answers one question about a model in a run, and was asked another"


def held_out() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    return draw.normal(size=(40, DIM)), (np.arange(40) % 2).astype(float)


def test_one_row_without_a_score_does_not_empty_the_sums_of_all():
    """w = (1e308, −1e308, …) made the score of a chosen row NaN, and the sum of all, which was told as 0 + noise."""
    terms, w = problem().terms, np.array([1.0, -1.0, 1.0])
    X, y = held_out()
    other = X.copy()
    other[5] = [np.inf, np.inf, 0.0]  # the products that a model of such a size has with this row
    with np.errstate(over="ignore", invalid="ignore"):
        one, two = (noisy.exact_parts(terms, w, (rows, y), Rule()) for rows in (X, other))
    for part in noisy.parts_of(terms):
        assert np.all(np.isfinite(one[part.name]) & np.isfinite(two[part.name])), part.name
        assert np.sum(np.abs(one[part.name] - two[part.name])) <= part.change[0] + 1e-9


def test_under_privacy_a_large_model_is_refused_by_its_numbers_alone(tmp_path):
    terms, (X, y) = problem().terms, held_out()
    agreed_terms = Holdout.from_json({"share": 0.3, "noise": {"epsilon": 0.5, "delta": 0.0}})
    pytest.importorskip("opendp")
    for rows_ in (X, X * 1e-12):
        evaluation = SiteEvaluation((rows_, y), (rows_[:0], y[:0]), agreed_terms, "", Policy())
        for k, w in enumerate(([1e308, -1e308, 0.0], [2e6, 0.0, 0.0], [np.nan, 0.0, 0.0])):
            with pytest.raises(Refusal, match="beyond 1e"):
                evaluation.evaluate({}, np.array(w).tobytes(), terms, tmp_path / f"{k}.json")
        assert evaluation.evaluate({}, np.full(DIM, 1e6).tobytes(), terms, tmp_path / "record.json").releases


# --- numbers that break a sensitivity ---


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"penalty": fd.penalties.Ridge(5.6e14)}, "penalty.mu is 5.6e+14"),
        ({"penalty": fd.penalties.Ridge(float("inf"))}, "penalty.mu is inf"),
        ({"lr": 1.7e308}, "plain.lr is 1.7e+308"),
        ({"lr": 1e-300}, "plain.lr is 1e-300"),
        ({"noise": fd.Laplace(epsilon=0.25, clip=1e300)}, "clip is 1e+300"),
        ({"noise": fd.Laplace(epsilon=0.25, clip=1e-300)}, "clip is 1e-300"),
        ({"noise": fd.Laplace(epsilon=0.25, clip=1.0, rows=1e200)}, "rows is 1e+200"),
        ({"loss": fd.losses.Huber(1e-200)}, "loss.eps is 1e-200"),
        ({"loss": fd.losses.Custom(fd.losses.signed, max_curvature=1e-30)}, "max_curvature is 1e-30"),
    ],
)
def test_a_number_outside_its_range_is_refused_for_itself(tmp_path, change, field):
    algorithm = private(change.get("noise"), **{"lr": change["lr"]} if "lr" in change else {})
    agreed_terms = dataclasses.replace(problem().terms, **{k: v for k, v in change.items() if k in ("penalty", "loss")})
    intruder = Intruder(tmp_path, algorithm, problem=problem(), stated=agreed_terms)
    (tmp_path / "data.npz").unlink()
    reply = intruder.hello()
    assert reply["code"] == "policy", "no data are looked at for it"
    assert field in reply["sentence"]


def test_arrays_that_come_with_the_terms_have_a_range_too(tmp_path):
    intruder = Intruder(tmp_path, private())
    for number, wild in enumerate((1e300, np.nan, np.inf)):
        run, extra = f"r{number}", {"cap0.cap": np.full(1, wild)}
        assert intruder.hello(run, extra)["code"] == "ok"
        reply = intruder.join(run, extra)
        assert (reply["code"], "beyond 1e+06" in reply["sentence"]) == ("unknown", True)


def test_a_curvature_that_an_experiment_states_is_not_taken_as_proved(tmp_path):
    """A release of three steps then moved further than was charged: the curvature may be anything."""
    steep = fd.losses.Custom(fd.losses.signed, max_curvature=1e-6)
    algorithm = private(fd.Laplace(epsilon=0.25, clip=1.0, rows=1.0), k0=3)
    agreed_terms = dataclasses.replace(problem().terms, loss=steep)
    intruder = Intruder(tmp_path, algorithm, problem=problem(), stated=agreed_terms)
    reply = intruder.hello()
    assert (reply["code"], "nobody has proved" in reply["sentence"]) == ("policy", True)
    with pytest.raises(fd.FoedusError, match="nobody has proved"):
        algorithm.fit(problem(loss=fd.losses.Custom(lambda z, y: (z - y) ** 4, max_curvature=1e-6)))
    private(k0=1).fit(problem(loss=fd.losses.Custom(lambda z, y: (z - y) ** 4)))  # clipping alone gives this bound


@pytest.mark.parametrize("examples", [0, -5])
def test_a_number_of_examples_that_no_run_has_is_refused(examples):
    """A negative one made σ negative, and the steps of FedGiA no mixtures any more."""
    quiet = fd.Gaussian(epsilon=1.0, delta=1e-5, clip=1.0, rows=1.0, sampler="opendp")
    agreed_terms = PrivateGiA(plain=fd.FedGiA(), noise=quiet, examples=examples)
    with pytest.raises(Refusal, match="needs the number of all examples"):
        agreement.fitting(agreed_terms, problem().terms)


def test_noise_of_another_module_is_no_noise_with_a_proof():
    weak = make_private(fd.FedAvg(k0=1, lr=0.1), Weak(epsilon=1.0, clip=1.0, sampler="opendp"), None, problem(), 4)
    with pytest.raises(Refusal, match="Weak is no noise of foedus"):
        agreement.fitting(weak, problem().terms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weak(fd.Laplace):
    """Laplace noise with less noise than it says."""


@pytest.mark.parametrize("missing", ["drop", "error"])
def test_under_privacy_an_emptied_cell_changes_neither_the_number_of_rows_nor_the_answer(tmp_path, missing):
    """A row that is left out changes the divisor, the split and the count: it is not one row that is replaced."""
    answers = []
    for name in ("whole", "without"):
        (tmp_path / name).mkdir()
        clerk = Reader(tmp_path / name, PRIVATE, noisy=True)
        if name == "without":
            empty_one_cell(clerk, "age")
        answers.append(clerk.greet(missing=missing))
        assert clerk.greet()["code"] == "ok"
        assert clerk.site.tables.table.rows == ROWS
    assert answers[0] == answers[1]
    assert answers[0]["code"] == "policy"
    assert "write missing = 'mean'" in answers[0]["sentence"]


def test_a_simulation_under_privacy_leaves_no_rows_out_either():
    sites = {
        "a": {"x": [1.0, None, 3.0, 4.0], "ill": [0, 1, 0, 1]},
        "b": {"x": [1.0, 2.0, 3.0, 4.0], "ill": [0, 1, 0, 1]},
    }
    ready = fd.data.prepare(sites, label="ill", missing="drop")
    with pytest.raises(fd.FoedusError, match="prepare them with missing='mean'"):
        fd.solve(fd.Problem(ready, loss=fd.losses.logistic), fd.FedAvg(k0=1, lr=0.1), privacy=fd.Local(epsilon=1.0))


@dataclasses.dataclass(frozen=True)
class Cubic(fd.penalties.Penalty):
    """A penalty of one's own, whose gradient no curvature bounds."""

    def size(self, w):
        return jnp.abs(w) ** 3


def test_a_penalty_of_ones_own_has_no_bound_on_its_rounding():
    with pytest.raises(fd.FoedusError, match="takes a penalty of fd"):
        private().fit(problem(penalty=Cubic(1.0)))


@pytest.mark.parametrize("missing", ["drop", "error"])
def test_an_experiment_file_under_privacy_fills_missing_values_in(missing):
    with pytest.raises(fd.FoedusError, match="must not depend on what is in them"):
        build.privacy_of({"privacy": {"noise": None, "epsilon": 1.0}, "data": {"missing": missing}})


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(2.0**53, 2.0**53 + 2), (-1e100, 1e100), (0.0, 1e-100), (1e15, 1e15 + 0.25), (-3.0, 4.0)]),
    st.integers(1, 3000), st.integers(0, 2**32), st.sampled_from(["low", "high", "missing", "middle"]),
)  # fmt: skip
def test_noisy_sums_move_by_no_more_than_is_declared_whatever_the_bounds(ends, n, seed, what):
    """Near 2^53 a sum of a thousand numbers was rounded to 1,024 where replacing a row moves it by 2."""
    draw = np.random.default_rng(seed)
    low, high = ends
    x = low + (high - low) * draw.random(n)
    other = x.copy()
    other[draw.integers(n)] = {"low": low, "high": high, "missing": np.nan, "middle": 0.5 * low + 0.5 * high}[what]
    statement = []
    for values in (x, other):
        sums: list[float] = []
        quiet = FigureNoise({"x": ends}, 1.0, 1, lambda value, scale, sums=sums: sums.append(value) or value)
        replies = Replies(Table("t", {"x": values}, np.arange(n)), quiet)
        replies.first(FiguresRequest(("x",), (), ()))
        replies.second({"x": min(max(low + 0.3 * (high - low), low), high)})
        statement.append(sums)
    # in units of what a row can add, which are multiplied after the noise; no rounding, so no tolerance
    for one, two in zip(*statement, strict=True):
        assert abs(one - two) <= 1.0
        assert (one * UNIT).is_integer()


def test_what_gets_the_noise_is_exact_near_the_last_bit_of_a_float():
    releases = []
    for last in (2.0**53, 2.0**53 + 2):
        values = np.append(np.tile([2.0**53, 2.0**53 + 2], 500), last)
        quiet = FigureNoise({"x": (2.0**53, 2.0**53 + 2)}, 1.0, 1, lambda value, scale: releases.append(value) or value)
        Replies(Table("t", {"x": values}, np.arange(1001)), quiet).first(FiguresRequest(("x",), (), ()))
    assert releases == [1001.0, 500.0, 1001.0, 501.0]


def test_bounds_outside_their_range_are_refused(tmp_path):
    clerk = Clerk(tmp_path, PRIVATE, noisy=True)
    assert clerk.columns()["code"] == "ok"
    for ends in ([-1.7e308, 1.7e308], [0.0, 5e-324], [0.0, float("nan")], [3.0, 3.0]):
        statement = noise(0.1) | {"bounds": {"age": ends}}
        assert clerk.sums(sums=("age",), noise=statement)["code"] == "unknown"
    for wild in ({"epsilon": 1e-320}, {"epsilon": 1e300}, {"figures": 10**18}, {"figures": 1.5}):
        assert clerk.sums(sums=("age",), noise=noise(0.1) | wild)["code"] == "unknown"
    assert clerk.sums(sums=("age",), noise=noise(0.1))["code"] == "ok"
    assert clerk.say("squares", means={"age": 1e200}, noise=noise(0.1))["code"] == "unknown"


def test_where_numbers_may_overflow_noise_alone_is_sent():
    terms, count, start = problem().terms, jnp.asarray(60.0), jnp.asarray(1.0)
    quiet = fd.Laplace(epsilon=1.0, clip=1.0, rows=1e9)
    few, many = (sensitivity.several_steps(terms, quiet, count, [jnp.asarray(1e9)] * k, start) for k in (2, 40))
    assert np.isfinite(few)
    assert not np.isfinite(many)
    weights = [jnp.asarray(weight) for weight in (1.0, 1e-200)]
    few, many = (sensitivity.exact_penalty_rounding(terms, quiet, count, 3, start, start, w, 0.1) for w in weights)
    assert np.isfinite(few)
    assert not np.isfinite(many)
    steep = fd.FedEPM(k0=1, rho=1.0, eta=0.3, lam=0.05, mu0=1e5, per_example=False, alpha=1e9, stop=None, noise=quiet)
    steep, data = dataclasses.replace(steep, c=0.0), problem().client(0)
    for round, is_finite in ((5, True), (32, False)):  # the weight of the 33rd round is 1e302
        server = dataclasses.replace(steep.init(terms, jnp.zeros(DIM), None), round=jnp.asarray(round))
        message = message_for(steep.broadcast(terms, server, jnp.zeros(3)), 0)
        client, _ = steep.local(terms, steep.join(terms, data, server.w), message, data, jax.random.key(0))
        assert np.isfinite(client.spent.sensitivity) == is_finite
    replies = np.asarray(quiet.release(jnp.full(3, 7e9), quiet.scale(jnp.asarray(np.inf)), jax.random.key(0)))
    assert np.all(np.abs(replies) < 1e3)


def test_a_row_of_zeros_with_an_infinite_slope_adds_nothing():
    terms = problem().terms
    quiet = fd.Laplace(epsilon=1.0, clip=1e9)
    data = fd.Data({"x": jnp.zeros((3, 3)), "y": jnp.full(3, 1e100), "weight": jnp.ones(3)})
    for slope in (jnp.inf, -jnp.inf, jnp.nan):
        loss = fd.losses.Custom(lambda z, y, slope=slope: slope * (z + y))
        g = clipped_gradient(dataclasses.replace(terms, loss=loss), jnp.zeros(3), data, quiet)
        assert np.all(np.asarray(g) == 0.0)


# --- the bounds at the ends of the ranges ---

EXAMPLES, STEPS = 6, 3
ENDS = (1e-15, 1e-6, 1.0, 1e6, 1e9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bare(fd.Gaussian):
    """Noise that is accounted for and not drawn; what is released is the increment alone."""

    def release(self, value, scale, key):
        return value

    def beside(self, w, increment):
        return increment


@dataclasses.dataclass(frozen=True, kw_only=True)
class BareInOneNorm(fd.Laplace):
    """The same in the 1-norm."""

    def release(self, value, scale, key):
        return value

    def beside(self, w, increment):
        return increment


def with_fields(thing, **fields):
    """A copy with fields that are traced, so that one compiled program serves all numbers."""
    copies = object.__new__(type(thing))
    for name, value in (vars(thing) | fields).items():
        object.__setattr__(copies, name, value)
    return copies


ALGORITHMS = {
    "one step": (1, lambda n, k: PrivateDescent(plain=with_fields(fd.FedAvg(k0=1, lr=1.0), lr=k), noise=n)),
    "one step, 2-norm": (2, lambda n, k: PrivateDescent(plain=with_fields(fd.FedAvg(k0=1, lr=1.0), lr=k), noise=n)),
    "several steps": (1, lambda n, k: PrivateDescent(plain=with_fields(fd.FedProx(k0=3, steps=1, lr=1.0), lr=k, mu=k),
                                                     noise=n)),
    "FedGiA": (2, lambda n, k: PrivateGiA(plain=with_fields(fd.FedGiA(k0=3, alpha=1.0, t=1.0), t=k), noise=n,
                                          examples=3 * EXAMPLES)),
    "FedEPM": (1, lambda n, k: with_fields(fd.FedEPM(k0=3, rho=1.0, eta=0.3, lam=0.05, mu0=1.0, stop=None, c=0.0,
                                                     noise=n), mu0=k, lam=k)),
}  # fmt: skip


def player(name: str):
    """What a client sends without noise in two rounds, and the sensitivity that it is charged for."""
    order, make = ALGORITHMS[name]
    quiet = BareInOneNorm(epsilon=1.0, clip=1.0, rows=1.0) if order == 1 else Bare(
        epsilon=1.0, delta=1e-5, clip=1.0, rows=1.0)  # fmt: skip
    blank = fd.Problem([(np.zeros((EXAMPLES, DIM)), np.zeros(EXAMPLES))] * 3, loss=fd.losses.logistic)

    @jax.jit
    def play(numbers, x, y, models):
        mu, k, clip, row_bound = numbers
        penalty = with_fields(fd.penalties.Ridge(1.0), mu=mu)
        terms = with_fields(blank.terms, penalty=penalty)
        algorithm = make(with_fields(quiet, clip=clip, rows=row_bound), k)
        data = fd.Data({"x": x, "y": y, "weight": jnp.ones(EXAMPLES)})
        client, replies = algorithm.join(terms, data, models[0]), []
        for t, w in enumerate(models):
            server = dataclasses.replace(algorithm.init(terms, models[0], None), w=w, round=jnp.asarray(t))
            message = message_for(algorithm.broadcast(terms, server, jnp.zeros(3)), 0)
            client, reply = algorithm.local(terms, client, message, data, jax.random.key(0))
            replies.append((reply.z, client.spent.sensitivity))
        return replies

    return order, play


@pytest.mark.parametrize("name", ALGORITHMS)
def test_at_the_ends_of_the_ranges_a_release_moves_no_further_than_is_charged(name):
    """A ridge of 5.6e14 pushed the mean gradient to the last bits of a float, where one label could be told."""
    order, play = player(name)
    tight = []

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(
        st.tuples(*[st.sampled_from((*ENDS, 0.0))], *[st.sampled_from(ENDS)] * 3), st.booleans(),
        st.sampled_from([0.0, 1.0, 1e3, 1e6]), st.sampled_from([1e-3, 1.0, 1e3, 1e100]), st.integers(0, 2**32),
    )  # fmt: skip
    def neighbours_stay_near(numbers, at_the_last_bit, size, length, seed):
        mu, k, clip, row_bound = numbers
        if at_the_last_bit:  # of the penalty's gradient: an example moves it by a part of that bit, or by all of it
            clip = float(np.clip(0.6 * np.spacing(mu / EXAMPLES * size), 1e-15, 1e9))
        numbers = mu, k, clip, row_bound
        draw = np.random.default_rng(seed)
        x, y = length * draw.normal(size=(EXAMPLES, DIM)), draw.integers(2, size=EXAMPLES).astype(float)
        other_x, other_y, j = x.copy(), y.copy(), draw.integers(EXAMPLES)
        other_x[j], other_y[j] = (x[j], 1.0 - y[j]) if seed % 2 else (draw.normal(size=DIM), y[j])
        models = np.clip(size * draw.choice([-1.0, 1.0], size=(2, DIM)) * draw.uniform(0.9, 1.0, (2, DIM)), -1e6, 1e6)
        for (z, bound), (other, same) in zip(
            play(numbers, x, y, models), play(numbers, other_x, other_y, models), strict=True
        ):
            assert bound == same or not np.isfinite(bound)
            if np.isfinite(bound):
                moved = float(np.linalg.norm(np.asarray(z - other), order))
                assert moved <= float(bound) * (1 + 1e-9)
                tight.append(moved / float(bound))

    neighbours_stay_near()
    assert max(tight) > 0.3, "a bound that nothing comes near is idle"


@pytest.mark.parametrize("what", ["moments", "look"])
def test_at_the_last_bits_of_a_heavy_penalty_no_part_of_private_newton_moves_further(what):
    terms = problem(penalty=fd.penalties.Ridge(1e9)).terms
    count, root, tight = jnp.asarray(float(EXAMPLES)), 1e3 * jnp.eye(DIM), []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        w = jnp.asarray(1e6 * draw.choice([-1.0, 1.0], DIM) * draw.uniform(0.9, 1.0, DIM))
        last_bit = np.spacing(1e9 / EXAMPLES * (4.0 if what == "moments" else 1e9)) * draw.uniform(0.1, 1.0)
        quiet = fd.Gaussian(epsilon=1.0, delta=1e-5, clip=last_bit)
        limits = private_newton.Limits(last_bit, last_bit**0.5, (2.0, 4.0))
        x, y = draw.normal(size=(EXAMPLES, DIM)), draw.integers(2, size=EXAMPLES).astype(float)
        releases = []
        for one in (x, np.vstack([draw.normal(size=(1, DIM)), x[1:]])):
            data = fd.Data({"x": jnp.asarray(one), "y": jnp.asarray(y), "weight": jnp.ones(EXAMPLES)})
            if what == "moments":
                releases.append(private_newton.moments(terms, data, quiet, limits.length))
                bound = private_newton.moments_change(terms, quiet, limits.length, count)
            else:
                releases.append(private_newton.look(terms, w, root, data, quiet, limits, True)[0])
                blocks = private_newton.Blocks.of(terms)
                bound = private_newton.look_change(terms, quiet, limits, blocks, count, w, root)
        tight.append(float(jnp.linalg.norm(releases[0] - releases[1]) / bound))
    assert 0.0 < max(tight) <= 1.0


def test_a_table_without_the_label_column_is_refused_once_and_for_all(tmp_path):
    """What a file is as a whole may be told at the first message; no share and no subset moves it."""
    clerk = Reader(tmp_path, PRIVATE, noisy=True)
    path = Path(clerk.folder / "table.csv")
    path.write_text(path.read_text().replace(",ill\n", ",fallen\n", 1))
    statement = [clerk.greet(clerk.holdout(share, noise={"epsilon": 0.1, "delta": 0.0})) for share in (0.2, 0.3, 0.5)]
    assert {reply["code"] for reply in statement} == {"data"}
