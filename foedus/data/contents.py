"""Contents of files, read once: their bytes for the reader, and their digest for whoever asks afterwards."""

import gzip
import hashlib
import io
import zlib
from pathlib import Path
from typing import TextIO

from foedus.base.errors import FoedusError

MOST = 4096  # digests that are remembered

Key = tuple[Path, int, int]
_digests: dict[Key, bytes] = {}


def key_of(path: Path) -> Key:
    """Return what a file is known by as long as nobody changes it: its path, its length and its time of change."""
    status = path.stat()
    return path.absolute(), status.st_size, status.st_mtime_ns


def read_bytes(path: Path, source: str) -> bytes:
    """Return the bytes of a file, decompressed if it ends in .gz; its digest is remembered."""
    try:
        key = key_of(path)
        content = path.read_bytes()
        if key not in _digests:
            remember(key, hashlib.sha256(content).digest())
        return gzip.decompress(content) if path.suffix.lower() == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise FoedusError(f"cannot read {source}: {getattr(error, 'strerror', None) or error}.") from None


def digest_of(path: Path) -> bytes:
    """Return the SHA-256 digest of a file, from memory as long as its length and its time of change stay the same."""
    key = key_of(path)
    if key not in _digests:
        with path.open("rb") as file:
            remember(key, hashlib.file_digest(file, "sha256").digest())
    return _digests[key]


def remember(key: Key, digest: bytes) -> None:
    """Keep the digest of a file."""
    _digests[key] = digest
    while len(_digests) > MOST:
        del _digests[next(iter(_digests))]


def text_of(content: bytes, encoding: str) -> TextIO:
    """Return the text of a file for the csv module."""
    return io.TextIOWrapper(io.BytesIO(content), encoding=encoding, newline="")
