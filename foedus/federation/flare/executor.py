"""The FLARE executor: hands a site's messages to its channel, and what that opens to its SiteSession."""

# pyright: reportMissingImports=false

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from foedus.base.engine import collect_seldom
from foedus.base.errors import FoedusError
from foedus.federation.flare.frames import Limit
from foedus.federation.flare.patches import limit_frames
from foedus.federation.flare.post import serve
from foedus.federation.names import FIELD, RUNS
from foedus.federation.secure_site import identity_of
from foedus.federation.site import SiteSession
from foedus.federation.terms import agreed_terms, make_private
from foedus.sums.channel import SiteChannel


class FoedusExecutor(Executor):
    """A site in one run."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: SiteChannel | None = None
        # FLARE delivers on many threads, and JAX keeps something for each thread it has worked on
        self.worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="foedus")

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        collect_seldom()
        workspace = fl_ctx.get_workspace()
        kit = Path(workspace.get_root_dir())
        folder = kit / RUNS
        folder.mkdir(parents=True, exist_ok=True)
        os.umask(0o077)
        make_private(folder)
        log = folder / "site.log"

        def note(line: str) -> None:
            # a file of the site's own: what is in it may speak of data, so it does not go through FLARE's logging
            with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:  # a full disk ends no round
                file.write(line + "\n")

        try:
            name = str(fl_ctx.get_identity_name())
            identity = identity_of(kit, name)
            root = None if identity is None else identity.root
            session = SiteSession(name, agreed_terms(kit), folder, note, identity, root)
            self.channel = SiteChannel(identity, session.answer, note)
        except FoedusError as error:
            note(str(error))
        engine: Any = fl_ctx.get_engine()
        limit_frames(Limit(kit))  # this process has a connection of its own
        if self.channel is not None:
            serve(engine.get_cell(), self.worker, self.channel.receive)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        return self._answer(shareable)

    def _answer(self, request: Shareable) -> Shareable:
        content = request.get(FIELD)
        if self.channel is None or not isinstance(content, bytes):
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        answer = self.worker.submit(self.channel.receive, content).result()
        if answer is None:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = make_reply(ReturnCode.OK)
        reply[FIELD] = answer
        return reply
