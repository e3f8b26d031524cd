"""Names that the FLARE side and the driver share, and the checks on names that come from elsewhere."""

import re

from foedus.errors import FoedusError

TOPIC = "foedus"  # of aux messages and tasks
FIELD = "m"  # the one entry of a Shareable: bytes, for arrays would travel by reference and cost a second round trip
ORDER = "order.npz"
RESULT = "result.npz"
ENDED = "ended.json"
REVOKED = "disabled_clients.json"  # where FLARE's server keeps the sites that the coordinator has revoked
RUNS = "foedus-runs"  # the folder of checkpoints, in the kit's own folder
STARTED = -1  # the number of the client state that `join` makes
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # the names that a run may have: the name becomes that of a folder
LONGEST_LINE = 2000  # characters of a text from outside in a log


def check_run_name(run: object) -> str:
    """Return the name of a run; raise where it is none, for it becomes that of a folder."""
    if not (isinstance(run, str) and RUN.fullmatch(run)):
        raise FoedusError(
            f"the name of a run must have up to 64 letters, digits, '-' and '_'. Got {one_line(repr(run), 80)} instead."
        )
    return run


def one_line(text: str, most: int = LONGEST_LINE) -> str:
    """Return a text from outside as one line without control characters, so that it cannot pass for several."""
    line = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[:most])
    return line + ("…" if len(text) > most else "")
