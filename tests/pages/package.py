"""Builds wheel and sdist, and tries them, and a clone installed with -e, in an environment of their own: make package.

In each, `foedus run` makes a report, Python imports the package in the folder above, and pyright sees its types.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TYPED = """import foedus as fd

reveal_type(fd.solve)
reveal_type(fd.InteriorPoint().eps1)
fd.InteriorPoint(eps1="small")
"""


def played(*command: object, folder: Path) -> str:
    """Return what a command prints; if it fails, end with that."""
    ended = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nended with status {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def clone(folder: Path) -> None:
    """Copy the files that git knows, as they are now."""
    for name in played("git", "ls-files", folder=ROOT).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())


def tried(name: str, python: Path, above: Path, version: str) -> None:
    """End with a sentence unless the package that is installed works in the folder above a clone."""
    where = played(python, "-c", "import foedus; foedus.solve; print(foedus.__version__)", folder=above)
    assert where.strip() == version, f"{name}: in the folder above the clone Python imports {where!r}."
    command, work = python.parent / "foedus", above / f"work-{name}"
    work.mkdir()
    played(command, "init", "--example", folder=work)
    played(command, "run", "hospital.toml", folder=work)
    assert (work / "runs/hospital/report.html").is_file(), f"{name}: 'foedus run' made no report."
    (work / "typed.py").write_text(TYPED)
    checker = [Path(sys.executable).parent / "basedpyright", "--pythonpath", python, "typed.py"]
    seen = subprocess.run(checker, cwd=work, capture_output=True, text=True, check=False).stdout
    for words in ('Type of "fd.solve" is "(problem: Problem', 'eps1" is "float"', '"eps1" of type "float"', "1 error"):
        assert words in seen, f"{name}: pyright does not say {words!r}, but\n{seen}"
    print(f"{name}: imported in the folder above the clone, a report made, types seen by pyright", flush=True)


def main() -> None:
    """Build and try everything; the files are kept in the folder that is named."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheel and sdist go")
    out: Path = options.parse_args().out.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        above = Path(scratch)
        source, python = above / "foedus", above / "environment/bin/python"
        clone(source)
        venv.create(above / "environment", with_pip=True)
        pip = (python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
        played(*pip, "build", folder=above)
        played(python, "-m", "build", source, "--outdir", out, folder=above)
        version = played(sys.executable, "-c", "import foedus; print(foedus.__version__)", folder=source).strip()
        wheel, archive = out / f"foedus-{version}-py3-none-any.whl", out / f"foedus-{version}.tar.gz"
        played(*pip, f"{wheel}[files]", folder=above)
        tried("wheel", python, above, version)
        for name, what in (("sdist", [archive]), ("clone", ["-e", source])):
            played(*pip, "--no-deps", "--force-reinstall", *what, folder=above)
            tried(name, python, above, version)


if __name__ == "__main__":
    main()
