"""The process of a party, with a limit on what arrives: no frame is read into memory that is longer than announced.

FLARE makes room for a frame as soon as its first sixteen bytes say how long it is, up to 2 GB, and copies it more than
once before anybody looks at it. A party of foedus is started by this file, which sets a limit first. Of a message that
is longer the headers are kept, which say who sent it, and the content is read off the line piece by piece and
dropped; what arrives in its place is a short note of its length, so that the run can name the site.

At the server the limit is that of FLARE's own messages, or the largest answer that the terms of a running job allow:
the job's process notes it in a file, before it asks for such an answer. At a site it is `max_message` of its file.

Nothing that takes long to import is imported here.
"""

import runpy
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from foedus.federation.flare.patches import NOTE, limit_frames
from foedus.federation.flare.processes import end_with_supervisor

OWN = 2**24 + 2**20  # bytes: FLARE's own messages, and headers of ours, take far fewer
HEADERS = 2**16  # bytes: what FLARE's headers take at the most
LARGEST = 2**30  # bytes of a message at a site whose file says nothing
LOOK_SECONDS = 1.0  # between two looks at the jobs' files
FOLDER = "foedus-runs/limits"  # in a kit: a file for each job, with the bytes of its largest answer


def length_of_note(content: Any) -> int | None:
    """Return the length of the message that a note stands for; None where it is no note."""
    words = bytes(content[: len(NOTE) + 12])
    number = words.removeprefix(NOTE)
    return int(number) if words != number and number.isdigit() else None


class Limit:
    """The most bytes of a frame now."""

    def __init__(self, kit: Path):
        self.kit, self.value, self.time = kit, OWN, 0.0

    def __call__(self, length: int) -> bool:
        """Return whether a frame of this length is too long; of a long one, by the jobs' files as they are now."""
        if length > OWN and time.monotonic() - self.time > LOOK_SECONDS:
            self.time, self.value = time.monotonic(), max([OWN, *self._sizes()]) + HEADERS
        return length > self.value

    def _sizes(self) -> list[int]:
        sizes = [_policy_of(self.kit)]
        for path in (self.kit / FOLDER).glob("*"):
            try:
                sizes.append(int(path.read_text()))
            except (OSError, ValueError):
                continue
        return sizes


def _policy_of(kit: Path) -> int:
    """Return the bytes of a message that a site allows, in its site file; 0 at the server, where jobs announce them."""
    if not (kit / "startup" / "fed_client.json").is_file():
        return 0
    try:
        size = tomllib.loads((kit / "local" / "foedus.toml").read_text(encoding="utf-8"))["policy"]["max_message"]
        return size if isinstance(size, int) else LARGEST
    except (OSError, ValueError, KeyError, TypeError):
        return LARGEST


def main() -> None:
    """Run the party of a kit: its role, then FLARE's own arguments."""
    role = sys.argv.pop(1)
    end_with_supervisor()
    limit_frames(Limit(Path(sys.argv[sys.argv.index("-m") + 1])))
    runpy.run_module(f"nvflare.private.fed.app.{role}.{role}_train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
