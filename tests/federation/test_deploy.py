"""Deployment files of a kit: a systemd unit and a container recipe that run a party as a user without rights."""

import configparser
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

from foedus.federation.flare.console import Console, Unreachable
from foedus.federation.flare.deploy import HOME, UID
from foedus.federation.flare.kits import Project, provision, write_site_file
from foedus.federation.flare.trial import _free_ports

SITES = ("st-mary", "city", "north")


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> dict[str, Path]:
    return provision(Project("foedus", "fl.example.org", SITES), tmp_path_factory.mktemp("kits"), site_keys=False)


def unit_of(kit: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read_string((kit / "deploy" / "foedus.service").read_text())
    return unit


def test_every_kit_has_a_unit_for_a_user_without_rights(kits):
    for party in ("server", *SITES):
        service = unit_of(kits[party])["Service"]
        place = f"{HOME}/{kits[party].name}"
        assert service["User"] == "foedus"
        assert service["ExecStart"] == f"{HOME}/venv/bin/foedus party run {place}"
        assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
        assert (service["ProtectSystem"], service["ReadWritePaths"]) == ("strict", place)
        assert service["UMask"] == "0077"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_accepts_the_unit(kits, tmp_path):
    """The program and the user of the unit are replaced by ones that are here."""
    text = (kits["city"] / "deploy" / "foedus.service").read_text()
    text = text.replace(f"{HOME}/venv/bin/foedus", shutil.which("true") or "/bin/true").replace("=foedus\n", "=root\n")
    unit = tmp_path / "foedus-city.service"
    unit.write_text(text)
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "foedus-city" not in said.stderr, said.stderr


def test_the_recipe_runs_the_party_as_the_same_user(kits):
    recipe = (kits["city"] / "deploy" / "Dockerfile").read_text()
    assert f"USER {UID}:{UID}" in recipe
    parts = {name: json.loads(words) for name, words in re.findall(r"^(ENTRYPOINT|CMD) (.*)", recipe, re.MULTILINE)}
    assert [*parts["ENTRYPOINT"], *parts["CMD"]] == ["foedus", "party", "run", "/kit"]
    health = re.search(r"^HEALTHCHECK .* CMD (.*)", recipe, re.MULTILINE)
    assert json.loads(health[1]) == ["foedus", "party", "health", "/kit"]
    assert "-p 8002:8002 -p 8003:8003" in (kits["server"] / "deploy" / "Dockerfile").read_text()


def test_the_trial_in_containers_has_every_party_and_the_servers_name(kits):
    yaml = pytest.importorskip("yaml")
    folder = next(one for one in kits["city"].parents if (one / "compose.yml").is_file())
    services = yaml.safe_load((folder / "compose.yml").read_text())["services"]
    assert {*services} == {"server", *SITES, "coordinator"}
    assert (folder / services["server"]["build"] / "Dockerfile").is_file()
    assert services["server"]["networks"]["default"]["aliases"] == ["fl.example.org"]
    for name, service in services.items():
        place, inside = service["volumes"][0].split(":")
        assert inside == ("/coordinator@foedus.org" if name == "coordinator" else "/kit")
        assert (folder / place).resolve() == kits["admin" if name == "coordinator" else name].resolve()
        assert service["image"] == services["server"]["image"], "one image for all, which the server's recipe builds"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def namespaces() -> bool:
    """Whether this machine lets a process take another user's number in a namespace of its own."""
    command = ["unshare", "--user", f"--map-user={UID}", f"--map-group={UID}", "setpriv", "--no-new-privs", "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(not namespaces(), reason="this machine has no user namespaces")
def test_the_command_of_the_unit_runs_parties_as_a_user_without_rights(tmp_path):
    """As the unit does: another user, no capability, no new privileges, umask 077. The site is let in."""
    kits = provision(Project("foedus", "localhost", ("city",), *_free_ports(2)), tmp_path)
    write_site_file(kits["city"], tmp_path / "none.npz", {})
    command = unit_of(kits["city"])["Service"]["ExecStart"].split()
    without = ["unshare", "--user", f"--map-user={UID}", f"--map-group={UID}", "setpriv", "--no-new-privs"]
    running = []
    codes: list[int] = []
    try:
        for party in ("server", "city"):
            own = [sys.executable, "-m", "foedus.app.cli", *command[1:-1], str(kits[party])]
            running.append(subprocess.Popen([*without, *own], umask=0o077, cwd=kits[party]))
        until = time.monotonic() + 120
        sites: list[str] = []
        while "city" not in sites and time.monotonic() < until:
            time.sleep(1.0)
            try:
                with Console(kits["admin"], timeout=5.0) as console:
                    sites = console.sites()
            except Unreachable:
                continue
        assert sites == ["city"]
        for one in running:
            status = Path(f"/proc/{one.pid}/status").read_text()
            assert re.search(r"CapEff:\t0+\n", status), "no capability"
            assert "NoNewPrivs:\t1" in status
        key = kits["city"] / "startup" / "client.key"
        assert key.stat().st_mode & 0o077 == 0, "its key is its user's alone"
    finally:
        for one in running:
            one.send_signal(signal.SIGTERM)
        codes = [one.wait(timeout=60) for one in running]
    assert codes == [0, 0], "a SIGTERM ends a party in order"
