"""The compilation cache: a process that dies while it writes an entry leaves nothing that a later one trips over."""

import re
from pathlib import Path

import jax
import pytest
from jax._src.lru_cache import LRUCache

import foedus as fd


def test_jax_counts_in_doubles():
    assert fd.__version__
    assert jax.numpy.zeros(1).dtype == "float64"


def test_an_entry_of_the_cache_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache = LRUCache(str(tmp_path), max_size=-1)
    cache.put("kept", b"whole")
    assert cache.get("kept") == b"whole"
    write = Path.write_bytes

    def full_disk(path: Path, value: bytes) -> int:
        write(path, value[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space"):
        cache.put("torn", b"whole")
    assert cache.get("torn") is None
    assert [path.name for path in tmp_path.iterdir()] == ["kept-cache"]


def test_lapack_is_called_in_one_place_only():
    """Elsewhere a `vmap` would make it a batched call, two of which can wait for each other for ever."""
    wanted = re.compile(r"(jnp|jax\.numpy|jax\.scipy|jax\.lax)\.linalg\.(?!norm|cg\b|sparse)\w+")
    folder = Path(fd.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        found = wanted.findall(path.read_text())
        assert not found or path.name == "lapack.py", (path.relative_to(folder), found)
