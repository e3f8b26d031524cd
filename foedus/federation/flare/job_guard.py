"""The guard of a site decides what a job may bring in. It runs in the site's own process, by the kit's resources.json.

A job is data. What a site gets of one is a single file, the same to the byte in every run, that names FoedusExecutor;
the problem, the algorithm and the model come later, as messages that SiteSession checks. So the guard refuses every job
that brings anything else (a `custom` folder, a component, a filter, another argument) before it is unpacked, and looks
once more before the job's process is started: no code and no module comes with a job.

FLARE authorises commands by headers that its server writes, and some it does not authorise at all: 'delete_run' removes
any folder of the kit by its name. So the guard leaves a site only the commands that a job needs. Shell, log and file
commands are gone, whoever asks, and whatever the server says about it.
"""

# pyright: reportMissingImports=false

import contextlib
import io
import os
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.private.fed.utils.app_deployer import AppDeployer

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation.flare.kits import CLIENT_CONFIG, CLIENT_FILE
from foedus.federation.flare.patches import close_commands
from foedus.federation.names import RUNS
from foedus.federation.terms import DIGEST, make_private, read_terms

LARGEST_FILE = 100_000  # bytes: far more than our one file, or a signature, takes
SIGNATURES = {f"{place}{name}" for place in ("", "config/") for name in (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)}


def check_number(job: object) -> str:
    """Return a job's number if it is a UUID, as FLARE's are.

    The number names the job's folder in the kit, so one like 'local' or 'startup' would lead to the site's own files.
    """
    try:
        if isinstance(job, str) and str(uuid.UUID(job)) == job:
            return job
    except ValueError:
        pass
    raise FoedusError(f"the number of a job must be a UUID. Got {job!r} instead.")


def check_app(files: Mapping[str, bytes]) -> None:
    """Refuse an app that is not the one file of every run; FLARE's signatures of it may lie beside it."""
    for name in files:
        if name != CLIENT_FILE and name not in SIGNATURES:
            raise FoedusError(f"a job may bring {CLIENT_FILE} to a site, and nothing else. Got {name!r}.")
    if files.get(CLIENT_FILE) != CLIENT_CONFIG:
        raise FoedusError(
            f"{CLIENT_FILE} of a job must name FoedusExecutor, with no arguments, components or filters, "
            "as this version of foedus writes it."
        )


def files_in_archive(app: bytes) -> dict[str, bytes]:
    """Return the files of an app as it arrives; one that is too large to be ours is refused and not unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(app)) as archive:
            entries = [e for e in archive.infolist() if e.filename.rstrip("/") not in ("", ".", "config")]
            names = [e.filename for e in entries]
            if len({*names}) < len(names) or any(e.file_size > LARGEST_FILE for e in entries):
                raise FoedusError("a job brings a file twice, or one that is far too large.")
            return {e.filename: archive.read(e) for e in entries}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError):
        raise FoedusError("a job cannot be unpacked.") from None


def files_in_folder(app: Path) -> dict[str, bytes]:
    """Return the files of an app in its folder; links and further folders count as files that ours does not have."""
    files: dict[str, bytes] = {}
    for path in sorted(app.rglob("*")):
        name = path.relative_to(app).as_posix()
        if path.is_symlink() or not (path.is_file() or name == "config"):
            files[name] = b""
        elif path.is_file():
            files[name] = path.read_bytes()
    return files


class JobGuard(FLComponent, AppDeployer):
    """Lets in the one file that a job may bring; resources.json names it 'app_deployer', where FLARE looks for it."""

    def __init__(self) -> None:
        super().__init__()
        close_commands()
        self.kit: Path | None = None
        self.digest: str | None = None  # of the terms with which the site has started; None keeps it out

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # in the site's own process alone, before it connects to a server
            workspace: Any = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            self.open(Path(workspace.get_root_dir()))

    def open(self, kit: Path) -> None:
        """Read the site's terms; where they are not in order the site stays out, and its own log says why."""
        os.umask(0o077)  # what this process and its jobs write from now on is for its owner alone
        self.kit, self.digest = kit, None
        (kit / RUNS).mkdir(exist_ok=True)
        make_private(kit)
        os.environ.pop(DIGEST, None)
        try:
            _, self.digest = read_terms(kit)
            os.environ[DIGEST] = self.digest
        except FoedusError as error:
            self.note(str(error))

    def note(self, line: str) -> None:
        """A line in the site's own log, which FLARE does not read."""
        if self.kit is not None:
            with contextlib.suppress(OSError), (self.kit / RUNS / "site.log").open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def deploy(
        self,
        workspace: Workspace,
        job_id: str,
        job_meta: Json,
        app_name: str,
        app_data: bytes,
        fl_ctx: FLContext,
    ) -> str:
        """Unpack a job if it is one of ours and the site file is unchanged; else return a sentence for the server."""
        try:
            check_number(job_id)
            check_app(files_in_archive(app_data))
        except FoedusError as error:
            self.note(f"refused a job: {error}")
            return f"refused: {error}"
        try:
            if self.kit is None or self.digest is None or read_terms(self.kit)[1] != self.digest:
                raise FoedusError("the site file is not in order, or has changed since this site was started.")
        except FoedusError as error:
            self.note(f"refused a job: {error}")
            return "refused: this site takes no jobs now; its own log says why."
        return AppDeployer.deploy(self, workspace, job_id, job_meta, app_name, app_data, fl_ctx) or ""


class Launcher(ClientProcessJobLauncher):
    """Starts the process of a job whose folder holds the one file, and nothing else."""

    def launch_job(self, job_meta: Json, fl_ctx: FLContext) -> Any:
        workspace: Any = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        number = check_number(job_meta.get(JobConstants.JOB_ID))
        check_app(files_in_folder(Path(workspace.get_app_dir(number))))
        return super().launch_job(job_meta, fl_ctx)
