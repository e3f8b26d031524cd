"""Attacks on sites with the coordinator's certificate, over real FLARE processes. Slow; needs NVIDIA FLARE.

Every promise has two guards, FLARE's own settings in the kit and our door; each must hold without the other.
"""

import json
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from constrained_cases import CAPPED, breast_cancer
from federations import REAL

import foedus as fd

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

import psutil

from foedus.federation import packing
from foedus.federation.flare.console import FINISHED, Console
from foedus.federation.flare.kits import job
from foedus.federation.flare.trial import Federation
from foedus.federation.names import RUNS
from foedus.federation.policy import SITE_FILE

pytestmark = [*REAL, pytest.mark.slow]

FLARES = {
    "app_deployer": "nvflare.private.fed.utils.app_deployer.AppDeployer",
    "process_launcher": "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher",
}
SECRET = "patient-4711"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Three sites: the first as it is, the second with FLARE's settings alone, the third with our door alone."""
    federation = Federation.up(tmp_path_factory.mktemp("guarded"), 3)
    resources = federation.kit("site-2") / "local/resources.json"
    told = json.loads(resources.read_text())
    for part in told["components"]:
        part["path"] = FLARES.get(part["id"], part["path"])
    resources.write_text(json.dumps(told))
    local = federation.kit("site-3") / "local"
    told = json.loads((local / "resources.json").read_text())
    (local / "resources.json").write_text(json.dumps(told | {"class_allow_list": ["*"]}))
    (local / "authorization.json").unlink()  # FLARE's default: the coordinator may do anything
    for site in federation.sites:
        (federation.kit(site) / "local" / "data.csv").write_text(f"name,ill\n{SECRET},1\n")
    for site in ("site-2", "site-3"):
        federation._end(site)
        federation._start(site)
    federation.wait()
    yield federation
    federation.down()


SITES = ("site-1", "site-2", "site-3")


def submitted(federation: Federation, made: Path) -> list[str]:
    """What the server was told when it gave a job to its sites; returns when the job is over."""
    with Console(federation.kit("admin")) as console:
        number = console.submit(made)
        until = time.monotonic() + 90
        while not console.status(number).startswith(FINISHED):
            assert time.monotonic() < until, "the job is not over"
            time.sleep(0.5)
        return list(console.session.get_job_meta(number)["job_deploy_detail"])


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("name", ["sitecustomize.py", "foedus/federation/flare/executor.py"])
def test_code_that_comes_with_a_job_does_not_run(guarded, tmp_path, site, name):
    made = job(tmp_path / "job", "r1", b"", (site,), "aux", {}, {})
    code = made / "app_site/custom" / name
    code.parent.mkdir(parents=True)
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    told = [line for line in submitted(guarded, made) if line.startswith(f"{site}: ")]
    assert told
    assert ("BYOC not permitted" if site == "site-2" else "a job may bring config/config_fed_client.json") in told[0]
    assert not (tmp_path / "ran").exists()
    assert not [*guarded.kit(site).rglob(code.name)]


@pytest.mark.parametrize("site", SITES)
def test_a_function_named_as_a_component_is_not_called(guarded, tmp_path, site):
    """It would write the site's policy anew: a job's process works in the kit's folder."""
    made = job(tmp_path / "job", "r1", b"", (site,), "aux", {}, {})
    config = made / "app_site/config/config_fed_client.json"
    inner = {"path": "foedus.federation.flare.kits.Path"}
    told = {"path": "foedus.federation.flare.kits.write_site_file"}
    told |= {"id": "w", "args": {"kit": inner, "data": None, "policy": {"modules": ["evil"]}}}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"components": [told]}))
    terms = guarded.kit(site) / "local" / SITE_FILE
    before = terms.read_bytes()
    (line,) = [line for line in submitted(guarded, made) if line.startswith(f"{site}: ")]
    assert terms.read_bytes() == before
    if site == "site-2":  # FLARE lets the job in, and its process ends at the list of classes
        assert line == "site-2: OK"
        said = "".join(log.read_text() for log in guarded.kit(site).glob("*/log.txt"))
        assert "'foedus.federation.flare.kits.write_site_file' at config path" in said
        assert "is not in allow_list" in said
    else:
        assert "must name FoedusExecutor, with no arguments, components or filters" in line


COMMANDS = {
    "cat": lambda session, site: session.cat_target(site, None, "local/data.csv"),
    "head": lambda session, site: session.head_target(site, None, "local/data.csv"),
    "tail": lambda session, site: session.tail_target(site, None, "local/data.csv"),
    "grep": lambda session, site: session.grep_target(site, None, "ill", "local/data.csv"),
    "ls": lambda session, site: session.ls_target(site, None, "local"),
    "pwd": lambda session, site: session.get_working_directory(site),
    "log": lambda session, site: session.tail_target_log(site),
    "env": lambda session, site: session.get_client_env([site]),
}


@pytest.mark.parametrize(
    ("command", "site"),
    [(command, site) for command in COMMANDS for site in (*SITES, "server") if (command, site) != ("env", "server")],
)
def test_no_shell_log_or_file_command_is_answered(guarded, command, site):
    """Not even with a file of data in the kit, where none should be."""
    if site == "server":
        (guarded.kit("server") / "local/data.csv").write_text(f"name,ill\n{SECRET},1\n")
    with Console(guarded.kit("admin")) as console:
        try:
            said = str(COMMANDS[command](console.session, site))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    assert "invalid_request" in said or "authoriz" in said.lower(), said
    for word in (SECRET, str(guarded.kit(site)), SITE_FILE, "INFO"):
        assert word not in said


def test_nobody_outside_sets_what_a_site_logs(guarded):
    with Console(guarded.kit("admin")) as console:
        console.session.configure_site_log("DEBUG", "client")  # it has no reply, whatever comes of it
    time.sleep(12)  # a site that obeys writes dozens of lines in this time
    for site in guarded.sites:
        assert " - DEBUG - " not in (guarded.kit(site) / "log.txt").read_text()


def test_nobody_outside_sets_what_a_job_logs(federation, tmp_path):
    """FLARE passes such settings on to a site without asking its authorisation."""
    ran = tmp_path / "ran"
    factory = {"()": "subprocess.Popen", "args": ["touch", str(ran)]}
    function = {"version": 1, "disable_existing_loggers": False, "formatters": {"x": factory}}
    said: list[str] = []

    def attack(rounds: int, record: dict[str, float]) -> None:
        if rounds < 5 or said:
            return
        with Console(federation.kit("admin")) as console:
            running = [one["job_id"] for one in console.session.list_jobs() if one["status"] == "RUNNING"]
            for config in ("DEBUG", function):
                for target in ("site-1", "server"):
                    try:
                        said.append(str(console.session.configure_job_log(running[0], config, target)))
                    except Exception as error:
                        said.append(f"{type(error).__name__}: {error}")

    problem = fd.Problem(breast_cancer().sites, loss=fd.losses.logistic)
    runtime = fd.Flare(at=federation.folder)
    run = fd.solve(problem, fd.FedAvg(lr=1e-3, tol=0.0), max_rounds=400, runtime=runtime, callback=attack)
    assert len(said) == 4, "the attack was not made"
    assert all("authoriz" in words.lower() or "invalid" in words.lower() for words in said), said
    assert run.rounds == 400
    assert not ran.exists()
    for log in federation.kit("site-1").glob("*/log.txt"):
        assert " - DEBUG - " not in log.read_text()


def test_what_a_run_leaves_behind_is_for_its_owner_alone(federation):
    run = fd.solve(breast_cancer().problem(), CAPPED["newton"], runtime=fd.Flare(at=federation.folder))
    assert run.certificate.holds()
    seen = 0
    for path in (federation.folder / "kits", *(federation.folder / "kits").rglob("*")):
        if not path.is_symlink():
            assert not stat.S_IMODE(path.lstat().st_mode) & 0o077, path
            seen += path.is_file() and RUNS in path.parts
    assert seen >= 4, "each party's records are among them"
    assert not [*federation.folder.rglob("*.ckpt")], "the states of sites and server go with the run"
    for site in federation.sites:
        assert not federation.data(site).is_relative_to(federation.kit(site))
        assert not stat.S_IMODE(federation.data(site).parent.stat().st_mode) & 0o077


def test_data_inside_the_kit_keep_a_real_site_out(guarded: Any, tmp_path):
    kit = guarded.kit("site-1")
    before = (kit / "local" / SITE_FILE).read_text()
    (kit / "local" / SITE_FILE).write_text('[data]\nfile = "data.csv"\nlabels = ["ill"]\n')
    try:
        assert guarded.refresh() == ["site-1"]
        guarded.wait()
        (line,) = [
            line
            for line in submitted(guarded, job(tmp_path / "job", "r1", b"", ("site-1",), "aux", {}, {}))
            if line.startswith("site-1: ")
        ]
        assert line.endswith("refused: this site takes no jobs now; its own log says why.")
        assert "lies inside the kit" in (kit / RUNS / "site.log").read_text()
    finally:
        (kit / "local" / SITE_FILE).write_text(before)


STRANGER = """
import os, sys, time
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.utils import new_cell_message
port, job = sys.argv[1:3]
cell = CoreCell(
    fqcn="site-1.stranger", root_url=None, secure=False, credentials={}, parent_url=f"tcp://localhost:{port}"
)
answers = []
cell.register_request_cb(channel="foedus", topic="answer", cb=lambda message: answers.append(bytes(message.payload)))
cell.start()
for content in map(bytes.fromhex, sys.argv[3:] * 5):
    message = new_cell_message({"t": 1}, content)
    told = cell.fire_and_forget(channel="foedus", topic="ask", targets=f"site-1.{job}", message=message, optional=True)
    print(*told.values())
    time.sleep(1.0)
print("answers", answers)
os._exit(0)
"""


def test_a_local_process_without_a_certificate_gets_no_answer_from_a_sites_job(federation, tmp_path):
    """FLARE's cells within a machine listen on loopback without TLS, and passed its messages on; they were answered."""
    script, said = tmp_path / "stranger.py", []
    script.write_text(STRANGER)
    plain = packing.seal({"ask": "hello", "run": "r1", "round": None})
    log = federation.kit("site-1") / RUNS / "site.log"

    def attack(rounds: int, record: dict[str, float]) -> bool:
        if rounds >= 5 and not said:
            (own, *_) = federation.processes("site-1")
            ports = [
                one.laddr.port for one in psutil.Process(own).net_connections() if one.status == psutil.CONN_LISTEN
            ]
            with Console(federation.kit("admin")) as console:
                (number,) = [one["job_id"] for one in console.session.list_jobs() if one["status"] == "RUNNING"]
            words = [
                sys.executable,
                str(script),
                str(ports[0]),
                number,
                plain.hex(),
                b"O".hex(),
                (b"M" + bytes(40)).hex(),
            ]
            said.append(subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout)
        return bool(said)

    problem = fd.Problem(breast_cancer().sites, loss=fd.losses.logistic)
    runtime = fd.Flare(at=federation.folder)
    fd.solve(problem, fd.FedAvg(lr=1e-3, tol=0.0), max_rounds=50_000, runtime=runtime, callback=attack)
    assert "answers []" in said[0]
    assert "a message is let go: it is not sealed by the server." in log.read_text(), "the messages did arrive"
