"""The settings of JAX: float64, a compilation cache on the disk, room for compiled programs; and late imports."""

import contextlib
import ctypes
import gc
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader, find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any


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

    return __getattr__, lambda: sorted({*names, *names["__all__"]})


class JaxFinder(MetaPathFinder):
    """Finds JAX once, and has `configure` run as soon as it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return JAX's own specification, with a loader that calls `configure` at its end."""
        if fullname != "jax":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                configure()

            spec.loader.exec_module = exec_module
        return spec


def configure_with_jax() -> None:
    """Call `configure` now if JAX is imported, or else when it will be.

    Importing JAX takes a second of processor time and 130 MB, which commands and processes without it are spared.
    """
    if "jax" in sys.modules:
        configure()
    elif not any(isinstance(finder, JaxFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, JaxFinder())


def configure() -> None:
    """Switch JAX to float64 and to the persistent cache; safe to call twice."""
    import jax

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
