"""Who may ask a site: the server of its project and nobody else. Who counts as a site: a site's certificate."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from halls import Hall
from intruders import DIM, Intruder

import foedus as fd
from foedus.federation import packing
from foedus.federation.exchange import Paused
from foedus.federation.flare.post import Answer, SealedPost, TooLong
from foedus.federation.order import Patience
from foedus.federation.packing import check_run_name
from foedus.federation.policy import Policy
from foedus.federation.receipts import Receipts
from foedus.sums.channel import MOST_SESSIONS, SiteChannel
from foedus.sums.play import trial_project

pytest.importorskip("cryptography")
from foedus.sums.channel import ServerChannel
from foedus.sums.identity import SITE, Signer, SiteIdentity, is_signed_by

NAMES = ("city", "north", "south")
SERVER, SITES, _ = trial_project(NAMES)


class Line:
    """A site that answers through its channel, the server's end, and whoever listens in between."""

    def __init__(self, answer=lambda content: b"the answer to " + content):
        self.notes: list[str] = []
        self.site = SiteChannel(SITES["city"], answer, self.notes.append)
        self.server = ServerChannel(SERVER, self.notes.append)
        self.heard: list[bytes] = []

    def carry(self, messages, seconds):
        self.heard += messages.values()
        answers = {site: self.site.receive(content) for site, content in messages.items()}
        self.heard += [one for one in answers.values() if one is not None]
        return {site: one for site, one in answers.items() if one is not None}

    def ask(self, content: bytes, server: ServerChannel | None = None) -> dict[str, object]:
        return (server or self.server).ask({"city": content}, 1.0, self.carry)


def test_the_server_gets_its_answers_and_whoever_listens_reads_nothing():
    line = Line()
    for number in range(3):
        assert line.ask(b"question %d" % number) == {"city": b"the answer to question %d" % number}
    assert len(line.heard) == 2 + 2 * 3, "one session serves all messages"
    assert not any(word in content for content in line.heard for word in (b"question", b"answer"))
    assert line.notes == []


def site_as_server() -> Signer:
    one = SITES["north"]
    return Signer(one.key, one.certificate, one.root)


@pytest.mark.parametrize(
    "identity",
    [
        site_as_server(),
        trial_project(NAMES)[0],
        replace(SERVER, key=SITES["north"].key),
        replace(SERVER, certificate=b"no certificate"),
    ],
    ids=["another site", "another project", "a key that is not the certificate's", "no certificate"],
)
def test_nobody_else_gets_an_answer(identity):
    line = Line()
    assert line.ask(b"question", ServerChannel(identity, lambda text: None)) == {}
    assert "not signed by the server of this project, 'localhost', for this site" in line.notes[0]


def test_a_local_process_without_a_certificate_gets_no_gradient(tmp_path):
    """The loopback listener of a site's job takes whatever it is sent; it used to be answered."""
    intruder = Intruder(tmp_path, fd.FedAvg(lr=0.5), Policy()).enter()
    header = {"ask": "round", "run": "r1", "round": 0, "phase": 0, "since": -1}
    message = packing.seal(header, intruder.message(np.zeros(DIM)))
    line = Line(intruder.site.answer)
    log = tmp_path / "site" / "messages.jsonl"
    before = log.read_bytes()
    for content in (message, b"", b"O", b"M", b"M" + bytes(24), b"M" + bytes(24) + message, b"O" + message, b"R"):
        assert line.site.receive(content) is None
    assert log.read_bytes() == before, "what is not the server's does not reach the session"
    (reply,) = line.ask(message).values()
    assert packing.unseal(reply)[0]["code"] == "ok"


def test_a_message_that_is_played_again_gets_no_answer():
    line = Line()
    line.ask(b"question")
    line.ask(b"another question")
    opening, _, message, *_ = line.heard
    assert line.site.receive(message) is None
    assert "has been received before" in line.notes[-1]
    again = line.site.receive(opening)
    assert again is not None, "what the channel seals with is known to the server alone"
    assert line.site.receive(message) is None
    assert line.ask(b"question") == {"city": b"the answer to question"}, "the old session is still there"


@pytest.mark.parametrize("place", [0, 1, 5, 20, -1])
def test_a_message_or_reply_that_was_changed_on_its_way_counts_for_nothing(place):
    line = Line()
    line.ask(b"question")
    number, message = line.server.seal("city", b"question")
    changed = bytearray(message)
    changed[place] ^= 1
    assert line.site.receive(bytes(changed)) is None
    reply = bytearray(line.site.receive(message) or b"")
    assert line.server.open("city", number, bytes(reply)) == b"the answer to question"
    reply[place] ^= 1
    assert line.server.open("city", number, bytes(reply)) is None


def test_a_reply_counts_for_its_own_question_alone():
    line = Line()
    line.ask(b"question")
    first, message = line.server.seal("city", b"first")
    second, _ = line.server.seal("city", b"second")
    reply = line.site.receive(message)
    assert line.server.open("city", second, reply) is None
    assert line.server.open("city", first, reply) == b"the answer to first"


def test_a_message_for_one_site_is_none_for_another():
    line = Line()
    line.ask(b"question")
    other = SiteChannel(SITES["north"], lambda content: content, line.notes.append)
    assert [other.receive(content) for content in line.heard] == [None] * 4


def test_the_server_takes_a_site_at_its_own_certificate_alone():
    """A process on the server's machine, or another site, answers in the name of the site."""
    for identity in (replace(SITES["north"], site="city"), replace(SITES["city"], key=SITES["north"].key)):
        line = Line()
        line.site.identity = identity
        assert line.ask(b"question") == {}
        assert "'city' opens no channel: the answer is not signed with the certificate of this site" in line.notes[-1]


def test_a_site_without_a_certificate_answers_nobody():
    line = Line()
    line.site.identity = None
    assert line.ask(b"question") == {}


def test_openings_and_refusals_take_no_room_without_end():
    line = Line()
    for _ in range(2 * MOST_SESSIONS):
        ServerChannel(SERVER, line.notes.append).open_sessions(["city"], 1.0, line.carry)
    assert len(line.site.sessions) == MOST_SESSIONS
    for _ in range(1000):
        line.site.receive(b"nothing")
    assert len(line.notes) <= 100


def test_a_post_with_a_quorum_seals_and_takes_each_answer_once():
    line = Line()
    line.ask(b"question")

    class Plain:
        missing: set[str] = set()
        most = 0
        queue: list[Answer] = []

        def send(self, messages):
            self.queue += [
                Answer(7, site, line.site.receive(content) or b"", 0.0) for site, content in messages.items()
            ]
            return 7

        def take(self, seconds):
            return self.queue.pop(0) if self.queue else None

    plain = Plain()
    post = SealedPost(plain, line.server)
    assert post.send({"city": b"a round", "north": b"a round"}) == 7
    plain.queue += plain.queue
    assert post.take(0.0) == Answer(7, "city", b"the answer to a round", 0.0)
    assert post.take(0.0) is None, "the same answer once more"
    post.send({"city": b"a round"})
    plain.queue = [Answer(7, "city", TooLong(5), 0.0)]
    assert post.take(0.0) == Answer(7, "city", TooLong(5), 0.0)


# --- the certificates of a project's kits ---


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> dict[str, Path]:
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")
    from foedus.federation.flare.kits import Project, provision

    return provision(Project("foedus", "localhost", ("st-mary", "city")), tmp_path_factory.mktemp("project") / "kits")


def test_the_server_and_the_coordinator_are_no_sites(kits):
    """With their own certificates they were two of the "others" of a masked sum: one over 4 sites was that of two."""
    parties = {
        "st-mary": SiteIdentity.of_kit(kits["st-mary"], "st-mary"),
        "localhost": Signer.of_server(kits["server"]),
    }
    files = {
        name: (kits["admin"] / f"startup/{name}").read_bytes() for name in ("client.crt", "client.key", "rootCA.pem")
    }
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(files["client.key"], None)
    parties["coordinator@foedus.org"] = Signer(key, files["client.crt"], files["rootCA.pem"])
    for name, party in parties.items():
        signature = party.sign(b"statement")
        answers = [is_signed_by(SITE, name, party.certificate, party.root, b"statement", signature)]
        answers += [is_signed_by("server", name, party.certificate, party.root, b"statement", signature)]
        assert answers == {"st-mary": [True, False], "localhost": [False, True]}.get(name, [False, False]), name
        assert not is_signed_by(SITE, "city", party.certificate, party.root, b"statement", signature)


def test_the_channel_works_with_the_certificates_of_real_kits(kits):
    """RSA keys, and the server's name as the site's kit has it."""
    site = SiteChannel(SiteIdentity.of_kit(kits["st-mary"], "st-mary"), lambda content: content[::-1], print)
    server = ServerChannel(Signer.of_server(kits["server"]), print)

    def carry(messages, seconds):
        return {name: site.receive(content) for name, content in messages.items()}

    assert server.ask({"st-mary": b"abc"}, 1.0, carry) == {"st-mary": b"cba"}


@pytest.mark.parametrize("server", ["foedus", "city"])
def test_a_server_is_not_called_as_a_site_may_be(server):
    from foedus.federation.flare.kits import Project

    with pytest.raises(fd.FoedusError, match="the server must not be called 'foedus' or as a site is"):
        Project("foedus", server, ("city",))


# --- kits of an older version, and names that become paths ---


def altered(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


AGED = {
    "no authorisation file": lambda kit: (kit / "local/authorization.json").unlink(),
    "every class": lambda kit: altered(kit / "local/resources.json", lambda c: c.update(class_allow_list=["*"])),
    "no list of classes": lambda kit: altered(kit / "local/resources.json", lambda c: c.pop("class_allow_list")),
    "code from outside": lambda kit: altered(
        kit / "local/authorization.json", lambda c: c["permissions"]["project_admin"].update(byoc="any")
    ),
    "no door": lambda kit: altered(
        kit / "local/resources.json",
        lambda c: c.update(components=[p for p in c["components"] if p["id"] != "app_deployer"]),
    ),
}


@pytest.mark.parametrize("what", AGED)
def test_a_kit_of_an_older_version_is_not_started(kits, tmp_path, what):
    from foedus.federation.flare import party
    from foedus.federation.flare.kits import check_kit

    for name in ("city", "server"):
        kit = Path(shutil.copytree(kits[name], tmp_path / name))
        check_kit(kit)
        if name == "server" and what == "no door":
            continue
        AGED[what](kit)
        for begin in (party.run, party.start):
            with pytest.raises(fd.FoedusError, match="was made by another version of foedus"):
                begin(kit)
        assert not (kit / "out.log").exists()


@pytest.mark.parametrize("name", ["../../x", "..", "/etc", "a/b", "", "x" * 65, "r1\n", 7, None, ["r1"]])
def test_the_name_of_a_run_is_no_path_at_the_server(name):
    with pytest.raises(fd.FoedusError, match="the name of a run must have up to 64 letters, digits"):
        check_run_name(name)


def test_a_job_whose_run_is_a_path_writes_nothing_outside(kits, tmp_path):
    """The name in `run.json` became that of a folder at the server, whatever it was."""
    from nvflare.apis.workspace import Workspace

    from foedus.federation.flare.controller import FoedusController

    kit = Path(shutil.copytree(kits["server"], tmp_path / "kit"))
    job = "0123"
    config = Path(Workspace(str(kit)).get_app_config_dir(job))
    config.mkdir(parents=True)
    (config / "run.json").write_text(json.dumps({"run": "../../x"}))

    class Context:
        def get_workspace(self):
            return Workspace(str(kit))

        def get_job_id(self):
            return job

        def get_engine(self):
            return SimpleNamespace(register_app_command=lambda *told: None)

    before = {*tmp_path.rglob("*")}
    FoedusController().control_flow(SimpleNamespace(triggered=False), Context())
    new = {path.relative_to(kit).as_posix() for path in {*tmp_path.rglob("*")} - before}
    assert new == {f"{job}/ended.json"}
    ending = json.loads((kit / job / "ended.json").read_text())
    assert (ending["how"], "the name of a run must have" in ending["sentence"]) == ("refused", True)


# --- receipts of ledgers at the server ---


def test_the_server_keeps_the_newest_receipt_of_each_site_over_runs(tmp_path):
    receipts = Receipts(tmp_path)
    assert receipts.of("city") is None
    for lines in (3, 5, 4):
        receipts.take("city", {"lines": lines, "last": f"{lines}"})
    for wrong in (None, 7, {}, {"lines": "9"}, [1]):
        receipts.take("city", wrong)
    receipts.save()
    Receipts(tmp_path).take("city", {"lines": 1, "last": ""})
    other = Receipts(tmp_path)
    other.take("city", {"lines": 9, "last": "9"})
    receipts.take("city", {"lines": 7, "last": "7"})
    other.save()
    receipts.save()
    assert Receipts(tmp_path).of("city") == {"lines": 9, "last": "9"}, "two runs at once: the newer one stays"
    with pytest.raises(fd.FoedusError, match="a site's name must hold letters"):
        receipts.of("../../x")


def test_a_later_run_of_the_server_finds_the_ledger_that_was_rolled_back(tmp_path):
    """The server's own folder keeps receipts over its runs, and the greeting of the next run shows them."""
    problem = fd.Problem([(np.eye(2), np.ones(2))] * 3, loss=fd.losses.least_squares)
    noise = fd.Gaussian(epsilon=0.5, delta=1e-6, clip=1.0, sampler="opendp", most=2)
    private = fd.FedAvg(k0=1, lr=0.1).with_noise(noise, problem)
    hall = Hall(tmp_path, problem, private, max_rounds=2)
    hall.play()
    assert sorted(path.name for path in (tmp_path / ".receipts").iterdir()) == [f"site-{i}.json" for i in (1, 2, 3)]
    hall.order = replace(hall.order, run="r2")
    hall.open_sites()
    hall.play()
    for name in ("ledger.jsonl", "ledger.head"):
        (tmp_path / "site-2" / name).unlink()
    hall.open_sites()
    hall.order = replace(hall.order, run="r3")
    with pytest.raises(Paused, match="'1': its ledger of privacy is not the newest one; its own log says what"):
        hall.play(patience=Patience(timeout=1.0, hello=0.0, keep_every=1e9))
