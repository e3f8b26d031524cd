"""Mutants: lines on which a printed guarantee rests, each changed in a copy of the sources; a named test must fail.

    python tests/pages/mutants.py             all of tests/pages/mutants.toml, some minutes on two cores
    python tests/pages/mutants.py PART ...    those whose guarantee or file contains one of these words

It ends with status 1 if a mutant survives, if its text does not stand in its file exactly once (the line was changed:
name the new one), or if a test fails without any mutant. Only quick tests count.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "pages" / "mutants.toml"
COPIED = ("foedus", "lab", "tests", "docs", "README.md", "conftest.py", "pyproject.toml")
PASSED, FAILED = 0, 1  # what pytest ends with; anything else means that the tests could not be run
SECONDS = 300  # a mutant that runs for longer counts as noticed


@dataclass(frozen=True)
class Mutant:
    """A change of one text in one file, and the tests that must fail for it, as pytest takes them."""

    guarantee: str
    file: str
    text: str
    becomes: str
    tests: str


def mutants(words: Iterable[str] = ()) -> list[Mutant]:
    """Return the mutants of the list, or those whose guarantee or file contains one of the words."""
    every = [Mutant(**one) for one in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]
    words = list(words)
    return [m for m in every if not words or any(word in m.guarantee or word in m.file for word in words)]


def copy_to(folder: Path) -> Path:
    """Return a copy of the sources and tests in a new folder."""
    place = Path(tempfile.mkdtemp(dir=folder))
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place / name)
    return place


def play(place: Path, tests: str) -> int:
    """Return what pytest ends with, over these tests in a copy."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", str(SECONDS)]
    command += ["-m", "not slow and not browser", *shlex.split(tests)]
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False).returncode


def verdict(place: Path, mutant: Mutant) -> str:
    """Return what is wrong about a mutant, or nothing where a test notices it."""
    path = place / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.text) != 1:
        return f"its text stands there {source.count(mutant.text)} times"
    path.write_text(source.replace(mutant.text, mutant.becomes), encoding="utf-8")
    try:
        code = play(place, mutant.tests)
    finally:
        path.write_text(source, encoding="utf-8")
    return {FAILED: "", PASSED: "SURVIVES"}.get(code, f"its tests could not be run (pytest ended with {code})")


def main(words: list[str]) -> int:
    """Try the mutants; return the status to end with."""
    wrong, chosen = 0, mutants(words)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        places: SimpleQueue[Path] = SimpleQueue()
        for _ in range(os.cpu_count() or 1):
            places.put(copy_to(Path(folder)))

        def in_a_copy(work, *arguments):
            place = places.get()
            try:
                return work(place, *arguments)
            finally:
                places.put(place)

        selections = list(dict.fromkeys(m.tests for m in chosen))
        for tests, code in zip(selections, pool.map(lambda t: in_a_copy(play, t), selections), strict=True):
            if code != PASSED:
                wrong += 1
                print(f"without a mutant, pytest ends with {code}: {tests}", flush=True)
        for mutant, trouble in zip(chosen, pool.map(lambda m: in_a_copy(verdict, m), chosen), strict=True):
            wrong += bool(trouble)
            print(f"{trouble or 'noticed':10}  {mutant.guarantee} ({mutant.file})", flush=True)
    print(f"{len(chosen)} mutants, {wrong} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
