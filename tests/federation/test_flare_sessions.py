"""Sessions of server and sites in one process, without FLARE: the simulator's iterates, faults, refusals, resuming."""

import json

import numpy as np
import pytest
from cases import classification
from cases import problem as five
from constrained_cases import CAPPED, Coupled, Quadratic, breast_cancer
from halls import FREE, Hall, agree, tampered

import foedus as fd
from foedus.algorithms.admm import Status
from foedus.algorithms.lagrangian import Party, violation
from foedus.federation import packing, spec
from foedus.federation.gate import MessageLog, Outgoing
from foedus.federation.monitor import RunMonitor
from foedus.federation.order import Patience, Result, order_of
from foedus.federation.policy import Policy, SiteFile
from foedus.federation.server import Missing, Paused, ServerSession
from foedus.federation.site import SiteSession
from foedus.runtime import checkpoint
from foedus.runtime.checkpoint import MAGIC
from foedus.runtime.run import versions

KEEPING = Patience(timeout=1.0, hello=0.0, keep_every=0.0)


SAME = {
    "FedAvg": (fd.FedAvg(k0=2), {"max_rounds": 12}),
    "FedAvg, some": (fd.FedAvg(k0=2), {"max_rounds": 12, "participation": fd.Fraction(0.6, dropout=0.2)}),
    "FedGiA": (fd.FedGiA(), {"max_rounds": 12, "seed": 3}),
    "FedGiA, gram, some": (fd.FedGiA(H="gram"), {"max_rounds": 12, "participation": fd.Fraction(0.6, dropout=0.2)}),
    "LocalSGD": (fd.LocalSGD(batch=4, k0=2), {"max_rounds": 8, "seed": 1}),
    "ProxAL without rows": (fd.ProxAL(), {"max_rounds": 40}),  # the violation of a site without rows is −inf
    "ProxAL by ADMM without rows": (fd.ProxAL(inner="admm"), {"max_rounds": 40}),
    "Scaffold, plan": (
        fd.Scaffold(),
        {"max_rounds": 8, "participation": np.eye(5, dtype=bool)[[0, 1, 2]] | [1, 0, 0, 0, 1]},
    ),
}


SLOW = (
    "FedGiA",
    "ProxAL without rows",
    "ProxAL by ADMM without rows",
    "FedAvg, some",
    "FedGiA, gram, some",
    "LocalSGD",
    "Scaffold, plan",
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in SAME])
def test_the_iterates_are_the_simulators(tmp_path, name):
    algorithm, told = SAME[name]
    run = fd.solve(five(), algorithm, **told)
    agree(run, Hall(tmp_path, five(), algorithm, **told).play())


def test_the_violation_of_a_site_without_rows_may_travel():
    status = Status(np.zeros(1), violation(Party(five().terms), five().client(0), np.zeros(0)))
    packing.check_finite(status, packing.may_be_infinite(status))
    with pytest.raises(packing.NotFinite):
        packing.check_finite(Status(status.violation, status.f), packing.may_be_infinite(status))


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["admm", "newton"])
def test_the_certified_answer_is_the_simulators(tmp_path, inner):
    case = breast_cancer()
    run = fd.solve(case.problem(), CAPPED[inner])
    result = Hall(tmp_path, case.problem(), CAPPED[inner]).play()
    agree(run, result)
    assert result.conclusion.certificate.holds()
    assert [r.site for r in result.conclusion.certificate.rows] == [r.site for r in run.certificate.rows]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Quadratic.random(0), marks=pytest.mark.slow, id="local and global"),
        pytest.param(Coupled.random(0), marks=pytest.mark.slow, id="local, global and coupled"),
    ],
)
def test_own_objectives_and_every_scope_of_constraint(tmp_path, case):
    problem, w0 = case.problem(), np.zeros(6)
    algorithm = fd.ProxAL(inner="newton")
    agree(fd.solve(problem, algorithm, w0=w0), Hall(tmp_path, problem, algorithm, w0=w0).play(), 1e-8)


# --- what travels ---


def test_statements_come_back_as_they_were():
    for problem in (five("ridge"), breast_cancer().problem(), Quadratic.random(0).problem().over(np.zeros(6))):
        told = json.loads(json.dumps(spec.encode(problem.terms)))
        found = spec.decode(told, ("constrained_cases",))
        assert found == problem.terms
        assert hash(found) == hash(problem.terms)
    for algorithm in (fd.ProxAL(inner="admm", rho=2.0), fd.FedGiA(t=0.2), fd.Coverage(0.5, every=3)):
        assert spec.decode(json.loads(json.dumps(spec.encode(algorithm)))) == algorithm


@pytest.mark.parametrize(
    "text",
    [
        {"of": "function", "name": "os:system"},
        {"of": "class", "name": "subprocess:Popen", "fields": {"args": "true"}},
        {"of": "function", "name": "foedus.problem.losses:jax.config.update"},
        {"of": "class", "name": "foedus.runtime.checkpoint:Checkpoint", "fields": {"path": "x", "fingerprint": ""}},
        {"of": "function", "name": "constrained_cases:quadratic"},
    ],
)
def test_a_statement_brings_nothing_to_life_but_statements(text):
    with pytest.raises(fd.FoedusError, match=r"not allowed here|defined elsewhere|no statement"):
        spec.decode(text)


def test_a_function_that_no_site_can_find_is_refused():
    with pytest.raises(fd.FoedusError, match="inside a function"):
        spec.encode(lambda z, y: z)


def test_bytes_that_do_not_fit_are_refused():
    plan = packing.structure({"a": np.zeros((2, 3)), "b": np.zeros(1, bool)})
    content = packing.to_bytes({"a": np.arange(6.0).reshape(2, 3), "b": np.ones(1, bool)}, plan)
    assert len(content) == packing.size_of(plan) == 49
    np.testing.assert_array_equal(packing.from_bytes(content, plan)["a"], np.arange(6.0).reshape(2, 3))
    with pytest.raises(fd.FoedusError, match="48 bytes, where the terms make it 49"):
        packing.from_bytes(content[:-1], plan)
    with pytest.raises(fd.FoedusError, match="truth values"):
        packing.from_bytes(content[:-1] + b"\x07", plan)
    for wrong in (b"", b"\xff\xff\xff\xff{}", b"\x02\0\0\0[]", "text", None):
        with pytest.raises(fd.FoedusError, match="message"):
            packing.unseal(wrong)


# --- faults ---

AVERAGE = (fd.FedAvg(k0=2), {"max_rounds": 12})


CHANGES = {
    "silence": (lambda h, p: None, None),
    "NaN": (
        lambda h, p: packing.seal(h, np.full(len(p) // 8, np.nan).tobytes()),
        "'b': array 0 of its reply holds NaN",
    ),
    "infinity": (
        lambda h, p: packing.seal(h, np.full(len(p) // 8, np.inf).tobytes()),
        "'b': array 0 of its reply is inf",
    ),
    "shape": (lambda h, p: packing.seal(h, p + p), "'b': the arrays take"),
    "round": (lambda h, p: packing.seal(h | {"round": h["round"] - 1}, p), "'b': its reply is of another run or round"),
    "run": (lambda h, p: packing.seal(h | {"run": "r0"}, p), "'b': its reply is of another run or round"),
    "site": (lambda h, p: packing.seal(h | {"site": "site-1"}, p), "'b': its reply is of another run or round"),
    "size": (lambda h, p: packing.seal(h, bytes(2**25)), "'b': its reply takes 33554"),
    "noise": (lambda h, p: b"\x00\x01", "'b': a message is cut short"),
}


def test_every_bad_reply_is_as_if_its_round_had_not_reached_the_client(tmp_path):
    """All of them in one run, a round each; the simulator whose plan leaves client b out of them is the oracle."""
    rounds = dict(enumerate(CHANGES.values(), start=2))
    plan = np.ones((12, 5), dtype=bool)
    plan[list(rounds), 1] = False
    algorithm, told = fd.Scaffold(), {"max_rounds": 12}
    expected = fd.solve(five(), algorithm, participation=plan, **told)
    hall = Hall(tmp_path, five(), algorithm, **told)
    patience = Patience(timeout=1.0, hello=0.0, keep_every=1e9, minimum=4, misses=20)
    result = hall.play(tampered(hall, "site-2", set(rounds), lambda h, p: rounds[h["round"]][0](h, p)), patience)
    np.testing.assert_allclose(result.conclusion.w, expected.w, atol=1e-12)
    np.testing.assert_array_equal(result.history["answered"], expected.history["answered"])
    sentences = [sentence for _, sentence in rounds.values() if sentence is not None]
    assert all(sentence in line for sentence, line in zip(sentences, result.refused, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_a_bad_reply_is_as_if_the_round_had_not_reached_the_client(tmp_path, what):
    """The simulator with a plan that leaves client b out of rounds 4 and 5 is the oracle."""
    change, sentence = CHANGES[what]
    plan = np.ones((12, 5), dtype=bool)
    plan[4:6, 1] = False
    algorithm, told = fd.Scaffold(), {"max_rounds": 12}
    expected = fd.solve(five(), algorithm, participation=plan, **told)
    hall = Hall(tmp_path, five(), algorithm, **told)
    patience = Patience(timeout=1.0, hello=0.0, keep_every=1e9, minimum=4, misses=5)
    result = hall.play(tampered(hall, "site-2", {4, 5}, change), patience)
    np.testing.assert_allclose(result.conclusion.w, expected.w, atol=1e-12)
    np.testing.assert_array_equal(result.history["answered"], expected.history["answered"])
    assert len(result.refused) == (0 if sentence is None else 2)
    assert all(sentence in line for line in result.refused)


def test_one_sites_nan_is_its_own_fault_and_no_divergence(tmp_path):
    """Three answers of one site with NaN once counted as three sites that had diverged."""
    hall = Hall(tmp_path, five(), fd.Scaffold(), max_rounds=12)
    change, _ = CHANGES["NaN"]
    with pytest.raises(Paused, match="client 'b' does not answer in round 4: array 0 of its reply holds NaN"):
        hall.play(tampered(hall, "site-2", {4}, change), Patience(timeout=1.0, hello=0.0, keep_every=1e9, misses=6))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda h, p: packing.seal(h, p[:-8]), "the arrays take", marks=pytest.mark.slow),
        (lambda h, p: packing.seal(h, np.full(len(p) // 8, np.nan).tobytes()), "array 0 of its reply holds NaN"),
        pytest.param(
            lambda h, p: b"\x00\x40\x00\x00" + b"[" * 0x4000, "a message's header is not JSON", marks=pytest.mark.slow
        ),
    ],
    ids=["short", "NaN", "nested"],
)
def test_a_wrong_measurement_names_the_client_and_the_run_goes_on_later(tmp_path, change, why):
    algorithm, told = fd.Scaffold(), {"max_rounds": 4}
    hall = Hall(tmp_path, five(), algorithm, **told)

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        header, payload = packing.unseal(replies["site-2"]) if "site-2" in replies else ({}, b"")
        return replies | ({"site-2": change(header, payload)} if header.get("ask") == "measure" else {})

    with pytest.raises(Paused, match=f"client 'b' does not answer 'measure': {why}"):
        hall.play(ask, KEEPING)
    hall.open_sites()
    agree(fd.solve(five(), algorithm, **told), hall.play(patience=KEEPING), 1e-12)


def test_a_silent_client_is_skipped_and_asked_again_when_it_answers_a_greeting(tmp_path):
    algorithm, told = AVERAGE
    hall, asked = Hall(tmp_path, five(), algorithm, **told), []

    def ask(messages, timeout):
        heads = {name: packing.unseal(message)[0] for name, message in messages.items()}
        rounds = {h["round"] for h in heads.values()} - {None}
        if rounds:
            asked.append((rounds.pop(), "site-2" in messages))
        away = asked and 3 <= asked[-1][0] < 8
        return hall.ask({k: v for k, v in messages.items() if not (away and k == "site-2")}, timeout)

    patience = Patience(timeout=1.0, hello=0.0, keep_every=1e9, minimum=4, misses=2, probe=0.0)
    result = hall.play(ask, patience)
    assert [r for r, there in asked if not there] == [5, 6, 7, 8], "after two misses it is not asked, until it greets"
    assert list(result.history["answered"]) == [5] * 3 + [4] * 6 + [5] * 3


def test_a_run_that_lacks_answers_pauses_and_goes_on_to_the_same_end(tmp_path):
    algorithm, told = fd.Scaffold(), {"max_rounds": 12}
    whole = fd.solve(five(), algorithm, **told)
    hall = Hall(tmp_path, five(), algorithm, **told)
    with pytest.raises(Paused, match="client 'b' does not answer in round 7"):
        hall.play(tampered(hall, "site-2", set(range(7, 12)), lambda h, p: None), KEEPING)
    hall.open_sites()  # all processes are new: what is left is on disk
    agree(whole, hall.play(patience=KEEPING), 1e-12)
    assert any("resumed after round 7" in line for line in hall.notes)


def test_a_run_that_the_coordinator_ends_is_measured_and_goes_on_to_the_same_end(tmp_path):
    algorithm, told = fd.Scaffold(), {"max_rounds": 12}
    whole = fd.solve(five(), algorithm, **told)
    hall, monitor = Hall(tmp_path, five(), algorithm, **told), RunMonitor()
    seen = []

    def ask(messages, timeout):
        seen.append(monitor.answer({"do": "look"})["rounds"])
        if seen[-1] == 5:
            monitor.answer({"do": "stop"})
        return hall.ask(messages, timeout)

    session = ServerSession(hall.order, tmp_path / "server", ask, KEEPING, hall.notes.append, monitor=monitor)
    result = Result.from_bytes(session.play().to_bytes())
    assert result.interrupted
    assert len(result.history["phase"]) == 5
    assert np.isfinite(result.conclusion.certificate.stationarity)
    assert sorted(set(seen)) == list(range(6))
    hall.open_sites()
    agree(whole, hall.play(patience=KEEPING), 1e-12)


def crash_after(hall: Hall, round: int):
    """An `ask` with which the server dies in the middle of a round: sites have moved, nobody has kept it."""

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        if any(packing.unseal(m)[0]["round"] == round for m in messages.values()):
            raise KeyboardInterrupt
        return replies

    return ask


@pytest.mark.parametrize(
    "damage", ["site", "version", *(pytest.param(d, marks=pytest.mark.slow) for d in ("none", "server", "both"))]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    algorithm, told = fd.Scaffold(), {"max_rounds": 12}
    whole = fd.solve(five(), algorithm, **told)
    hall = Hall(tmp_path, five(), algorithm, **told)
    with pytest.raises(KeyboardInterrupt):
        hall.play(crash_after(hall, 7), KEEPING)
    newest = {
        "server": tmp_path / "server" / "server-7.ckpt",
        "site": tmp_path / "site-3" / "run-r1" / "state-6.ckpt",
    }
    for party in {"none": (), "both": newest, "version": ("server",)}.get(damage, (damage,)):
        content = bytearray(newest[party].read_bytes())
        content[len(MAGIC) - 2 if damage == "version" else -20] ^= 1  # the version is the last sign of its line
        newest[party].write_bytes(content)
    hall.open_sites()
    agree(whole, hall.play(patience=KEEPING), 1e-12)
    expected = "resumed after round 7" if damage == "none" else "resumed after round 6"
    assert any(expected in line for line in hall.notes)
    if damage in ("server", "version"):
        assert any("damaged or of another version" in line and "before is tried" in line for line in hall.notes)


@pytest.mark.parametrize("full", ["site-3", pytest.param("server", marks=pytest.mark.slow)])
def test_after_a_full_disk_a_run_goes_on_from_the_checkpoint_before_it(tmp_path, monkeypatch, full):
    """From round 5 on, one party's disk takes no more checkpoints; in round 8 the server dies."""
    algorithm, told = fd.Scaffold(), {"max_rounds": 12}
    whole = fd.solve(five(), algorithm, **told)
    hall = Hall(tmp_path, five(), algorithm, **told)
    write = checkpoint.write_whole

    def write_until_full(path, content, private=False):
        number = int(path.stem.partition("-")[2])
        if path.is_relative_to(tmp_path / full) and number >= 5:
            raise fd.FoedusError(f"cannot write {path}: No space left on device; what was there before is unchanged.")
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_whole", write_until_full)
    with pytest.raises(KeyboardInterrupt):
        hall.play(crash_after(hall, 8), KEEPING)
    assert any("No space left" in line for line in hall.notes)
    monkeypatch.undo()
    hall.open_sites()
    agree(whole, hall.play(patience=KEEPING), 1e-12)
    last = 5 if full == "site-3" else 4  # a site's state has the number of the round that made it
    assert any(f"resumed after round {last}" in line for line in hall.notes)


def test_what_a_site_cannot_put_on_record_it_does_not_send(tmp_path, monkeypatch):
    hall = Hall(tmp_path, five(), fd.FedAvg(), max_rounds=2)

    def full(self, *line):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MessageLog, "add", full)
    with pytest.raises(Paused, match="client 'a': it cannot keep its record of messages; its disk may be full"):
        hall.play()
    assert any("No space left" in line for line in hall.notes)


def test_a_full_disk_at_the_server_does_not_end_the_run(tmp_path, monkeypatch):
    algorithm, told = AVERAGE
    hall = Hall(tmp_path, five(), algorithm, **told)

    def full(self, carry, history, final=False):
        raise fd.FoedusError("cannot write server.ckpt: No space left on device; what was there before is unchanged.")

    monkeypatch.setattr("foedus.federation.server.Checkpoint.keep", full)
    monkeypatch.setattr("foedus.federation.site.SiteSession._keep", lambda self, asked, payload: Outgoing())
    agree(fd.solve(five(), algorithm, **told), hall.play(patience=KEEPING))
    assert any("No space left" in line for line in hall.notes)


def test_divergence_ends_the_run_as_it_does_in_the_simulator(tmp_path):
    algorithm = fd.FedAvg(lr=1e12, k0=9, tol=0.0)
    run = fd.solve(five(), algorithm, max_rounds=30)
    result = Hall(tmp_path, five(), algorithm, max_rounds=30).play()
    assert not result.conclusion.finite
    assert "infinite" in result.conclusion.reason
    assert "infinite" in run.reason
    assert np.all(np.isfinite(result.conclusion.w))


def test_a_version_mismatch_has_its_sentence(tmp_path, monkeypatch):
    hall = Hall(tmp_path, five(), fd.FedAvg(), max_rounds=2)
    monkeypatch.setattr("foedus.federation.site._versions", lambda: {"foedus": "9.9", "jax": "0"})
    with pytest.raises(Missing, match=r"client 'a' has foedus 9.9, the server"):
        hall.play()


def test_versions_that_differ_in_the_last_number_may_talk(tmp_path, monkeypatch):
    hall = Hall(tmp_path, five(), fd.FedAvg(), max_rounds=2)
    newer = {name: ".".join([*version.split(".")[:2], "99"]) for name, version in versions().items()}
    monkeypatch.setattr("foedus.federation.site._versions", lambda: newer)
    assert len(hall.play().history["phase"]) == 2


# --- what a site allows, and what it tells ---


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Policy(algorithms=("ProxAL", "FedGiA"), **FREE), "its policy allows ProxAL and FedGiA, not FedAvg"),
        (Policy(min_rows=10, **FREE), "client 'b' refuses: it does not take part; its own log says why"),
        (Policy(privacy=True, **FREE), "its policy asks for privacy, and FedAvg adds no noise with a guarantee here"),
        (Policy(max_message=50, **FREE), "its policy allows no message of more than 50 bytes"),
    ],
)
def test_a_policy_refuses_in_one_sentence(tmp_path, policy, sentence):
    hall = Hall(tmp_path, five(), fd.FedAvg(), max_rounds=2, policy=policy)
    with pytest.raises(Missing, match=sentence):
        hall.play()


def test_a_module_that_the_site_does_not_allow_is_refused(tmp_path):
    hall = Hall(tmp_path, Quadratic.random(0).problem(), fd.ProxAL(), w0=np.zeros(6), policy=Policy(**FREE))
    with pytest.raises(Missing, match="constrained_cases:quadratic, of a module that is not allowed here"):
        hall.play()


def test_a_failure_at_a_site_carries_no_data(tmp_path, monkeypatch):
    hall = Hall(tmp_path, five(), fd.FedAvg(), max_rounds=2)
    secret = "patient 4711"

    def fail(self, asked, payload):
        raise RuntimeError(secret)

    monkeypatch.setattr(SiteSession, "_round", fail)
    heard = []

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        heard.extend(replies.values())
        return replies

    with pytest.raises(Paused, match="client 'a' does not answer in round 0"):
        hall.play(ask)
    assert any(secret in line for line in hall.notes), "the site's own log says why"
    assert not any(secret.encode() in raw for raw in heard)


def test_data_that_do_not_fit_are_told_without_a_word_of_them(tmp_path):
    problem = breast_cancer().problem()
    hall = Hall(tmp_path, problem, CAPPED["newton"])
    X, y = breast_cancer().sites["birch"]
    np.savez(tmp_path / "site-2.npz", x=X, y=np.where(y == 1, 0.25, y))
    with pytest.raises(Missing) as error:
        hall.play()
    assert str(error.value) == "client 'birch' refuses: it does not take part; its own log says why."
    assert any("0.25" in line for line in hall.notes)


def test_every_message_of_a_site_is_in_its_log_with_its_size(tmp_path):
    algorithm, told = AVERAGE
    hall, sent = Hall(tmp_path, five(), algorithm, **told), []

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        sent.extend(len(raw) for name, raw in replies.items() if name == "site-1")
        return replies

    hall.play(ask)
    lines = hall.site["site-1"].gate.log.read()
    assert [line["bytes"] for line in lines] == sent
    assert [line["purpose"] for line in lines] == ["hello", "join", *["round"] * 12, "keep", "measure", "end"]
    assert [line["round"] for line in lines if line["purpose"] == "round"] == list(range(12))


def test_no_message_to_the_server_tells_the_number_of_rows_or_the_data_file(tmp_path):
    hall, heard = Hall(tmp_path, five(), fd.FedAvg(lr=0.1), max_rounds=2), []

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        heard.extend(packing.unseal(raw)[0] for raw in replies.values())
        return replies

    hall.play(ask)
    schemas = [h["schema"] for h in heard if h["ask"] == "hello"]
    assert schemas[0] == schemas[2] == {"x": [None, 4], "y": [None]}
    assert not any(".npz" in json.dumps(h) for h in heard)


def test_site_files_are_checked(tmp_path):
    path = tmp_path / "foedus.toml"
    for text, sentence in (
        ("[data]\nfile = 3", "the key 'file' of .data. must be text in quotes"),
        ("[policy]\nmin_row = 3", "has no key 'min_row'. Did you mean 'min_rows'"),
        ("[policy]\nprivacy = 1", "the key 'privacy' of .policy. must be true or false"),
        ("[data]\ny = 'a'", "needs the key file"),
        ("[x]", "is unknown"),
        ("[data", "cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(fd.FoedusError, match=sentence):
            SiteFile.read(path)
    path.write_text("[data]\nfile = 'd.csv'\n[data.columns]\nill = 3")
    with pytest.raises(fd.FoedusError, match=r"the key 'columns' of .data. must be a table of name = name"):
        SiteFile.read(path)
    (tmp_path / "d.csv").write_text("age,dose\n1,2\n")
    path.write_text("[data]\nfile = 'd.csv'\n[policy]\nmin_rows = 2")
    source = SiteFile.read(path).data
    assert source is not None
    with pytest.raises(fd.FoedusError, match="is a table, and this run brings no rules to prepare it"):
        source.arrays()


def test_flare_is_checked_when_it_is_written():
    with pytest.raises(fd.FoedusError, match="'transport' of Flare must be 'aux' or 'task'"):
        fd.Flare(transport="post")
    with pytest.raises(fd.FoedusError, match="'sites' of Flare must be a whole number >= 1"):
        fd.Flare(sites=0)
    with pytest.raises(fd.FoedusError, match="'runtime' argument of solve"):
        fd.solve(five(), fd.FedAvg(), runtime="flare")  # pyright: ignore[reportArgumentType]


def test_pooling_and_a_wrong_number_of_sites_are_refused(tmp_path):
    with pytest.raises(fd.FoedusError, match="data stay where they are"):
        Hall(tmp_path, five(), fd.CentralProxAL())
    problem = five().over(np.zeros(4))
    with pytest.raises(fd.FoedusError, match="5 clients and the federation 2 sites"):
        order_of(
            problem, fd.FedAvg(), np.zeros(4), run="r", sites=("a", "b"), seed=0, max_rounds=1,
            participation=fd.Fraction(),
        )  # fmt: skip


@pytest.mark.slow
def test_a_cap_on_the_worst_case_can_be_sent_to_sites(tmp_path):
    """And a site counts the rows that it is about, as it does for every other cap."""
    sites = dict(list(classification().items())[:3])
    cap = fd.robust.worst_case_cap(fd.label(1), at_most=0.65, radius=0.01)
    problem = fd.Problem(sites, loss=fd.losses.logistic, constraints=[cap])
    hall = Hall(tmp_path, problem, fd.InteriorPoint())
    agree(fd.solve(problem, fd.InteriorPoint()), hall.play())
    (tmp_path / "strict").mkdir()
    strict = Hall(tmp_path / "strict", problem, fd.InteriorPoint(), policy=Policy(min_subset=50, min_sites=1))
    with pytest.raises(Missing, match="refuses"):
        strict.play()
