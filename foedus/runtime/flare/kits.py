"""Provisioning: one kit a party, with certificates of one project; foedus adds the few settings that matter."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foedus.errors import FoedusError
from foedus.runtime.checkpoint import write_whole
from foedus.runtime.flare.policy import SITE_FILE

IMPL = "nvflare.lighter.impl"
ADMIN = "coordinator@foedus.org"
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
# FLARE 2.9 keeps a thread waiting for each message it has received, as long as a sender may repeat it: 65 s by default,
# which is thousands of threads at 30 rounds a second
STREAMS = {"streaming_retry_timeout": 2.0, "streaming_retry_wait": 1.0}
CLASSES = ["foedus.runtime.flare."]  # the only classes that a job may name at a party


@dataclass(frozen=True)
class Project:
    """Who takes part: the server's address and the sites."""

    name: str
    server: str
    sites: tuple[str, ...]
    port: int = 8002
    admin_port: int = 8003

    def __post_init__(self) -> None:
        for site in self.sites:
            if not NAME.fullmatch(site):
                raise FoedusError(f"the site name {site!r} must hold letters, digits and '-' only.")
        if len(set(self.sites)) != len(self.sites) or not self.sites:
            raise FoedusError(f"a project needs sites with different names. Got {list(self.sites)} instead.")

    def to_yaml(self) -> str:
        """The project as FLARE's provisioner reads it; JSON is YAML."""
        parties: list[dict[str, Any]] = [
            {
                "name": self.server,
                "type": "server",
                "org": "foedus",
                "fed_learn_port": self.port,
                "admin_port": self.admin_port,
            }
        ]
        parties += [
            {"name": s, "type": "client", "org": s.replace("-", "_"), "allow_log_streaming": False} for s in self.sites
        ]
        parties += [{"name": ADMIN, "type": "admin", "org": "foedus", "role": "project_admin"}]
        builders: list[dict[str, Any]] = [
            {"path": f"{IMPL}.workspace.WorkspaceBuilder", "args": {"template_file": "master_template.yml"}},
            {"path": f"{IMPL}.static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": "tcp"}},
            {"path": f"{IMPL}.cert.CertBuilder"},
            {"path": f"{IMPL}.signature.SignatureBuilder"},
        ]
        project = {"api_version": 3, "name": self.name, "description": "a foedus federation"}
        return json.dumps(project | {"participants": parties, "builders": builders}, indent=1)


def require_nvflare() -> None:
    """Raise where NVIDIA FLARE is not installed."""
    from importlib.util import find_spec

    if find_spec("nvflare") is None:
        raise FoedusError("a real federation needs NVIDIA FLARE: pip install 'foedus[flare]'.")


def provision(project: Project, folder: Path) -> dict[str, Path]:
    """Make the kits in `folder`; returns each party's kit by name ('server' and 'admin' among them)."""
    require_nvflare()
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "project.yml"
    source.write_text(project.to_yaml())
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(source), "-w", str(folder / "made")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    made = sorted((folder / "made" / project.name).glob("prod_*"))
    if done.returncode != 0 or not made:
        raise FoedusError(f"the kits could not be made: {(done.stderr or done.stdout).strip().splitlines()[-1:]}.")
    kits = {site: made[-1] / site for site in project.sites}
    kits |= {"server": made[-1] / project.server, "admin": made[-1] / ADMIN}
    for kit in kits.values():
        (kit / "local").mkdir(exist_ok=True)
        write_whole(kit / "local" / "comm_config.json", json.dumps(STREAMS).encode())
    _finish_server(kits["server"])
    for site in project.sites:
        _finish_site(kits[site])
    return kits


def _finish_server(kit: Path) -> None:
    """Storage inside the kit, no receiver of logs, no classes but ours."""
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    resources["class_allow_list"] = CLASSES
    resources["components"] = [c for c in resources["components"] if c["id"] != "log_receiver"]
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(kit / "storage" / "jobs")
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "storage" / "snapshots")
    write_whole(kit / "local" / "resources.json", json.dumps(resources, indent=1).encode())
    write_whole(kit / "local" / SITE_FILE, b"[policy]\nmodules = []\n")
    told = json.loads((kit / "startup" / "fed_server.json").read_text())["servers"][0]
    ports = (told["service"]["target"].rpartition(":")[2], told["admin_port"])
    text = SERVER_README.format(ports=" and ".join(str(port) for port in ports), storage=kit / "storage")
    write_whole(kit / "README.txt", text.encode())
    (kit / "readme.txt").unlink(missing_ok=True)  # FLARE's own, which names steps that are done here
    os.chmod(kit / "startup" / "server.key", 0o600)


SITE_TEMPLATE = """\
# What this site brings to a federation, and what it allows. This file stays here; nobody else reads it.

[data]
file = "data.csv"     # a table with a header, .csv, .tsv or .parquet; relative to this folder, or from the root
separator = ","
# x = ["age", "dose"] # the only columns that may be used to predict from; all others when left out

# Where your file calls a column by another name than the experiment: the experiment's name = yours.
# [data.columns]
# ill = "diagnosis"

[policy]
algorithms = ["*"]    # the algorithms that may run here, by name; "*" allows all
modules = []          # Python modules beside foedus whose functions may run on the data
min_rows = 50         # stay out with fewer rows than this
privacy = false       # true: only algorithms that add noise to what they send
# max_epsilon = 1.0         # the most privacy loss in one run
# max_epsilon_total = 10.0  # the most in all runs together
max_message = 100000000     # bytes in one message
max_words = 50        # different words of one column that are told to the server
own_keys = true       # random draws here are keyed by a secret of this site
"""

README = """\
Kit of the site {site}
======================
This folder lets one computer take part in a federation as "{site}". Keep it private: startup/client.key is the site's
identity. Whoever has it can take part in your name.

What you need: Python 3.11 or newer, and  pip install 'foedus[flare]'  in the versions the coordinator names.
Network: this computer opens ONE connection, outgoing, to {server} port {port}. No port of yours has to be opened.

1. Write down your data:  edit  local/foedus.toml  (which file, which columns, what you allow).
2. Start:                 startup/start.sh          (it restarts itself after a crash)
3. Stop:                  startup/stop_fl.sh
4. See what was sent:     foedus site audit {folder}

What leaves this computer: model-sized numbers that the agreed algorithm computes, never a row of your data, nor the
data file's name. Every message is listed in foedus-runs/messages.jsonl with its size and purpose. If something fails
here, the coordinator is told that it failed; why is in foedus-runs/site.log, which stays here.
"""


SERVER_README = """\
Kit of the server
=================
This folder lets one computer be the server of a federation. Keep it private: startup/server.key is its identity.

What you need: Python 3.11 or newer, and  pip install 'foedus[flare]'.
Network: sites and the coordinator connect to this computer, ports {ports} (TCP, mutual TLS).

1. Storage: jobs are kept in {storage}. If this folder is moved,
   change the two paths in local/resources.json.
2. Start: startup/start.sh    Stop: startup/stop_fl.sh

Models and checkpoints are in foedus-runs. No site's data ever come here.
"""


def _finish_site(kit: Path) -> None:
    """No streaming of logs, no classes but ours, a site file to fill in."""
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    resources["class_allow_list"] = CLASSES
    resources["allow_log_streaming"] = False
    resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
    write_whole(kit / "local" / "resources.json", json.dumps(resources, indent=1).encode())
    write_whole(kit / "local" / SITE_FILE, SITE_TEMPLATE.encode())
    server = json.loads((kit / "startup" / "fed_client.json").read_text())["servers"][0]["service"]["target"]
    host, _, port = server.rpartition(":")
    (kit / "readme.txt").unlink(missing_ok=True)
    write_whole(kit / "README.txt", README.format(site=kit.name, server=host, port=port, folder=".").encode())
    os.chmod(kit / "startup" / "client.key", 0o600)


def write_site_file(kit: Path, data: Path | None, policy: dict[str, Any]) -> None:
    """The site file of a kit on this machine."""
    lines = ["[data]", f"file = {json.dumps(str(data))}", ""] if data is not None else []
    lines += ["[policy]", *(f"{k} = {json.dumps(v)}" for k, v in policy.items())]
    write_whole(kit / "local" / SITE_FILE, ("\n".join(lines) + "\n").encode())


def job(folder: Path, run: str, order: bytes, sites: tuple[str, ...], transport: str, patience: dict[str, Any]) -> Path:
    """A job: three JSON files that name our classes, and the order at the server alone."""
    for app in ("app_server", "app_site"):
        (folder / app / "config").mkdir(parents=True, exist_ok=True)
    meta = {
        "name": run,
        "resource_spec": {},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
        "deploy_map": {"app_server": ["server"], "app_site": list(sites)},
    }
    workflow = {
        "id": "foedus",
        "path": "foedus.runtime.flare.controller.FoedusController",
        "args": {"transport": transport, "patience": patience},
    }
    server = {"format_version": 2, "server": {"task_request_interval": 0.01}, "workflows": [workflow], "components": []}
    executor = {"path": "foedus.runtime.flare.executor.FoedusExecutor", "args": {}}
    client = {"format_version": 2, "executors": [{"tasks": ["foedus"], "executor": executor}], "components": []}
    for name, content in (
        ("meta.json", meta),
        ("app_server/config/config_fed_server.json", server),
        ("app_server/config/run.json", {"run": run}),
        ("app_site/config/config_fed_client.json", client),
    ):
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "app_server" / "config" / "order.npz").write_bytes(order)
    return folder
