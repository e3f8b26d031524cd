"""JAX's settings and late imports; a process that dies while it writes to the cache leaves nothing to trip over."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax._src.lru_cache import LRUCache

import foedus as fd
from foedus.base import engine

linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux counts a process's memory maps")


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


@linux
def test_compiled_programs_are_let_go_before_the_kernel_grants_no_more_memory(monkeypatch: pytest.MonkeyPatch):
    let_go = []
    monkeypatch.setattr(jax, "clear_caches", lambda: let_go.append(True))
    assert not engine.relieve()
    assert not let_go
    assert engine.relieve(share=0.0)
    assert let_go


@linux
@pytest.mark.slow
def test_programs_that_were_let_go_free_their_memory_and_run_again():
    def held() -> int:
        return Path("/proc/self/maps").read_bytes().count(b"\n")

    sites = [(np.arange(12.0).reshape(6, 2) / 10, np.array([1.0, 0.0] * 3))] * 2
    problem, algorithm = fd.Problem(sites, loss=fd.losses.logistic), fd.FedGiA(tol=0.0)
    w = fd.solve(problem, algorithm, max_rounds=1000).w  # so many rounds that they are compiled
    before = held()
    assert engine.relieve(share=0.0)
    assert held() < before - 200
    np.testing.assert_array_equal(fd.solve(problem, algorithm, max_rounds=1000).w, w)


def test_lapack_is_called_in_one_place_only():
    """Elsewhere a `vmap` would make it a batched call, two of which can wait for each other for ever."""
    wanted = re.compile(r"(jnp|jax\.numpy|jax\.scipy|jax\.lax)\.linalg\.(?!norm|cg\b|sparse)\w+")
    folder = Path(fd.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        found = wanted.findall(path.read_text())
        assert not found or path.name == "lapack.py", (path.relative_to(folder), found)


def printed(code: str) -> str:
    """What a fresh process prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_names_of_foedus_import_no_library_that_a_run_may_not_need():
    """SciPy, scikit-learn, pandas and rich take longer to import than foedus itself."""
    code = (
        "import foedus as fd, sys; [getattr(fd, n) for n in fd.__all__ if not n.endswith(('Classifier', 'Regressor'))];"
        "print([m for m in ('scipy.special', 'sklearn', 'pandas', 'rich') if m in sys.modules])"
    )
    assert printed(code) == "[]"


def test_jax_is_imported_when_it_is_needed_and_counts_in_doubles_whoever_imports_it():
    code = (
        "import sys, foedus as fd, foedus.app.cli, foedus.federation.flare.trial;"
        "early = 'jax' in sys.modules; import jax;"
        "print(early, jax.numpy.zeros(1).dtype, jax.config.jax_compilation_cache_dir is not None)"
    )
    assert printed(code) == "False float64 True"


def test_importing_a_module_leaves_the_function_of_its_name_in_its_place():
    for module in ("foedus.app.solve", "foedus.data.prepared"):
        importlib.import_module(module)
    assert all(callable(one) for one in (fd.solve, fd.data.prepare, fd.data.breast_cancer))
    assert fd.privacy.__name__ == "foedus.privacy"
    with pytest.raises(AttributeError, match="has no attribute 'sovle'"):
        _ = fd.sovle  # pyright: ignore[reportAttributeAccessIssue]
