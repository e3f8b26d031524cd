"""What a kit holds, who can read it, and what its door lets in. No FLARE process is started; needs NVIDIA FLARE."""

import datetime
import importlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest

import foedus as fd

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

from cryptography import x509
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.shareable import Shareable
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher import process_launcher
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.security.security import COMMAND_CATEGORIES, FLAuthorizer

from foedus.federation.flare import certificates
from foedus.federation.flare import party as parties
from foedus.federation.flare.executor import FoedusExecutor
from foedus.federation.flare.job_guard import JobGuard, Launcher
from foedus.federation.flare.kits import (
    ADMIN,
    CLIENT_CONFIG,
    CLIENT_FILE,
    EXECUTOR,
    Project,
    add_site,
    job,
    provision,
    write_site_file,
)
from foedus.federation.names import FIELD, RUNS
from foedus.federation.policy import SITE_FILE, SiteFile
from foedus.federation.terms import DIGEST, agreed_terms, digest_of, read_terms

SITES = ("site-1", "site-2")
SHELL = ("pwd", "ls", "cat", "head", "tail", "grep")
LOGS = ("configure_job_log", "configure_site_log", "show_errors", "get_job_log")


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A folder of kits as the coordinator has them: the sites are on other machines."""
    folder = tmp_path_factory.mktemp("project") / "kits"
    provision(Project("foedus", "localhost", SITES), folder, site_keys=False)
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> dict[str, Path]:
    """The kits of sites on this machine."""
    return provision(Project("foedus", "localhost", SITES), tmp_path_factory.mktemp("local") / "kits")


@pytest.fixture
def kit(local, tmp_path, monkeypatch) -> Path:
    """A kit whose site file is in order, in a process that is the site's own."""
    monkeypatch.delenv(DIGEST, raising=False)
    folder = Path(shutil.copytree(local["site-1"], tmp_path / "site-1"))
    write_site_file(folder, tmp_path / "data.npz", {})
    return folder


@pytest.fixture(autouse=True)
def commands(monkeypatch):
    """Each test has FLARE's commands anew, and its own umask."""
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", [*ClientRequestProcessors.request_processors])
    monkeypatch.setattr(AdminCommands, "commands", [*AdminCommands.commands])
    before = os.umask(0o022)
    yield
    os.umask(before)


def kits_of(folder: Path) -> dict[str, Path]:
    (made,) = (folder / "made" / "foedus").glob("prod_*")
    return {path.name: path for path in made.iterdir()}


# --- who can read what ---


def test_nobody_but_the_owner_can_read_a_file_or_enter_a_folder_of_the_kits(project, local):
    places = [project, *project.rglob("*"), *(p for kit in local.values() for p in (kit, *kit.rglob("*")))]
    assert len(places) > 60
    for path in places:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert os.access(local["site-1"] / "startup/start.sh", os.X_OK)


@pytest.mark.parametrize("which", ["project", "local"])
def test_of_the_provisioners_keys_only_that_of_the_authority_is_left(request, which):
    made = request.getfixturevalue(which)
    folder = made if which == "project" else made["server"].parents[2]
    (state,) = folder.rglob("cert.json")
    kept = json.loads(state.read_text())
    assert {*kept} == {"root_cert", "root_pri_key"}
    assert state.read_text().count("PRIVATE KEY") == 2  # one, with its begin and its end


def test_the_coordinators_folder_holds_no_key_of_a_site(project):
    files = [p for p in project.rglob("*") if p.is_file() and b"PRIVATE" in p.read_bytes()]
    secret = {p.relative_to(project).as_posix() for p in files}
    place = next(iter(kits_of(project).values())).parent.relative_to(project)
    expected = {"localhost/startup/server.key", "coordinator@foedus.org/startup/client.key"}
    assert secret == {f"{place}/{name}" for name in expected} | {"made/foedus/state/cert.json"}


def test_a_second_provisioning_keeps_the_authority_and_writes_no_old_key_again(tmp_path):
    folder = tmp_path / "kits"
    first = provision(Project("foedus", "localhost", ("site-1",)), folder)
    second = provision(Project("foedus", "localhost", SITES), folder)
    roots = {(kit / "startup/rootCA.pem").read_bytes() for kit in (*first.values(), *second.values())}
    assert len(roots) == 1
    keys = {(kits["site-1"] / "startup/client.key").read_bytes() for kits in (first, second)}
    assert len(keys) == 2


# --- FLARE's own authorisation ---


def authorizer(kit: Path) -> FLAuthorizer:
    """FLARE's own judge over a kit's authorisation file, which it prefers to its default."""
    path = Path(Workspace(str(kit)).get_authorization_file_path())
    assert path == kit / "local/authorization.json"
    return FLAuthorizer("site_1", json.loads(path.read_text()))


def allows(kit: Path, role: str, right: str, org: str = "foedus") -> bool:
    person = Person("coordinator@foedus.org", org, role)
    return authorizer(kit).authorize(AuthzContext(right, person, person))[0]


@pytest.mark.parametrize("role", ["project_admin", "org_admin", "lead", "member", "somebody"])
@pytest.mark.parametrize("org", ["foedus", "site_1"])
def test_no_role_may_bring_code_or_use_a_shell_log_or_file_command_at_a_site(local, role, org):
    forbidden = ["byoc", "server-predeployed-flwr", *SHELL, *LOGS, "report_env", "sys_info", "shutdown", "restart"]
    forbidden += ["call", "delete_workspace", "reset_errors", "report_resources"]
    assert {name for name, group in COMMAND_CATEGORIES.items() if group == "shell_commands"} == {*SHELL}
    for right in forbidden:
        assert not allows(local["site-1"], role, right, org), right
    assert allows(local["site-1"], role, "submit_job", org) == (role == "project_admin")


@pytest.mark.parametrize("role", ["project_admin", "org_admin", "lead", "member"])
def test_no_role_may_bring_code_or_use_a_shell_command_at_the_server(local, role):
    for right in ["byoc", "server-predeployed-flwr", *SHELL, "configure_job_log", "configure_site_log", "call"]:
        assert not allows(local["server"], role, right), right
    for right in ["submit_job", "abort_job", "app_command", "disable_client", "download_job"]:
        assert allows(local["server"], role, right) == (role == "project_admin"), right


# --- classes ---


def test_a_job_may_name_one_class_at_each_party_and_no_function(local):
    for party, others in (("site-1", "controller.FoedusController"), ("server", "executor.FoedusExecutor")):
        resources = json.loads((local[party] / "local/resources.json").read_text())
        (only,) = resources["class_allow_list"]
        module, _, name = only.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), name), type)
        assert resources["class_list_enforcement_mode"] == "enforce"
        flare: Any = ComponentPathAuthorizer()
        workspace = Workspace(str(local[party]))
        flare.authorize_component_config({"path": only}, workspace=workspace)
        for path in ("kits.write_site_file", "kits.Path", "terms.make_private", others, "job_guard.JobGuard"):
            with pytest.raises(UnsafeComponentError):
                flare.authorize_component_config({"path": f"foedus.federation.{path}"}, workspace=workspace)


# --- the door ---


def app(files: dict[str, bytes], folders: tuple[str, ...] = ("config/",)) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for folder in folders:
            archive.writestr(zipfile.ZipInfo(folder), b"")
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def changed(**more: Any) -> bytes:
    return json.dumps(json.loads(CLIENT_CONFIG) | more, indent=1).encode()


ORDINARY = {CLIENT_FILE: CLIENT_CONFIG}
FUNCTION = {"id": "w", "path": "foedus.federation.flare.kits.write_site_file", "args": {}}
ARGUMENTS = {"tasks": ["foedus"], "executor": {"path": EXECUTOR, "args": {"session": {"path": "os.system"}}}}
BAD = {
    "a module that Python imports by itself": app(ORDINARY | {"custom/sitecustomize.py": b"print()"}),
    "our own module in another version": app(ORDINARY | {"custom/foedus/federation/flare/executor.py": b""}),
    "an empty custom folder": app(ORDINARY, ("config/", "custom/")),
    "code among the configuration": app(ORDINARY | {"config/sitecustomize.py": b""}),
    "a second configuration": app(ORDINARY | {"config/config_fed_client.conf": b"{}"}),
    "a configuration of logs": app(ORDINARY | {"config/log_config.json": b"{}"}),
    "a file outside": app(ORDINARY | {"../../local/foedus.toml": b"[policy]"}),
    "a file from the root": app(ORDINARY | {"/tmp/x": b""}),
    "a function as a component": app({CLIENT_FILE: changed(components=[FUNCTION])}),
    "a filter": app({CLIENT_FILE: changed(task_result_filters=[{"tasks": ["*"], "filters": [FUNCTION]}])}),
    "arguments": app({CLIENT_FILE: changed(executors=[ARGUMENTS])}),
    "another executor": app({CLIENT_FILE: CLIENT_CONFIG.replace(b"executor.Foedus", b"kits.Project")}),
    "one more space": app({CLIENT_FILE: CLIENT_CONFIG + b" "}),
    "no configuration": app({}),
    "a file too large": app(ORDINARY | {"config/.__nvfl_sig.json": b"0" * 200_000}),
    "no archive": b"PK and nothing more",
}


@pytest.mark.parametrize("what", BAD)
def test_the_door_refuses_what_is_not_data_before_flare_unpacks_it(kit, monkeypatch, what):
    def unpack(*told: Any, **more: Any) -> str:
        raise AssertionError("FLARE was asked to unpack it")

    monkeypatch.setattr(AppDeployer, "deploy", unpack)
    door, before = JobGuard(), {*kit.rglob("*")}
    door.open(kit)
    answer = door.deploy(Workspace(str(kit), "site-1"), str(uuid.uuid4()), {}, "app_site", BAD[what], FLContext())
    assert answer.startswith("refused: ")
    assert {*kit.rglob("*")} - before == {kit / RUNS / "site.log"}
    assert "refused a job" in (kit / RUNS / "site.log").read_text()


def test_the_door_passes_on_what_a_submit_makes(kit, tmp_path, monkeypatch):
    passed: list[bytes] = []
    monkeypatch.setattr(AppDeployer, "deploy", lambda *told: passed.append(told[5]))
    door = JobGuard()
    door.open(kit)
    made = job(tmp_path / "job", "r1", b"", ("site-1",), "aux", {}, {}) / "app_site"
    files = {p.relative_to(made).as_posix(): p.read_bytes() for p in made.rglob("*") if p.is_file()}
    signed = files | {".__nvfl_sig.json": b"{}", ".__nvfl_submitter.crt": b"", "config/.__nvfl_sig.json": b"{}"}
    for content in (app(files), app(signed)):
        told = (Workspace(str(kit), "site-1"), str(uuid.uuid4()), {}, "app_site", content, FLContext())
        assert door.deploy(*told) == ""
    assert len(passed) == 2


@pytest.mark.parametrize("number", ["local", "startup", "..", RUNS, "", None, "0293CB3E-44AA-4BEE-9DE4-95422E4EF4C5"])
def test_a_job_cannot_take_the_place_of_a_folder_of_the_kit(kit, monkeypatch, number):
    monkeypatch.setattr(AppDeployer, "deploy", lambda *told: pytest.fail("deployed"))
    door = JobGuard()
    door.open(kit)
    answer = door.deploy(Workspace(str(kit), "site-1"), number, {}, "app_site", app(ORDINARY), FLContext())
    assert answer.startswith("refused: the number of a job must be a UUID.")
    assert (kit / "local" / SITE_FILE).exists()


@pytest.mark.parametrize("extra", ["custom/sitecustomize.py", "config/config_fed_client.conf", "custom", None])
def test_the_launcher_looks_again_before_it_starts_a_process(kit, monkeypatch, extra):
    started: list[Any] = []
    monkeypatch.setattr(process_launcher, "spawn_process", lambda argv, env: started.append(argv))
    monkeypatch.setattr(Launcher, "get_command", lambda self, job_meta, fl_ctx: "python -V")
    workspace, number, context = Workspace(str(kit), "site-1"), str(uuid.uuid4()), FLContext()
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace)
    folder = Path(workspace.get_app_dir(number))
    (folder / CLIENT_FILE).parent.mkdir(parents=True)
    (folder / CLIENT_FILE).write_bytes(CLIENT_CONFIG)
    if extra is None:
        with pytest.raises(ValueError, match="ProcessHandle requires"):  # of the process that was not started here
            Launcher().launch_job({"job_id": number}, context)
        assert started
        return
    if "." in extra:
        (folder / extra).parent.mkdir(exist_ok=True)
        (folder / extra).write_text("print()")
    else:
        (folder / extra).mkdir()
    with pytest.raises(fd.FoedusError, match="a job may bring"):
        Launcher().launch_job({"job_id": number}, context)
    assert not started


def test_only_what_a_job_needs_is_answered_at_a_site():
    """FLARE authorises by headers that its server writes, and a change of a job's logs not at all."""
    topics = {topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()}
    assert {"sys.shell", "train.configure_job_log", "sys.configure_site_log", "train.delete_run"} <= topics
    JobGuard()
    topics = {topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()}
    assert topics == {
        *("scheduler.check_resource", "scheduler.cancel_resource", "train.deploy", "train.start_job"),
        *("train.notify_job_status", "train.check_status", "train.abort", "sys.report_version"),
    }
    assert {one.get_command_name() for one in AdminCommands.commands} == {"check_status", "abort", "shutdown"}
    assert AdminCommands.get_command("configure_job_log") is None


def test_every_kit_of_a_site_has_the_door_and_the_launcher(local):
    parts = json.loads((local["site-1"] / "local/resources.json").read_text())["components"]
    named = {part["id"]: part["path"].rpartition(".")[2] for part in parts}
    assert (named["app_deployer"], named["process_launcher"]) == ("JobGuard", "Launcher")
    assert len(parts) == len(named) == 4
    assert "site_log_streamer" not in named


# --- the site's terms ---


def test_the_template_is_a_site_file_with_cautious_limits(local, tmp_path):
    path = local["site-1"] / "local" / SITE_FILE
    site = SiteFile.read(path)
    assert site.data is not None
    assert site.data.file.is_absolute()
    policy = site.policy
    assert (policy.min_rows, policy.min_subset, policy.min_sites) == (50, 20, 2)
    assert (policy.max_delta, policy.ranges, policy.approve) == (1e-5, False, "auto")
    assert site.data.labels == site.data.groups == ()
    assert read_terms(local["site-1"])[1] == digest_of(path)


@pytest.mark.parametrize("name", ["data.csv", "../foedus-runs/data.csv", "link.csv", "{kit}/x.csv", "{out}/back.csv"])
def test_data_inside_the_kit_keep_the_site_out(kit, tmp_path, name):
    (tmp_path / "data.csv").write_text("age,ill\n71,1\n")
    (kit / "local/link.csv").symlink_to(tmp_path / "data.csv")
    (tmp_path / "back.csv").symlink_to(kit / "local/data.csv")
    told = name.format(kit=kit, out=tmp_path)
    (kit / "local" / SITE_FILE).write_text(f'[data]\nfile = "{told}"\n')
    door = JobGuard()
    door.open(kit)
    answer = door.deploy(Workspace(str(kit), "site-1"), str(uuid.uuid4()), {}, "app_site", app(ORDINARY), FLContext())
    assert answer == "refused: this site takes no jobs now; its own log says why."
    (line, *_) = (kit / RUNS / "site.log").read_text().splitlines()
    assert "which lies inside the kit; keep the data outside of it." in line
    assert DIGEST not in os.environ


def test_a_site_file_that_others_can_write_keeps_the_site_out(kit):
    (kit / "local" / SITE_FILE).chmod(0o666)
    with pytest.raises(fd.FoedusError, match="can be written by others than its owner"):
        read_terms(kit)


def test_a_site_file_that_changes_while_the_site_runs_counts_for_no_job(kit, tmp_path):
    door = JobGuard()
    door.open(kit)
    assert agreed_terms(kit) == SiteFile.read(kit / "local" / SITE_FILE)
    write_site_file(kit, tmp_path / "data.npz", {"modules": ["evil"]})
    told = (Workspace(str(kit), "site-1"), str(uuid.uuid4()), {}, "app_site", app(ORDINARY), FLContext())
    assert door.deploy(*told).startswith("refused: this site takes no jobs now")
    with pytest.raises(fd.FoedusError, match="is not the one with which this site was started"):
        agreed_terms(kit)
    door.open(kit)  # its administrator starts it again
    assert agreed_terms(kit).policy.modules == ("evil",)


@pytest.mark.parametrize("digest", [None, "0" * 64, "right"])
def test_a_job_without_the_parents_digest_gets_no_answer(kit, monkeypatch, digest):
    if digest is not None:
        monkeypatch.setenv(DIGEST, digest_of(kit / "local" / SITE_FILE) if digest == "right" else digest)

    class Engine:
        """Has a cell with which the executor registers itself."""

        core_cell = None

        def get_cell(self) -> "Engine":
            self.core_cell = self
            return self

        def register_request_cb(self, **told: Any) -> None:
            self.topic = told["topic"]

    context: Any = FLContext()
    context.get_workspace = lambda: Workspace(str(kit), "site-1")
    context.get_identity_name = lambda: "site-1"
    engine = Engine()
    context.get_engine = lambda: engine
    executor = FoedusExecutor()
    executor.handle_event(EventType.START_RUN, context)
    assert (executor.channel is not None) == (digest == "right")
    if digest != "right":
        assert FIELD not in executor.execute("foedus", Shareable({FIELD: b""}), context, None)
        assert "is not the one with which" in (kit / RUNS / "site.log").read_text()


def test_what_a_site_writes_from_its_start_is_for_its_owner_alone(kit):
    (kit / RUNS / "old.npz").write_bytes(b"")
    (kit / RUNS / "old.npz").chmod(0o644)
    JobGuard().open(kit)
    (kit / RUNS / "new.npz").write_bytes(b"")
    for path in (kit, *kit.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


# --- starting, stopping, adding a site, renewing ---


@pytest.fixture
def folder(project, tmp_path) -> Path:
    """The coordinator's folder, for a test that changes it."""
    return Path(shutil.copytree(project, tmp_path / "kits"))


def test_scripts_of_a_kit_ask_nothing_and_flares_own_are_gone(project, tmp_path):
    for name in ("site-1", "localhost"):
        startup = kits_of(project)[name] / "startup"
        assert {path.name for path in startup.glob("*.sh")} == {"start.sh", "stop.sh"}
        assert all("read " not in path.read_text() for path in startup.glob("*.sh"))
    environment = os.environ | {"FOEDUS_PYTHON": sys.executable}
    script = kits_of(project)["site-1"] / "startup" / "stop.sh"
    told = subprocess.run([script], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    assert (told.returncode, told.stdout) == (0, "Nothing was running.\n")


def test_a_servers_kit_that_was_moved_names_its_storage_where_it_is(folder, tmp_path):
    server = kits_of(folder)["localhost"].rename(tmp_path / "elsewhere")
    parties.settle(server)
    resources = json.loads((server / "local" / "resources.json").read_text())
    (manager,) = [part for part in resources["components"] if part["id"] == "job_manager"]
    assert manager["args"]["uri_root"] == str(tmp_path / "elsewhere" / "storage" / "jobs")
    assert str(folder) not in json.dumps(resources)


def test_a_site_is_added_and_the_kits_that_are_out_stay_as_they_are(folder):
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (folder / "made").rglob("*") if path.is_file()}

    before = content()
    kit = add_site(folder, "site-3")
    after = content()
    assert {path: after[path] for path in before} == before
    assert all(path.is_relative_to(kit) for path in after.keys() - before.keys())
    assert "the site site-3" in (kit / "deploy/foedus.service").read_text()
    assert "site-3" in (folder / "compose.yml").read_text()
    assert (kit / "startup/rootCA.pem").read_bytes() == (kit.parent / "site-1/startup/rootCA.pem").read_bytes()
    assert not any(b"PRIVATE" in path.read_bytes() for path in kit.rglob("*") if path.is_file())
    with pytest.raises(fd.FoedusError, match="is a site of this project already"):
        add_site(folder, "site-3")
    request, _ = certificates.request(kit)
    certificate, _ = certificates.sign(folder, request)  # the new site is one of the project's
    assert certificates.install(kit, certificate)


def test_a_certificate_is_renewed_for_the_same_key_and_its_end_is_spoken_of_thirty_days_before(folder):
    kit = kits_of(folder)["site-1"]
    request, fingerprint = certificates.request(kit)
    first, _ = certificates.sign(folder, request)
    certificates.install(kit, first)
    end = certificates.end_of(kit / certificates.CERTIFICATE)
    assert end is not None
    days = [end - datetime.timedelta(days=n) for n in (31, 29, -1)]
    assert certificates.warnings_of(kit, days[0]) == []
    (line,) = certificates.warnings_of(kit, days[1])
    assert "in 29 days" in line
    assert "has ended on" in certificates.warnings_of(kit, days[2])[0]
    assert any("certificate of 'site-1'" in line for line in certificates.warnings_in(folder, days[1]))
    old = first.read_bytes()
    second, until = certificates.renew(folder, "site-1")
    assert second == first
    assert second.read_bytes() != old
    assert until > end
    assert certificates.install(kit, second) == fingerprint, "the key is the site's own, and did not leave it"
    for name in ("server", "coordinator"):
        path = certificates.newest_build(folder, "foedus") / {"server": "localhost"}.get(name, ADMIN) / "startup"
        (file,) = path.glob("*.crt")
        before = x509.load_pem_x509_certificate(file.read_bytes())
        assert certificates.renew(folder, name)[0] == file
        after = x509.load_pem_x509_certificate(file.read_bytes())
        assert (after.subject, [*after.extensions]) == (before.subject, [*before.extensions])
        assert after.serial_number != before.serial_number
        after.verify_directly_issued_by(x509.load_pem_x509_certificate((kit / "startup/rootCA.pem").read_bytes()))
    assert not certificates.warnings_in(folder)
    with pytest.raises(fd.FoedusError, match="is no party of this project"):
        certificates.renew(folder, "nobody")
    with pytest.raises(fd.FoedusError, match="has no certificate yet"):
        certificates.renew(folder, "site-2")


def test_the_authority_outlives_its_certificates_by_years(project):
    root = x509.load_pem_x509_certificate((kits_of(project)["site-1"] / "startup/rootCA.pem").read_bytes())
    assert root.not_valid_after_utc - root.not_valid_before_utc >= datetime.timedelta(days=3600)


def test_a_site_file_leaves_out_what_is_not_stated(kit, tmp_path):
    """TOML has no null: an experiment that states no separator makes a site file that can be read."""
    write_site_file(
        kit, tmp_path / "table.csv", {"min_subset": 1}, {"separator": None, "labels": ["ill"], "groups": []}
    )
    site, _ = read_terms(kit)
    assert site.data is not None
    assert (site.data.separator, site.data.labels) == (None, ("ill",))
