"""float64 and a cache of compiled programs while foedus computes, room for these; and names that are imported late."""

import contextlib
import ctypes
import gc
import hashlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def cache_dir() -> Path:
    """Return the folder for compiled programs: in `FOEDUS_CACHE` or in the user's cache, one per kind of machine.

    XLA's CPU code is compiled for the processor's own features, so two kinds of processor must not share a folder.
    """
    root = os.environ.get("FOEDUS_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "foedus"
    return base / "xla" / _kind_of_machine()


@cache
def _kind_of_machine() -> str:
    features = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        features = "".join(line for line in lines if line.startswith(("flags", "model name", "Features")))[:4096]
    return hashlib.sha256((platform.machine() + platform.processor() + features).encode()).hexdigest()[:12]


def late_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose public names are imported when they are first asked for.

    `homes` says for each name in which module, or room, of foedus it is.
    """
    names = sys.modules[package].__dict__

    def __getattr__(name: str) -> Any:
        if name in homes:
            home = import_module(f"foedus.{homes[name]}")
            value = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
        elif name[:1] != "_" and find_spec(f"{package}.{name}") is not None:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        names[name] = value
        return value

    return __getattr__, lambda: sorted({*names["__all__"], *(name for name in names if name[:2] == "__")})


class _ProgramsOnDisk:
    """While at least one thread is inside, JAX keeps compiled programs in `cache_dir`, small ones too.

    A folder that the user has set is left alone, and so is everything where `FOEDUS_CACHE` is off.
    """

    def __init__(self) -> None:
        self.lock, self.inside = threading.Lock(), 0
        self.before: dict[str, Any] = {}  # what the settings were, where they were changed

    def __enter__(self) -> None:
        import jax

        with self.lock:
            self.inside += 1
            if self.inside > 1 or os.environ.get("FOEDUS_CACHE") == "off" or getattr(jax.config, _DIR):
                return
            settings = {_DIR: str(cache_dir()), _LEAST_SECONDS: 0.0, _LEAST_BYTES: 0}
            self.before = {name: getattr(jax.config, name) for name in settings}
            self._set(settings)

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside or not self.before:
                return
            before, self.before = self.before, {}
            self._set(before)

    @staticmethod
    def _set(settings: Mapping[str, Any]) -> None:
        import jax
        from jax.experimental.compilation_cache import compilation_cache

        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX keeps the folder of its first program, whatever is set later


_DIR = "jax_compilation_cache_dir"
_LEAST_SECONDS, _LEAST_BYTES = "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes"
_programs_on_disk = _ProgramsOnDisk()


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Within this context, or in a function that it decorates, JAX computes in float64, in this thread alone.

    Every public function of foedus that computes enters it, so that the user's process stays as it was: JAX's own
    default is float32. Threads that foedus starts enter it themselves. Compiled programs are kept on the disk.

    Example:
        >>> import jax.numpy as jnp
        >>> with float64():
        ...     print(jnp.ones(1).dtype)
        float64
    """
    import jax

    with jax.enable_x64(True), _programs_on_disk:
        yield


def return_memory() -> None:
    """Give freed memory back to the system; otherwise the C library keeps it, and large data are held twice."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
            ctypes.CDLL(None).malloc_trim(0)


def collect_seldom() -> None:
    """Let Python look for garbage seldom, and not among what is there already, in a process that plays rounds.

    Each look takes a tenth of a millisecond with JAX imported, and there would be several in a short round.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def relieve(share: float = 0.6) -> bool:
    """Drop the compiled programs of this process if they have used most of its memory maps; return whether they had.

    A process may have 65,530 memory maps (vm.max_map_count), a compiled program is some hundred of them, and XLA
    ends the process without a word when there is none left: after a hundred problems of different shapes, say. Programs
    that are asked for again come from the cache on the disk.
    """
    maps, limit = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
    try:
        full = maps.read_bytes().count(b"\n") > share * int(limit.read_text())
    except (OSError, ValueError):  # another system, with other limits
        return False
    if full:
        import jax

        jax.clear_caches()
    return full
