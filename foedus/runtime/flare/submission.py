"""Driving a submitted run from the coordinator: job after job until there is a result, whoever crashes in between."""

import json
import tempfile
import time
from pathlib import Path

from foedus.errors import FoedusError
from foedus.files import Json
from foedus.runtime.flare.console import Console, Unreachable, Watch
from foedus.runtime.flare.kits import job
from foedus.runtime.flare.names import ENDED, RESULT
from foedus.runtime.flare.order import Result
from foedus.runtime.flare.preparation import Request


def drive(
    request: Request, kit: Path, *, transport: str, patience: Json, keep_going: int, watch: Watch | None
) -> Result:
    """Submit a request under the coordinator's certificate, again where its job ends without a result; return that."""
    content, sentence = request.to_bytes(), ""
    for attempt in range(keep_going + 1):
        sentence = "its job ended without a word"
        try:
            with Console(kit) as console, tempfile.TemporaryDirectory() as scratch:
                console.wait_for_sites(request.sites, 60.0)
                number = console.submit(
                    job(Path(scratch) / "job", request.run, content, request.sites, transport, patience)
                )
                console.follow(number, lambda: False, watch, keep=True)
                if (no := console.refusal(number)) is not None:
                    raise FoedusError(no)
                result, ending = console.download(number, RESULT), console.download(number, ENDED)
            if result is not None:
                return Result.from_bytes(result)
            how = json.loads(ending) if ending else {}
            sentence = how.get("sentence", sentence)
            if how.get("how") == "refused":
                raise FoedusError(sentence)
        except Unreachable as error:
            sentence = str(error)
        if attempt < keep_going:
            time.sleep(2.0)
    raise Stopped(sentence.removesuffix("."))


class Stopped(FoedusError):
    """A submitted run has no result yet and can be resumed."""
