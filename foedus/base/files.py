"""Files that are always whole: written under another name and then renamed; arrays and a note in one .npz."""

import io
import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from foedus.base.errors import FoedusError

Json: TypeAlias = dict[str, Any]
"""What a JSON object holds."""


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file so that after a crash or a full disk either the old or the new content is there.

    A `private` file can be read by its owner alone, from the first byte on.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        mode = 0o600 if private else 0o666
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise FoedusError(
            f"cannot write {path}: {error.strerror or error}; what was there before is unchanged."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep all other processes of this machine out of what the file at `path` stands for; wait until they are done."""
    with open(path, "a+b") as file:
        os.chmod(path, 0o600)
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            while True:
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                    break
                except OSError:
                    time.sleep(0.02)
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def pack(arrays: dict[str, np.ndarray], note: Json) -> bytes:
    """Arrays and a JSON note as the bytes of an .npz, the same bytes for the same content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, np.asarray(array), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), part.getvalue())
        file.writestr(zipfile.ZipInfo("note.json"), json.dumps(note, sort_keys=True))
    return buffer.getvalue()


def unpack(content: bytes) -> tuple[dict[str, np.ndarray], Json]:
    """The inverse of `pack`."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        note = json.loads(file.read("note.json"))
        arrays = {
            name[:-4]: np.lib.format.read_array(io.BytesIO(file.read(name)), allow_pickle=False)
            for name in file.namelist()
            if name.endswith(".npy")
        }
    return arrays, note


def check_folder(out: Path) -> None:
    """Raise before any work is done where a folder cannot be made at `out`."""
    standing = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not standing.is_dir():
        raise FoedusError(f"--out {out}: {standing} is a file; expected a folder.")
