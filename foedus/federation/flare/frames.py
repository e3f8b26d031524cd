"""The process of a party, with a limit on what arrives: no frame is read into memory that is longer than announced.

FLARE makes room for a frame as soon as its first sixteen bytes say how long it is, up to 2 GB, and copies it more than
once before anybody looks at it. A party of foedus is started by this file, which sets a limit first. Of a message that
is longer the headers are kept, which say who sent it, and the content is read off the line piece by piece and
dropped; what arrives in its place is a short note of its length, so that the run can name the site.

At the server the limit is that of FLARE's own messages, or the largest answer that the terms of a running job allow:
the job's process notes it in a file, before it asks for such an answer. At a site it is `max_message` of its file.

This file is run by its path and imports nothing of foedus, whose imports would take a second of every start.
"""

# pyright: reportMissingImports=false

import runpy
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

OWN = 2**24 + 2**20  # bytes: FLARE's own messages, and headers of ours, take far fewer
HEADERS = 2**16  # bytes: what FLARE's headers take at the most
LARGEST = 2**30  # bytes of a message at a site whose file says nothing
PIECE = 2**16  # bytes that are read at a time of what is dropped
LOOK_SECONDS = 1.0  # between two looks at the jobs' files
MOST_TOKENS = 1000  # that are remembered as verified; a site gets a new one when it registers
AGAIN_SECONDS = 0.1  # after a connection that failed, before the first further attempt; FLARE's own is 1 s
FOLDER = "foedus-runs/limits"  # in a kit: a file for each job, with the bytes of its largest answer
NOTE = b"foedus: a message of this many bytes was dropped: "


def dropped(content: Any) -> int | None:
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


def limit_frames(is_too_long: Any) -> None:
    """Let FLARE's connections in this process read no frame that is too long."""
    from nvflare.fuel.f3.comm_error import CommError
    from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
    from nvflare.fuel.f3.sfm.constants import Types
    from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

    def read_frame(self: Any) -> bytearray:
        start = bytearray(PREFIX_LEN)
        self.read_into(start, 0, PREFIX_LEN)
        prefix = Prefix.from_bytes(bytes(start))
        if prefix.length == PREFIX_LEN:
            return start
        if prefix.length < PREFIX_LEN + prefix.header_len:
            raise CommError(CommError.BAD_DATA, f"a frame of {prefix.length} bytes is shorter than its headers")
        if not is_too_long(prefix.length):
            frame = bytearray(prefix.length)
            frame[:PREFIX_LEN] = start
            self.read_into(frame, PREFIX_LEN, prefix.length - PREFIX_LEN)
            return frame
        if prefix.type != Types.DATA:
            raise CommError(
                CommError.BAD_DATA, f"a frame of {prefix.length} bytes is longer than any that is announced"
            )
        head = bytearray(PREFIX_LEN + prefix.header_len)
        self.read_into(head, PREFIX_LEN, prefix.header_len)
        rest = prefix.length - len(head)
        note, piece = NOTE + str(rest).encode(), bytearray(PIECE)
        while rest:
            count = min(rest, PIECE)
            self.read_into(piece, 0, count)
            rest -= count
        prefix.length = len(head) + len(note)
        prefix.to_buffer(head, 0)
        return head + note

    SocketConnection.read_frame = read_frame


def connect_quickly() -> None:
    """Let FLARE try again soon where a connection fails: a site is often up before its server. The waits double."""
    from nvflare.fuel.f3.sfm import conn_manager

    conn_manager.INIT_WAIT = AGAIN_SECONDS


def remember_tokens() -> None:
    """Let FLARE verify the signature of a token once, and not for every message that carries both.

    It is a third of a millisecond of RSA. What is remembered is that these very bytes, name, token and signature, were
    found to be right by this key; any other signature is verified.
    """
    from nvflare.private.fed.utils.identity_utils import TokenVerifier

    verify = TokenVerifier.verify

    def verify_once(self: Any, client_name: str, token: str, signature: Any) -> bool:
        known = self.__dict__.setdefault("known_tokens", set())
        key = (client_name, token, signature)
        if key in known:
            return True
        is_right = verify(self, *key)
        if is_right is True:
            if len(known) >= MOST_TOKENS:
                known.clear()
            known.add(key)
        return is_right

    TokenVerifier.verify = verify_once


def main() -> None:
    """Run the party of a kit: its role, then FLARE's own arguments."""
    role = sys.argv.pop(1)
    connect_quickly()
    remember_tokens()
    limit_frames(Limit(Path(sys.argv[sys.argv.index("-m") + 1])))
    runpy.run_module(f"nvflare.private.fed.app.{role}.{role}_train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
