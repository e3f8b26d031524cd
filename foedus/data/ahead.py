"""Large files are read ahead, by a process of their own that ends before this one needs its memory for anything else.

Libraries stay in memory once they are imported: pyarrow, which reads the files, takes 50 MB and what it reads besides,
and JAX 160 MB. So a command reads large files before it imports JAX, in a process that sends the columns over a pipe
and is gone; `tables.read` then finds them here. Where that fails, for whatever reason, nothing is kept, and the file is
read as usual by whoever asks for it, who also says what is wrong with it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from foedus.data import contents
from foedus.data.columns import Column, Words
from foedus.data.formats import Format, TextForm
from foedus.data.pages import in_pages
from foedus.files import Json

LARGE = 2**25  # bytes of all files from which on a process of its own is worth its start
COMMAND = (sys.executable, "-P", "-m", "foedus.data.reader")
Key = tuple[contents.Key, Format]


@dataclass(frozen=True)
class Parsed:
    """What a file holds: its columns, how it is written, and which of them were dates."""

    columns: dict[str, Column]
    form: TextForm
    dates: frozenset[str]


_store: dict[Key, Parsed] = {}


def take(path: Path, wanted: Format) -> Parsed | None:
    """Return what was read ahead of a file, once; None where nothing was, or where the file has changed since."""
    return _store.pop((contents.key_of(path), wanted), None) if _store else None


def read_ahead(files: Mapping[Path, Format]) -> None:
    """Read files in another process, if they are large; `files` says how each is written, as far as that is known."""
    paths = [path for path in files if path.is_file()]
    if len(paths) < len(files) or sum(path.stat().st_size for path in paths) < LARGE:
        return
    orders = [json.dumps([str(path.absolute()), vars(form)]) for path, form in files.items()]
    keys = [(contents.key_of(path), form) for path, form in files.items()]
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write("\n".join(orders).encode())
            child.stdin.close()
            for key in keys:
                about = json.loads(child.stdout.readline())
                if about is None:
                    continue
                _store[key] = receive(about, child.stdout)
                contents.remember(key[0], bytes.fromhex(about["digest"]))
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            child.kill()


def send(parsed: Parsed, digest: bytes, out: BinaryIO) -> None:
    """Write what a file holds: a line about it, then the numbers, or the codes of words, of each column."""
    columns = [[name, list(c.levels) if isinstance(c, Words) else None] for name, c in parsed.columns.items()]
    about: Json = {"form": vars(parsed.form), "dates": sorted(parsed.dates), "columns": columns}
    about |= {"rows": len(next(iter(parsed.columns.values()))), "digest": digest.hex()}
    out.write(json.dumps(about).encode() + b"\n")
    for column in parsed.columns.values():
        values = column.codes if isinstance(column, Words) else column
        out.write(np.ascontiguousarray(values).data.cast("B"))


def receive(about: Json, source: IO[bytes]) -> Parsed:
    """Read what `send` wrote after the line about it."""
    columns: dict[str, Column] = {}
    for name, levels in about["columns"]:
        values = in_pages(about["rows"], np.float64 if levels is None else np.int64)
        _fill(values.data.cast("B"), source)
        columns[name] = values if levels is None else Words(values, tuple(levels))
    return Parsed(columns, TextForm(**about["form"]), frozenset(about["dates"]))


def _fill(room: memoryview, source: IO[bytes]) -> None:
    while room:
        count = source.readinto(room)  # pyright: ignore[reportAttributeAccessIssue]
        if not count:
            raise EOFError
        room = room[count:]


def orders_in(source: BinaryIO) -> Iterator[tuple[Path, Format]]:
    """Return the files that a reader is asked for."""
    for line in source:
        path, form = json.loads(line)
        yield Path(path), Format(**form)
