"""The FLARE controller: carries a ServerSession's messages, by aux messages or by tasks."""

# pyright: reportMissingImports=false

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from foedus.base.engine import collect_seldom, float64
from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.federation.exchange import Paused
from foedus.federation.flare.frames import FOLDER as LIMITS
from foedus.federation.flare.patches import CHECK_SECONDS, look_at_tasks_often
from foedus.federation.flare.post import CellPost, SealedPost, ask
from foedus.federation.monitor import RunMonitor
from foedus.federation.names import ENDED, FIELD, ORDER, RESULT, REVOKED, RUNS, TOPIC
from foedus.federation.order import Patience
from foedus.federation.packing import check_run_name
from foedus.federation.plan import read
from foedus.federation.play import play
from foedus.federation.policy import SITE_FILE, SiteFile
from foedus.federation.terms import make_private
from foedus.sums.channel import ServerChannel
from foedus.sums.identity import Signer

ENDING_BYTES = 8192  # that are reserved for the word on how a run ended, in case the disk is full then
LONGEST_SENTENCE = 1000  # characters of it, which fit in there however they are written
LAST_WORDS_SECONDS = 10.0  # for the coordinator to ask why a run ends, where no file can say so
SMALLEST_ROOM = 64 * 1024  # bytes: with fewer a disk counts as full
FULL = "the disk of the server is full ({}); make room, then the run can be resumed"


def reserve(path: Path) -> None:
    """Take room on the disk for the word on how a run ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b" " * ENDING_BYTES)


def note_ending(places: list[Path], ending: Json) -> bool:
    """Write how a run ended; on a full disk into the room that was reserved. Returns whether it is written anywhere."""
    ending = ending | {"sentence": str(ending.get("sentence", ""))[:LONGEST_SENTENCE]}
    content = json.dumps(ending).encode().ljust(ENDING_BYTES)
    success = False
    for place in places:
        try:
            with place.open("r+b" if place.exists() else "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            success = True
        except OSError:
            continue
    return success


def is_disk_full(folder: Path, error: Exception) -> bool:
    """Return whether an error comes from a full disk."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error) or shutil.disk_usage(folder).free < SMALLEST_ROOM


def revoked_sites(path: Path) -> list[str]:
    """Return the sites that the coordinator has revoked, from the server's list."""
    if not path.exists():
        return []
    try:
        return [str(site) for site in json.loads(path.read_text())["disabled_clients"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise FoedusError(f"the server's list of revoked sites {path} is damaged; mend it before a run.") from None


def _engine_of(fl_ctx: FLContext) -> Any:
    """The engine of FLARE's server; FLARE declares another class than the one that is there."""
    return fl_ctx.get_engine()


class FoedusController(Controller):
    """The server's side of one run: FLARE calls `control_flow`, which plays it."""

    def __init__(self, transport: str = "aux", patience: Json | None = None):
        super().__init__(task_check_period=CHECK_SECONDS)
        self.transport, self.patience = transport, Patience(**(patience or {}))
        self.post: CellPost | None = None

    def set_communicator(self, communicator: Any) -> None:
        super().set_communicator(communicator)
        if self.transport == "task":
            look_at_tasks_often(communicator)

    def start_controller(self, fl_ctx: FLContext) -> None:
        collect_seldom()
        if self.transport == "aux":
            engine, job = _engine_of(fl_ctx), str(fl_ctx.get_job_id())
            addresses = {one.name: FQCN.join([one.get_fqcn() or one.name, job]) for one in engine.get_clients()}
            kit = Path(fl_ctx.get_workspace().get_root_dir())
            self.post = CellPost(engine.get_cell(), addresses, kit / LIMITS / job)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Take back what the job has announced; what else is to be closed is closed with the process."""
        if self.post is not None and self.post.announcement is not None:
            self.post.announcement.unlink(missing_ok=True)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Pass over a late reply: its round is over."""

    @float64()
    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Play the run, and write its result, or why there is none, into the run's folder."""
        workspace, job = fl_ctx.get_workspace(), fl_ctx.get_job_id()
        root, run_dir = Path(workspace.get_root_dir()), Path(workspace.get_run_dir(job))
        config = Path(workspace.get_app_config_dir(job))
        monitor, engine = RunMonitor(), _engine_of(fl_ctx)
        engine.register_app_command(TOPIC, lambda topic, command, fl_ctx: monitor.answer(command))
        ending: Json = {"job": job}
        places = [run_dir / ENDED]
        try:
            run_config = json.loads((config / "run.json").read_text())
            os.umask(0o077)  # checkpoints hold single sites' messages: for their owner alone
            run = check_run_name(run_config["run"])
            work = read((config / ORDER).read_bytes(), self._modules(workspace))
            if work.run != run:
                raise FoedusError(f"the job is about the run {run!r}, and its order about {work.run!r}.")
            folder = root / RUNS / run
            folder.mkdir(parents=True, exist_ok=True)
            make_private(root)
            places.append(folder / ENDED)
            for place in places:
                reserve(place)
            self.revocation_list = root / REVOKED
            self.channel = ServerChannel(Signer.of_server(root), lambda line: self.log_info(fl_ctx, line))
            result = play(
                work,
                folder,
                lambda messages, timeout: self.ask(messages, timeout, fl_ctx, abort_signal),
                self.patience,
                lambda line: self.log_info(fl_ctx, line),
                lambda: bool(abort_signal.triggered),
                monitor,
                None if self.post is None else SealedPost(self.post, self.channel),
                run_config["signatures"],
            )
            for place in (folder, run_dir):
                write_whole(place / RESULT, result.to_bytes())
            if not (result.interrupted and monitor.keep):  # nobody will go on from what single sites have sent
                for path in folder.glob("server-*.ckpt"):
                    path.unlink(missing_ok=True)
            ending |= {"how": "done"}
        except Paused as pause:
            ending |= {"how": "paused", "sentence": str(pause)}
        except (FoedusError, OSError) as error:
            is_full = is_disk_full(root, error)
            how = "paused" if is_full or isinstance(error, OSError) else "refused"
            ending |= {"how": how, "sentence": FULL.format(root) if is_full else str(error)}
        except Exception as error:
            self.log_exception(fl_ctx, "the run failed")
            ending |= {"how": "failed", "sentence": f"the server failed: {type(error).__name__}"}
        if not note_ending(places, ending):
            monitor.ending = ending.get("sentence", "")
            monitor.ending_was_read.wait(LAST_WORDS_SECONDS)

    @staticmethod
    def _modules(workspace: Any) -> tuple[str, ...]:
        """Return the modules beside foedus whose functions an order may name at this server."""
        site_file = Path(workspace.get_site_config_dir()) / SITE_FILE
        return SiteFile.read(site_file).policy.modules if site_file.exists() else ()

    def ask(
        self, messages: Mapping[str, bytes], timeout: float, fl_ctx: FLContext, abort_signal: Signal
    ) -> dict[str, object]:
        """Return the replies, by site, of those that answered in time."""
        if not messages:
            return {}
        # FLARE refuses a revoked site at the door; one that is inside already gets no further message
        for site in revoked_sites(self.revocation_list):
            if site in messages:
                raise FoedusError(f"the site {site!r} has been revoked, so the run cannot go on with it.")

        def carry(sealed: Mapping[str, bytes], seconds: float) -> dict[str, object]:
            if self.post is None:
                return self._ask_by_task(sealed, seconds, fl_ctx, abort_signal)
            return ask(self.post, sealed, seconds, lambda: bool(abort_signal.triggered))

        return self.channel.ask(messages, timeout, carry)

    def _ask_by_task(
        self, messages: Mapping[str, bytes], timeout: float, fl_ctx: FLContext, abort_signal: Signal
    ) -> dict[str, object]:
        """Send each site its message as a FLARE task of its own, to which the site's filters apply."""
        replies: dict[str, object] = {}
        open_tasks = set(messages)
        finished = threading.Event()

        def on_result(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result = client_task.result
            if isinstance(result, Shareable) and result.get_return_code() == ReturnCode.OK and FIELD in result:
                replies[client_task.client.name] = result[FIELD]
            client_task.result = None

        def on_done(task: Task, fl_ctx: FLContext) -> None:
            open_tasks.discard(task.props["site"])
            if not open_tasks:
                finished.set()

        for name, message in messages.items():
            task = Task(
                name=TOPIC,
                data=Shareable({FIELD: message}),
                props={"site": name},
                timeout=max(1, round(timeout)),
                result_received_cb=on_result,
                task_done_cb=on_done,
            )
            self.send(task=task, fl_ctx=fl_ctx, targets=[name])
        until = time.monotonic() + timeout + 1.0
        while not finished.wait(0.2) and time.monotonic() < until and not abort_signal.triggered:
            pass
        return dict(replies)
