"""Provisioning: one kit a party, with certificates of one project; foedus adds the settings that make a site safe.

A kit's own authorisation file takes from every role, the coordinator's included, what FLARE would allow it: code that
comes with a job, and the commands for shell, logs and files. Classes that a job may name are listed one by one. At a
site, `job_guard.JobGuard` and `job_guard.Launcher` check the same once more, and `terms` what its site file says.

Private keys stay where they are used. Sites on other machines make their own (see `certificates`), and of those that
FLARE's provisioner writes down in its state only the project's authority remains, for its owner's eyes alone.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.federation.flare.deploy import write_compose, write_deployment
from foedus.federation.names import RUNS, TOPIC
from foedus.federation.policy import SITE_FILE
from foedus.federation.terms import make_private
from foedus.sums.identity import OPERATOR, organisation

IMPL = "nvflare.lighter.impl"
ADMIN = "coordinator@foedus.org"
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
# FLARE 2.9 keeps a thread waiting for each message it has received, as long as a sender may repeat it: 65 s by default,
# which is thousands of threads at 30 rounds a second
STREAMS = {"streaming_retry_timeout": 2.0, "streaming_retry_wait": 1.0}
# what FLARE puts together of many frames before anybody sees it: by tasks an answer comes so, over cells nothing does
STREAMS |= {"streaming_max_blob_size": 2**28}
AUTHORIZATION = "local/authorization.json"
# what FLARE takes from the kit in the place of its own: who unpacks a job at a site, and who starts its process
GUARDS = {
    "app_deployer": "foedus.federation.flare.job_guard.JobGuard",
    "process_launcher": "foedus.federation.flare.job_guard.Launcher",
}
CONTROLLER = "foedus.federation.flare.controller.FoedusController"  # the only class that a job may name at the server
EXECUTOR = "foedus.federation.flare.executor.FoedusExecutor"  # and the only one at a site
# All that a job brings to a site, the same to the byte in every run
CLIENT_FILE = "config/config_fed_client.json"
CLIENT_CONFIG = json.dumps(
    {
        "format_version": 2,
        "executors": [{"tasks": [TOPIC], "executor": {"path": EXECUTOR, "args": {}}}],
        "components": [],
    },
    indent=1,
).encode()
# Between two questions of a site for its next task. By tasks, a round waits for the question. By aux messages none does
# and the question only tells the site that its job is over, so it is asked seldom: at 100 questions a second 30 sites
# took most of the server's processor, and every 2 s three sites took a seventh of all bytes over a line of 100 ms
TASK_SECONDS = {"task": 0.01, "aux": 5.0}
ROOT_DAYS = 3650  # for which the project's authority is valid; its sites' certificates are renewed every year
# What FLARE allows the coordinator at a site and at the server; everything that is not named is forbidden
LOOK = ("check_status", "admin_check_status", "report_version")
AT_SITE = ("submit_job", "abort", "abort_job", *LOOK)
AT_SERVER = (*AT_SITE, "list_jobs", "list_job", "get_job_meta", "app_command", "download_job", "delete_job")
AT_SERVER += ("download_job_components", "disable_client", "enable_client", "remove_client")


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
        if self.server in (OPERATOR, *self.sites):  # its certificate could then be taken for that of a site
            raise FoedusError(f"the server must not be called {OPERATOR!r} or as a site is. Got {self.server!r}.")

    def to_yaml(self) -> str:
        """The project as FLARE's provisioner reads it; JSON is YAML."""
        parties: list[Json] = [
            {
                "name": self.server,
                "type": "server",
                "org": OPERATOR,
                "fed_learn_port": self.port,
                "admin_port": self.admin_port,
            }
        ]
        parties += [
            {"name": s, "type": "client", "org": organisation(s), "allow_log_streaming": False} for s in self.sites
        ]
        parties += [{"name": ADMIN, "type": "admin", "org": OPERATOR, "role": "project_admin"}]
        builders: list[Json] = [
            {"path": f"{IMPL}.workspace.WorkspaceBuilder", "args": {"template_file": "master_template.yml"}},
            {"path": f"{IMPL}.static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": "tcp"}},
            {"path": f"{IMPL}.cert.CertBuilder", "args": {"root_valid_days": ROOT_DAYS}},
            {"path": f"{IMPL}.signature.SignatureBuilder"},
        ]
        project = {"api_version": 3, "name": self.name, "description": "a foedus federation"}
        return json.dumps(project | {"participants": parties, "builders": builders}, indent=1)


def require_nvflare() -> None:
    """Raise where NVIDIA FLARE is not installed."""
    from importlib.util import find_spec

    if find_spec("nvflare") is None:
        raise FoedusError("a real federation needs NVIDIA FLARE: pip install 'foedus[flare]'.")


def provision(project: Project, folder: Path, site_keys: bool = True) -> dict[str, Path]:
    """Make the kits in `folder`; returns each party's kit by name ('server' and 'admin' among them).

    Without `site_keys` the sites' kits hold no secret, and each site makes its own key; with them they can be started
    at once, which is for sites on this machine.
    """
    require_nvflare()
    folder = folder.absolute()  # the server's kit names its storage by it
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    source = folder / "project.yml"
    source.write_text(project.to_yaml())
    options = ["-p", str(source), "-w", str(folder / "made"), "--force"]  # a project that is there gets further kits
    command = [sys.executable, "-m", "nvflare.cli", "provision", *options]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, umask=0o077)
    builds = sorted((folder / "made" / project.name).glob("prod_*"))
    if process.returncode != 0 or not builds:
        complaint = (process.stderr or process.stdout).strip().splitlines()[-1:]
        raise FoedusError(f"the kits could not be made: {complaint}.")
    kits = {site: builds[-1] / site for site in project.sites}
    kits |= {"server": builds[-1] / project.server, "admin": builds[-1] / ADMIN}
    for kit in kits.values():
        (kit / "local").mkdir(exist_ok=True)
        write_whole(kit / "local" / "comm_config.json", json.dumps(STREAMS).encode())
    for party in ("server", *project.sites):
        _write_scripts(kits[party])
        ports = (project.port, project.admin_port) if party == "server" else ()
        write_deployment(kits[party], "the server" if party == "server" else f"the site {party}", ports)
    write_compose(folder, kits["server"], [kits[site] for site in project.sites], kits["admin"])
    _finish_server(kits["server"])
    for site in project.sites:
        _finish_site(kits[site])
        if not site_keys:
            for name in ("client.key", "client.crt"):
                (kits[site] / "startup" / name).unlink()
    forget_keys(folder / "made" / project.name)
    make_private(folder)
    return kits


def add_site(folder: Path, site: str) -> Path:
    """Make the kit of one more site of a project; return it. The other parties' kits, and what runs, stay as they are.

    `folder` is that of `provision`. The server lets in every site with a certificate of the project's authority.
    """
    folder = folder.absolute()
    try:
        content = json.loads((folder / "project.yml").read_text())
        parties = content["participants"]
        server = next(one for one in parties if one["type"] == "server")
        sites = tuple(one["name"] for one in parties if one["type"] == "client")
        builds = sorted((folder / "made" / content["name"]).glob("prod_*"))
        home = builds[-1]
    except (OSError, ValueError, KeyError, IndexError, StopIteration, TypeError):
        raise FoedusError(f"{folder} holds no project; 'foedus federation provision' makes one.") from None
    if site in sites:
        raise FoedusError(f"{site!r} is a site of this project already; its kit is {home / site}.")
    project = Project(content["name"], server["name"], (*sites, site), server["fed_learn_port"], server["admin_port"])
    kits = provision(project, folder, site_keys=False)
    kits[site].rename(home / site)
    shutil.rmtree(kits["server"].parent)
    write_compose(folder, home / server["name"], [home / name for name in (*sites, site)], home / ADMIN)
    return home / site


def _write_scripts(kit: Path) -> None:
    """Scripts that start and stop a party, in the place of FLARE's, which ask a question before they stop anything."""
    for name in ("sub_start.sh", "stop_fl.sh", "docker.sh"):
        (kit / "startup" / name).unlink(missing_ok=True)
    for name in ("start", "stop"):
        path = kit / "startup" / f"{name}.sh"
        write_whole(path, SCRIPT.format(name=name).encode())
        os.chmod(path, 0o700)


SCRIPT = """\
#!/bin/sh
exec "${{FOEDUS_PYTHON:-python3}}" -m foedus.app.cli party {name} "$(cd "$(dirname "$0")/.." && pwd)"
"""


def forget_keys(project: Path) -> None:
    """Delete the parties' keys that FLARE's provisioner wrote down; a party has its own in its kit.

    The authority's key stays, for further certificates are signed with it.
    """
    state = project / "state" / "cert.json"
    content = json.loads(state.read_text())
    write_whole(state, json.dumps({key: content[key] for key in ("root_cert", "root_pri_key")}).encode())


def _authorize(kit: Path, rights: tuple[str, ...]) -> None:
    """Write the kit's own authorisation file, which takes the place of FLARE's default."""
    write_whole(kit / AUTHORIZATION, json.dumps(_authorization(rights), indent=1).encode())


def _authorization(rights: tuple[str, ...]) -> Json:
    """Return the roles and what each may do."""
    never = dict.fromkeys(("byoc", "shell_commands", "server-predeployed-flwr"), "none")
    roles: Json = {"project_admin": dict.fromkeys(rights, "any") | never}
    roles |= {"member": dict.fromkeys(LOOK, "any") | never, "lead": "none", "org_admin": "none"}
    return {"format_version": "1.0", "permissions": roles}


def check_kit(kit: Path) -> None:
    """Raise where a kit does not have the guards of this version: one of an older version may let in code and commands.

    They are who may do what (`authorization.json`), which classes a job may name, and at a site who guards it.
    """
    is_site = (kit / "startup" / "fed_client.json").is_file()
    try:
        rights = json.loads((kit / AUTHORIZATION).read_text())
        resources = json.loads((kit / "local" / "resources.json").read_text())
        guards = {part["id"]: part["path"] for part in resources["components"] if part["id"] in GUARDS}
        is_current = rights == _authorization(AT_SITE if is_site else AT_SERVER)
        is_current &= resources["class_allow_list"] == [EXECUTOR if is_site else CONTROLLER]
        is_current &= not is_site or guards == GUARDS
    except (OSError, ValueError, KeyError, TypeError):
        is_current = False
    if not is_current:
        raise FoedusError(
            f"the kit {kit} was made by another version of foedus, or its {AUTHORIZATION} or local/resources.json was "
            "changed, so it may let in what this version keeps out. Copy both files from a kit that 'foedus federation "
            "provision' of this version makes for the same project; keys and certificates stay."
        )


def _finish_server(kit: Path) -> None:
    """Storage inside the kit, no receiver of logs, no class but ours, no code from outside."""
    _authorize(kit, AT_SERVER)
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    resources["class_allow_list"] = [CONTROLLER]
    resources["components"] = [c for c in resources["components"] if c["id"] != "log_receiver"]
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(kit / "storage" / "jobs")
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "storage" / "snapshots")
    write_whole(kit / "local" / "resources.json", json.dumps(resources, indent=1).encode())
    write_whole(kit / "local" / SITE_FILE, b"[policy]\nmodules = []\n")
    server = json.loads((kit / "startup" / "fed_server.json").read_text())["servers"][0]
    ports = (server["service"]["target"].rpartition(":")[2], server["admin_port"])
    text = SERVER_README.format(ports=" and ".join(str(port) for port in ports))
    write_whole(kit / "README.txt", text.encode())
    (kit / "readme.txt").unlink(missing_ok=True)  # FLARE's own, which names steps that are done here
    (kit / "storage").mkdir(exist_ok=True)
    (kit / RUNS).mkdir(exist_ok=True)


SITE_TEMPLATE = """\
# What this site brings to a federation, and what it allows. This file stays here; nobody else reads it.
# It is read when the site is started: after a change, stop and start the site.

[data]
file = "/path/to/table.csv"   # a table with a header, .csv, .tsv, .xlsx or .parquet; from the root, outside this kit
x = []                # the columns that may be used to predict from, for instance ["age", "dose"]; empty: all others
labels = []           # the columns that may be predicted, for instance ["diagnosis"]; no other can be
groups = []           # the columns that may split the rows into groups

# Where your file calls a column by another name than the experiment: the experiment's name = yours.
# [data.columns]
# ill = "diagnosis"

# Where your file spells a value otherwise, or has other units: it stays as it is, and is read as these lines say.
# Further keys of [data], where they are not recognised: separator, encoding, decimal, rename, drop.
# [data.map.diagnosis]
# "ill." = "ill"
# [data.scale]
# age = 0.08333         # months to years

[policy]
approve = "auto"      # "ask": an experiment waits until you have approved it
algorithms = ["*"]    # the algorithms that may run here, by name; "*" allows all
modules = []          # Python modules beside foedus whose functions may run on the data
min_rows = 50         # stay out with fewer rows than this
min_subset = 20       # no figure about fewer rows than this leaves
min_sites = 2         # no run over fewer sites than this
ranges = false        # true: the least and the greatest value of a column may be told; they are two patients' values
privacy = false       # true: only what noise covers may leave
# max_epsilon = 1.0         # the most privacy loss in one run
# max_epsilon_total = 10.0  # the most in all runs together
max_delta = 1e-5      # the delta at which these totals are computed
max_message = 100000000     # bytes in one message
max_words = 50        # different words of one column that are told to the server
evaluate = true       # whether sums and histograms of rows held out of training may be told, to say how good a model is
secure = true         # exact answers leave as masked sums alone, of 4 sites or more; false: the server sees each
max_answers = 0.33    # numbers that may leave in a run without noise, as a share of the numbers in the rows
max_leverage = 0.5    # a site with a row that stands out more than this in sums of squares stays out; 1: allows any
secure_min = 3        # the fewest other sites in a masked sum
verify = true         # whether masked sums without noise leave in checked runs alone
"""

README = """\
Kit of the site {site}
======================
This folder lets one computer take part in a federation as "{site}".

What you need: Python 3.11 or newer, and  pip install 'foedus[flare]'  in the versions the coordinator names.
Network: this computer opens ONE connection, outgoing, to {server} port {port}. No port of yours has to be opened.

1. Make your key:         foedus site request .     It stays here: startup/client.key is the site's identity.
                          Send the file {site}.csr to the coordinator, and compare its fingerprint by telephone.
2. Take your certificate: foedus site install {site}.crt .     (the file that the coordinator sends back)
3. Write down your data:  edit  local/foedus.toml  (which file, which columns, what you allow). The data stay outside
                          this folder. Whoever runs the site needs to read local/, not to write it.
4. Start:                 startup/start.sh          (it restarts itself after a crash; out.log is its log)
5. Stop:                  startup/stop.sh           (after a change of local/foedus.toml: stop, then start)
6. See what was sent:     foedus site audit {folder}     and your own page of each run:  foedus site report {folder}
7. Every year:            foedus site install {site}.crt .     (the certificate lasts 360 days; from 30 days before
                          its end you are told, and the coordinator sends a new one; then stop and start)

As a service: deploy/foedus.service (systemd) and deploy/Dockerfile run the same as a user without rights; the first
lines of each say how.

What comes in: one file that names the program already installed here, and numbers. A job that brings code, files or
settings is refused, and no command of FLARE's for shell, logs or files is answered; local/authorization.json and the
guard in local/resources.json see to that, so leave them as they are.
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

Start: startup/start.sh    Stop: startup/stop.sh    Log: out.log    Jobs are kept in storage/.
As a service: deploy/foedus.service (systemd), deploy/Dockerfile.

Models and checkpoints are in foedus-runs. No site's data ever come here.
"""


def _finish_site(kit: Path) -> None:
    """No streaming of logs, no class but ours, our guard and launcher, a site file to fill in."""
    _authorize(kit, AT_SITE)
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    resources["class_allow_list"] = [EXECUTOR]
    resources["allow_log_streaming"] = False
    parts = [c for c in resources["components"] if c["id"] not in ("site_log_streamer", "process_launcher")]
    resources["components"] = [*parts, *({"id": name, "path": path, "args": {}} for name, path in GUARDS.items())]
    write_whole(kit / "local" / "resources.json", json.dumps(resources, indent=1).encode())
    write_whole(kit / "local" / SITE_FILE, SITE_TEMPLATE.encode())
    server = json.loads((kit / "startup" / "fed_client.json").read_text())["servers"][0]["service"]["target"]
    host, _, port = server.rpartition(":")
    (kit / "readme.txt").unlink(missing_ok=True)
    write_whole(kit / "README.txt", README.format(site=kit.name, server=host, port=port, folder=".").encode())
    (kit / RUNS).mkdir(exist_ok=True)


def is_filled_in(kit: Path) -> bool:
    """Return whether somebody wrote the site file of a kit: not whoever made the kit, nor an earlier submission."""
    text = (kit / "local" / SITE_FILE).read_text()
    first, _, rest = text.partition("\n")
    return text != SITE_TEMPLATE and first != _by_submission(rest)


def _by_submission(rest: str) -> str:
    """The first line of a site file that a submission wrote, which no longer fits once the file is changed."""
    return f"# Written by 'foedus federation submit' ({hashlib.sha256(rest.encode()).hexdigest()[:16]})."


def _toml(value: object) -> str:
    """A value as TOML; a dict becomes a table within one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k, ensure_ascii=False)} = {_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def write_site_file(kit: Path, data: Path | None, policy: Json, more: Json | None = None, mark: bool = False) -> None:
    """Write the site file of a kit on this machine; `more` are further keys of [data].

    With `mark` its first line says that a submission wrote it, so that a later one may write it anew.
    """
    keys = {} if data is None else {"file": str(data), **(more or {})}
    lines = ["[data]", *(f"{k} = {_toml(v)}" for k, v in keys.items() if v is not None), ""] if keys else []
    lines += ["[policy]", *(f"{k} = {_toml(v)}" for k, v in policy.items())]
    text = "\n".join(lines) + "\n"
    path = kit / "local" / SITE_FILE
    write_whole(path, (f"{_by_submission(text)}\n{text}" if mark else text).encode())
    os.chmod(path, 0o600)


def job(
    folder: Path,
    run: str,
    order: bytes,
    sites: tuple[str, ...],
    transport: str,
    patience: Json,
    signatures: Json,
    name: str | None = None,
) -> Path:
    """Write a job into a folder: JSON files that name our classes, and the order, which goes to the server alone.

    `signatures` are the coordinator's under the plan; `name` is what the server's list calls the job, that of the run
    when left out.
    """
    for app in ("app_server", "app_site"):
        (folder / app / "config").mkdir(parents=True, exist_ok=True)
    meta = {
        "name": name or run,
        "resource_spec": {},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
        "deploy_map": {"app_server": ["server"], "app_site": list(sites)},
    }
    workflow = {
        "id": "foedus",
        "path": CONTROLLER,
        "args": {"transport": transport, "patience": patience},
    }
    asking = {"task_request_interval": TASK_SECONDS[transport]}
    server = {"format_version": 2, "server": asking, "workflows": [workflow], "components": []}
    for name, content in (
        ("meta.json", meta),
        ("app_server/config/config_fed_server.json", server),
        ("app_server/config/run.json", {"run": run, "signatures": signatures}),
    ):
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "app_site" / CLIENT_FILE).write_bytes(CLIENT_CONFIG)
    (folder / "app_server" / "config" / "order.npz").write_bytes(order)
    return folder
