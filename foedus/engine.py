"""The settings of JAX: float64, a compilation cache on the disk, room for compiled programs; and late imports."""

import contextlib
import ctypes
import hashlib
import os
import platform
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

import jax


def cache_dir() -> Path:
    """Return the folder for compiled programs: in `FOEDUS_CACHE` or in the user's cache, one per kind of machine.

    XLA's CPU code is compiled for the processor's own features, so two kinds of processor must not share a folder.
    """
    root = os.environ.get("FOEDUS_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "foedus"
    features = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        features = "".join(line for line in lines if line.startswith(("flags", "model name", "Features")))[:4096]
    kind = hashlib.sha256((platform.machine() + platform.processor() + features).encode()).hexdigest()[:12]
    return base / "xla" / kind


def _write_entries_whole() -> None:
    """Make entries of the cache appear whole, or not at all.

    JAX writes them in place: a process that is killed leaves a torn entry, which is never replaced and is warned of in
    every later run, and a process that reads meanwhile gets half of it.
    """
    try:
        from jax._src.lru_cache import LRUCache
    except ImportError:  # another version of JAX keeps them in its own way
        return
    in_place = LRUCache.put
    if in_place.__module__ == __name__:
        return

    def put(self: LRUCache, key: str, value: bytes) -> None:
        entry = Path(str(self.path)) / f"{key}-cache"
        if self.eviction_enabled or entry.exists():
            in_place(self, key, value)
            return
        part = entry.with_name(f"{entry.name}.{os.getpid()}.part")
        try:
            part.write_bytes(value)
            part.replace(entry)
        finally:
            part.unlink(missing_ok=True)

    LRUCache.put = put


def late(name: str) -> ModuleType:
    """The module of this name, imported when one of its attributes is first asked for."""
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    assert spec is not None and spec.loader is not None, name
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def configure() -> None:
    """Switch JAX to float64 and to the persistent cache; safe to call twice."""
    jax.config.update("jax_enable_x64", True)
    if os.environ.get("FOEDUS_CACHE") != "off" and not jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(cache_dir()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        _write_entries_whole()


def return_memory() -> None:
    """Give freed memory back to the system; otherwise the C library keeps it, and large data are held twice."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
            ctypes.CDLL(None).malloc_trim(0)


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
        jax.clear_caches()
    return full
