"""A federation over files: the simulator's answers, every fault of a file, few exchanges, small files."""

import ast
import json
import os
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from cases import CASES, ROBUST, properties
from cases import problem as five
from couriers import CourierHall, CourierWard
from halls import agree
from hospitals import CENTRAL
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_halls import COORDINATOR as PROJECT

import foedus as fd
from foedus.app.experiment.courier import exchanges_of
from foedus.app.experiment.remote import run_of
from foedus.app.report import leaving
from foedus.base.errors import FoedusError
from foedus.data.preprocess import Preprocessing
from foedus.federation.courier.coordinator import CourierPlan
from foedus.federation.courier.file import ANSWER, COORDINATOR, CourierFile, Unreadable, arrays_of
from foedus.federation.courier.site import CourierSite
from foedus.federation.names import RUNS
from foedus.federation.plan import Request
from foedus.federation.site import SiteSession
from foedus.federation.site_ledger import SiteLedger
from foedus.numerics.interpreter.random_bits import random_key
from foedus.privacy.releasing import make_private
from foedus.protocol.algorithm import name_of
from foedus.statistics.evaluate import Evaluation
from foedus.sums.identity import COORDINATOR as ROLE
from foedus.sums.identity import is_signed_by

pytest.importorskip("cryptography")

SITES = tuple(f"site-{k + 1}" for k in range(5))
NUMBERS = ("age", "blood_pressure", "creatinine", "previous_stays")
STUDY = """
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
[problem]
loss = "logistic"
penalty = { name = "Ridge", mu = 0.01, per_example = false }
[algorithm]
name = "InteriorPoint"
[run]
max_rounds = 10
[evaluate]
holdout = 0.25
"""
NAMED = STUDY.replace("[problem]", f"features = {json.dumps(NUMBERS)}\n[problem]", 1)
CAP = '[[constraints]]\ntype = "LossCap"\nwhere = "label yes"\nat_most = 0.6\n'
SUMMARY = '[summary]\nerrors = "hessian"\n'
CAPPED = NAMED + CAP + SUMMARY  # scaling, logistic regression, a cap at every site, held-out figures, coefficients
NEYMAN_PEARSON = CAPPED.replace('loss = "logistic"', 'loss = "logistic"\nwhere = "label no"')


@pytest.fixture
def draws_of_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiteSession, "_own_key", lambda session, run: random_key(0))


# --- the same answers ---

NOT_HERE = ("CentralProxAL",)  # works on all data in one place


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in [*CASES, *ROBUST] if name not in NOT_HERE])
def test_the_iterates_are_the_simulators(tmp_path, name, draws_of_the_simulator):
    case = (CASES | ROBUST)[name][0]
    problem = five(case.problem)
    run = fd.solve(problem, case.algorithm, max_rounds=4)
    hall = CourierHall.of(tmp_path, problem, case.algorithm, max_rounds=4)
    result = hall.play()
    agree(run, result)
    assert hall.exchanges == 2 + run.rounds  # hello; then each round with what comes before it; then the certificate
    assert name_of(case.algorithm) == name


@pytest.mark.slow
def test_a_site_that_is_not_drawn_is_not_asked(tmp_path):
    participation = fd.Fraction(0.6, dropout=0.2)
    run = fd.solve(five(), fd.FedAvg(k0=2), max_rounds=4, participation=participation)
    hall = CourierHall.of(tmp_path, five(), fd.FedAvg(k0=2), max_rounds=4, participation=participation)
    agree(run, hall.play())
    assert any(len(one["sites"]) < 5 for one in hall.plan.exchanges)


def test_a_site_that_is_silent_for_an_exchange_does_not_stop_the_others_where_the_method_allows_it(tmp_path):
    hall = CourierHall.of(tmp_path, five(), fd.FedAvg(k0=2), patience={"minimum": 3}, max_rounds=3)

    def carry(*names: str) -> None:
        for name in names:
            hall.answer(name)

    carry(*SITES)
    hall.next()
    carry(*SITES)
    hall.next()  # the first round is over
    carry(*SITES)
    path = next(hall.plan.place("site-1").glob("*003-from*"))
    path.rename(tmp_path / path.name)  # the second is on its way for long
    assert hall.next().missing == ("site-1",)
    assert hall.next(without=["site-1"]).written
    (tmp_path / path.name).rename(path)
    assert "it comes too late: the run went on without 'site-1' in exchange 3" in "".join(hall.next().lines)
    result = hall.play()
    who = np.ones((3, 5), bool)
    who[1, 0] = False
    run = fd.solve(five(), fd.FedAvg(k0=2), max_rounds=3, participation=who)
    np.testing.assert_allclose(result.conclusion.w, run.w, rtol=0, atol=1e-9)
    assert result.history["answered"].tolist() == [5, 4, 5]


def test_what_needs_every_site_says_so(tmp_path):
    hall = CourierHall.of(tmp_path, five(), fd.FedAvg(k0=2), patience={"minimum": 3}, max_rounds=3)
    for name in SITES[1:]:
        hall.answer(name)
    hall.next()
    with pytest.raises(FoedusError, match="this exchange needs the answers of all sites, and site-1 has not answered"):
        hall.next(without=["site-1"])


# --- few exchanges, small files ---


def carried(ward: CourierWard) -> list[CourierFile]:
    """All files of a run, down and up."""
    files = []
    for number, exchange in enumerate(ward.plan.exchanges, start=1):
        for name in exchange["sites"]:
            answer = ward.plan.answer(number, name)
            assert answer is not None
            files += [ward.plan.question(number, name), answer]
    return files


def test_a_certified_model_under_a_cap_takes_at_most_twelve_exchanges_and_says_so_beforehand(tmp_path):
    ward = CourierWard(tmp_path, NEYMAN_PEARSON, fifth=True)
    assert isinstance(ward.plan.work, Request)
    assert exchanges_of(ward.plan.work).most == 12
    result = ward.play()
    assert ward.exchanges <= 12
    assert ward.lines == []
    end = result.conclusion
    assert end.certificate.holds(1e-6, 1e-6)
    assert len(end.certificate.rows) == 5
    last = ward.plan.question(ward.exchanges, "city")
    assert [one.header["ask"] for one in last.messages] == ["measure", "errors", "evaluate"]
    table = run_of(ward.plan.work.plan, Preprocessing.from_json(result.rules), result, ward.plan.work).coefficients
    assert table is not None
    assert [row.name for row in table.rows] == [*NUMBERS, "(intercept)"]
    assert all(row.error > 0 for row in table.rows)
    assert result.evaluation is not None
    assert 70 <= Evaluation.from_json(result.evaluation).total <= 80  # a quarter of 300 rows, class by class
    assert max(len(one.content) for one in carried(ward)) < 5000


def test_a_question_that_was_asked_ahead_and_does_not_fit_is_asked_again(tmp_path):
    ward = CourierWard(tmp_path, NAMED.replace('["age"', '["ward"'))
    assert "one more where a feature" in str(exchanges_of(ward.plan.work))
    inbox = ward.site["city"].look(ward.plan.place("city"), "city", ward.project)
    assert inbox.question is not None
    preview = ward.site["city"].preview(inbox.question)
    assert (preview.ahead, preview.refusals, preview.reasons) == (("sums",), (), ())
    assert "comes again when they are known" in "".join(leaving.lines(preview))
    for name in ward.names:
        ward.answer(name)
    assert not ward.next().refused
    assert [one.header["ask"] for one in ward.plan.question(2, "city").messages] == ["sums"]
    assert ward.answer("city") is not None


def test_an_officer_reads_why_the_site_refuses_and_the_coordinator_does_not(tmp_path):
    ward = CourierWard(tmp_path, NAMED)
    inbox = ward.site["city"].look(ward.plan.place("city"), "city", ward.project)
    assert inbox.question is not None
    path = tmp_path / "hospitals/city.csv"
    path.write_text(path.read_text().replace("yes", "maybe", 1).replace("age", "years", 1))
    preview = ward.site["city"].preview(inbox.question)
    assert preview.refusals
    assert preview.reasons
    assert all(f"says: {line}" in "".join(leaving.lines(preview)) for line in preview.reasons)
    answer = ward.answer("city")
    assert answer is not None
    reply = b"".join(one.content for one in CourierFile.read(answer.read_bytes()).messages)
    assert b"its own log says why" in reply or b"it has no column 'age'" in reply
    assert b"maybe" not in reply


@pytest.mark.slow
def test_a_model_without_terms_takes_at_most_nine_exchanges(tmp_path):
    ward = CourierWard(tmp_path, NAMED.replace("max_rounds = 10", "max_rounds = 7"), fifth=True)
    assert exchanges_of(ward.plan.work).most == 9
    result = ward.play()
    assert result.conclusion.converged
    assert ward.exchanges <= 9


def wide(rows: int = 120, dim: int = 30) -> fd.Problem:
    draw = np.random.default_rng(0)
    centre = draw.normal(size=dim) / 4
    sites = {}
    for k in range(5):
        X = draw.normal(size=(rows, dim))
        sites[f"s{k}"] = (X, (X @ centre + draw.logistic(size=rows) > 0).astype(float))
    cap = fd.constraints.LossCap(fd.label(1), 0.6)
    return fd.Problem(sites, loss=fd.losses.logistic, constraints=[cap])


@pytest.mark.slow
@pytest.mark.parametrize(("secure", "most"), [(False, 30_000), (True, 100_000)], ids=["plain", "masked"])
def test_files_of_thirty_columns_have_at_most_a_hundred_kilobytes(tmp_path, secure, most):
    hall = CourierHall.of(tmp_path, wide(), fd.InteriorPoint(), {"secure_min": 3}, max_rounds=1, secure=secure)
    hall.play()
    assert max(len(one.content) for one in carried(hall)) < most


# --- masks, and noise ---


NOISY = CENTRAL.replace('"PrivateNewton"', '"FedAvg"\nk0 = 1').replace("secure = true", "secure = true\nmax_rounds = 2")


@pytest.mark.parametrize(
    "text", [NOISY, pytest.param(CENTRAL, marks=pytest.mark.slow)], ids=["FedAvg", "PrivateNewton"]
)
def test_a_private_masked_model_by_courier_spends_what_was_stated_at_every_site(tmp_path, text):
    policy = {"privacy": True, "max_epsilon_total": 30.5, "max_delta": 1e-5, "secure_min": 3}
    ward = CourierWard(tmp_path, text, policy)
    ward.restarts = ("city",)  # whose answers each come from a new process: keys and noise survive on the disk
    result = ward.play()
    assert np.all(np.isfinite(result.conclusion.w))
    rounds = len(result.history["phase"])
    for name in ward.names:
        ledger = SiteLedger(ward.home(name) / RUNS)
        assert len(ledger.lines) == rounds
        assert 0 < ledger.total(1e-5) <= 30.0 * (1 + 1e-9)
    masked = [m for one in carried(ward) if one.kind == ANSWER for m in one.messages if m.header["ask"] == "round"]
    assert masked
    assert all(part["name"] == "the answer, under masks" for one in masked for part in one.arrays)
    assert ward.exchanges <= exchanges_of(ward.plan.work).most


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_masked_model_under_a_cap_takes_the_exchanges_that_the_plan_has_said(tmp_path):
    text = NEYMAN_PEARSON.replace("max_rounds = 10", "max_rounds = 12\nsecure = true")
    ward = CourierWard(tmp_path, text, {"secure_min": 3}, fifth=True)
    ward.restarts = ("harbour",)
    result = ward.play()
    assert result.conclusion.certificate.holds(1e-6, 1e-6)
    said, unplayed = exchanges_of(ward.plan.work), 12 - len(result.history["phase"])
    assert ward.exchanges == said.most - said.passes * unplayed
    assert result.evaluation is not None
    assert result.errors is not None


# --- any system, and nothing of FLARE ---


def imported_at_start(module: str, seen: set[str]) -> set[str]:
    """The modules that are imported when this one is, beside foedus, and those of foedus on the way."""
    path = Path(fd.__file__).parent.parent / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        return set()
    seen.add(module)
    others = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        for name in names:
            if name.startswith("foedus"):
                others |= imported_at_start(name, seen) if name not in seen else set()
            else:
                others.add(name.split(".")[0])
    return others


def test_the_courier_needs_no_flare_and_nothing_of_one_system_alone():
    seen: set[str] = set()
    others = set[str]()
    for module in ("federation.courier.site", "federation.courier.coordinator", "app.commands.courier",
                   "app.experiment.courier", "app.report.leaving"):  # fmt: skip
        others |= imported_at_start(f"foedus.{module}", seen)
    assert {"numpy", "jax"} <= others
    assert not others & {"nvflare", "torch", "psutil", "fcntl", "pwd", "resource", "multiprocessing"}
    for module in seen:
        if "courier" in module:
            path = Path(fd.__file__).parent.parent / Path(*module.split("."))
            text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
            assert not re.search(r"os\.(fork|kill|getuid|geteuid)|signal\.", text), module


# --- one file format ---


def test_a_file_can_be_read_without_foedus(tmp_path):
    """By the code of docs/howto/courier.md, which needs the standard library and NumPy."""
    page = (Path(__file__).parents[2] / "docs/howto/courier.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert "foedus" not in "".join(re.findall(r"^(?:import|from) .*$", code, re.MULTILINE))
    names: dict = {}
    exec(compile(code, "courier.md", "exec"), names)
    answer = undisturbed().answer
    path = tmp_path / answer.name
    path.write_bytes(answer.content)
    header, arrays = names["read"](path)
    assert (header["from"], header["to"], header["exchange"], header["run"]) == ("site-1", COORDINATOR, 2, "r1")
    assert header["answers"] == answer.answers
    number, message = next((k, one) for k, one in enumerate(answer.messages) if one.header["ask"] == "round")
    ours = dict(zip([one["name"] for one in message.arrays], arrays_of(message), strict=True))
    assert ours["view.g"].shape == (4,)  # the gradient, by the name that it has in the algorithm
    for array, values in ours.items():
        np.testing.assert_array_equal(arrays[number, array], values)


EXAMPLE = CourierFile("question", "r1", "0" * 64, 1, COORDINATOR, "north").signed(PROJECT)


@properties
@given(at=st.integers(0, len(EXAMPLE.content) - 1), change=st.integers(1, 255))
def test_a_changed_byte_makes_a_file_unreadable_or_unsigned(at, change):
    content = bytearray(EXAMPLE.content)
    content[at] ^= change
    try:
        one = CourierFile.read(bytes(content))
    except Unreadable:
        return
    is_signed = is_signed_by(ROLE, "", PROJECT.certificate, PROJECT.root, one.statement, one.signature)
    assert not is_signed or one.header == EXAMPLE.header  # digits of a signature may be capitals


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c[:-9], "cut short"),
        (lambda c: c[:40], "changed or cut short"),
        (lambda c: c.replace(b"courier 1", b"courier 7", 1), "of version 7 of the file format"),
        (lambda c: c.replace(b"\n", b"\r\n"), "carried as text, which changes line ends"),
        (lambda c: c + b"more", "cut short"),
        (lambda c: b"PK" + c, "no file of foedus courier"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_in_a_sentence(change, sentence):
    with pytest.raises(Unreadable, match=sentence):
        CourierFile.read(change(EXAMPLE.content))


def test_a_file_that_says_anything_else_or_that_another_has_signed_is_refused(tmp_path):
    hall = CourierHall.of(tmp_path, five(), fd.FedAvg(k0=2), max_rounds=1)
    for name in SITES:
        hall.answer(name)
    hall.next()
    path = hall.answer("site-1")
    assert path is not None
    answer = CourierFile.read(path.read_bytes())
    mine, other = hall.site["site-1"]._key, hall.site["site-2"]._key
    lies = {
        "it is not signed by 'site-1'": answer.signed(other),
        "it is of another plan": replace(answer, plan="0" * 64).signed(mine),
        "it is of another plan (run r2)": replace(answer, run="r2").signed(mine),
        "it is from nobody who was asked": replace(answer, sender="site-9").signed(mine),
        "it answers exchange 7, in which": replace(answer, exchange=7).signed(mine),
        "it answers another file": replace(answer, answers="0" * 64).signed(mine),
        "'site-1' has answered exchange 1 before, otherwise": replace(answer, exchange=1).signed(mine),
    }
    for sentence, lie in lies.items():
        path.write_bytes(lie.content)
        assert sentence in "".join(hall.next().lines)
        assert hall.plan.answer(2, "site-1") is None
    path.write_bytes(answer.content)
    hall.next()
    assert hall.plan.answer(2, "site-1") == answer

    question = hall.plan.question(2, "site-2")
    place = next(hall.plan.place("site-2").glob("*002-to*"))
    lies = {
        "it is not signed by the coordinator of a project": question.signed(mine),
        "it is of another plan": replace(question, plan="0" * 64).signed(hall.plan.keys.coordinator),
        "it asks nothing": replace(question, messages=()).signed(hall.plan.keys.coordinator),
    }
    for sentence, lie in lies.items():
        place.write_bytes(lie.content)
        inbox = hall.site["site-2"].look(hall.plan.place("site-2"), "site-2", hall.project)
        assert inbox.question is None, sentence
        assert sentence in "".join(inbox.lines)


def test_a_preview_charges_nothing_and_changes_nothing(tmp_path):
    problem = five("logistic")
    algorithm = make_private(fd.FedAvg(k0=1), fd.Laplace(epsilon=0.5, clip=1.0), None, problem, 2)
    hall = CourierHall.of(tmp_path, problem, algorithm, max_rounds=2)
    for name in SITES:
        hall.answer(name)
    hall.next()
    one, home = hall.site["site-1"], hall.home("site-1")
    inbox = one.look(hall.plan.place("site-1"), "site-1", hall.project)
    assert inbox.question is not None
    before = {path: path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}
    preview = one.preview(inbox.question)
    assert {path: path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()} == before
    assert preview.epsilon == (0.0, pytest.approx(0.5, rel=1e-3), pytest.approx(0.5, rel=1e-3))
    (release,) = [answer for answer in preview.leaving if answer.ask == "round"]
    assert release.releases
    one.answer(inbox.question, hall.plan.place("site-1"))
    assert SiteLedger(home / RUNS).total(preview.delta) == preview.epsilon[1]


# --- every fault ---

FAULTS = ("lose", "cut", "flip", "future", "foreign", "old", "double")


class Crash(BaseException):
    """The machine stops; nothing catches it."""


@contextmanager
def crash_at(number: int | None, is_written: bool):
    """Stop at the write of this number: before the file is there, or after."""
    calls, replace = 0, os.replace

    def counted(source, target):
        nonlocal calls
        calls += 1
        if calls == number and not is_written:
            raise Crash
        replace(source, target)
        if calls == number:
            raise Crash

    os.replace = counted
    try:
        yield
    except Crash:
        return
    finally:
        os.replace = replace


class Carriers(CourierHall):
    """Five folders, and hands that lose, double, cut, change and mix up what is in them."""

    def begin(self, foreign: bytes):
        self.foreign = foreign
        self.answers: dict[tuple[str, int], set[str]] = {}  # by site and exchange, the digests of all answers ever seen

    def look_around(self):
        """Note every whole answer that has ever stood in a folder where others see it."""
        for path in self.folder.glob("plan/site-*/*.foedus"):
            with suppress(FoedusError):
                one = CourierFile.read(path.read_bytes())
                if one.kind == ANSWER and one.plan == self.plan.digest and path.name == one.name:
                    self.answers.setdefault((one.sender, one.exchange), set()).add(one.digest)

    def step(self, what: str, who: int, way: str, crash: int | None, is_written: bool):
        name = SITES[who]
        if what == "answer":
            with crash_at(crash, is_written):
                self.answer(name)
            if crash is not None:
                self.site[name] = CourierSite(self.home(name), self.notes.append)
            return self.look_around()
        if what == "next":
            with crash_at(crash, is_written):
                self.next()
            self.plan = CourierPlan(self.folder / "plan")
            return self.look_around()
        place = self.plan.place(name)
        found = sorted(place.glob(f"r1-*-{way}-{name}.foedus"))
        if not found:
            return None
        path, content = found[-1], found[-1].read_bytes()
        if what == "lose":
            path.unlink()
        elif what == "double":
            (place / "copy.foedus").write_bytes(content)
        else:
            changed = {
                "cut": content[: len(content) // 2],
                "flip": content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
                "future": content.replace(b"courier 1", b"courier 2", 1),
                "foreign": self.foreign,
                "old": found[0].read_bytes(),
            }
            path.write_bytes(changed[what])
        return None

    def finish(self):
        """Carry all that is left, without a fault."""
        for _ in range(40):
            for name in self.names:
                self.answer(name)
            self.look_around()
            progress = self.next()
            assert not progress.refused, progress.refused
            if progress.result is not None:
                return progress.result
        raise AssertionError("no result")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.integers(0, 4), st.just("to"), st.none() | st.integers(1, 9), st.booleans()),
        st.tuples(st.just("next"), st.just(0), st.just("to"), st.none() | st.integers(1, 12), st.booleans()),
        st.tuples(
            st.sampled_from(FAULTS), st.integers(0, 4), st.sampled_from(["to", "from"]), st.none(), st.booleans()
        ),
    ),
    min_size=8,
    max_size=30,
)


@dataclass(frozen=True)
class Undisturbed:
    """A run without a fault: its model, and two of its files."""

    w: np.ndarray
    question: CourierFile
    answer: CourierFile


@cache
def undisturbed() -> Undisturbed:
    with TemporaryDirectory() as folder:
        hall = CourierHall.of(Path(folder), five(), fd.FedAvg(k0=2), max_rounds=2)
        result, answer = hall.play(), hall.plan.answer(2, "site-1")
        agree(fd.solve(five(), fd.FedAvg(k0=2), max_rounds=2), result)
        assert answer is not None
        return Undisturbed(result.conclusion.w, hall.plan.question(1, "site-1"), answer)


def through_faults(steps) -> None:
    expected = undisturbed()
    with TemporaryDirectory() as folder:
        hall = Carriers.of(Path(folder), five(), fd.FedAvg(k0=2), max_rounds=2)
        hall.begin(expected.question.content)
        for step in steps:
            hall.step(*step)
        result = hall.finish()
        np.testing.assert_array_equal(result.conclusion.w, expected.w)
        assert {len(digests) for digests in hall.answers.values()} == {1}  # never answered twice
        for (name, number), (digest,) in hall.answers.items():
            answer = hall.plan.answer(number, name)
            assert answer is None or answer.digest == digest


@settings(properties, max_examples=3)
@given(STEPS)
def test_five_folders_come_through_every_fault(steps):
    through_faults(steps)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(properties, max_examples=40)
@given(STEPS)
def test_five_folders_come_through_every_fault_many_times(steps):
    through_faults(steps)
