"""A folder with four invented hospitals and an experiment file, and the command line played in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from foedus.app import cli
from foedus.app.experiment import figures, starter
from foedus.app.experiment.sweep import Settings
from foedus.data.holdout import Shares
from foedus.federation.holdout import SECRET, seeded

TABLES = """\
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
"""
BY_SEX = f'{TABLES}group = "sex"\n'
DATA = f"""\
{BY_SEX}[problem]
penalty = {{ name = "Ridge", mu = 0.01, per_example = false }}
"""

FEDAVG = f"""\
seed = 5
{DATA}[algorithm]
name = "FedAvg"
k0 = 2
lr = 0.5
stop = "none"
[run]
max_rounds = 40
"""

CENTRAL = f"""\
{TABLES}features = ["age", "blood_pressure"]
[preprocess.bounds]
age = [0, 120]
blood_pressure = [60, 240]
[algorithm]
name = "PrivateNewton"
[run]
secure = true
[privacy]
kind = "central"
epsilon = 30.0
delta = 1e-5
least_rows = 60
"""

ACCEPT = "--accept-uncertified"  # FEDAVG plays a fixed number of rounds, so its runs never pass a stopping test


def write_tables(
    folder: Path, names: Sequence[str] | None = None, *, as_sites: bool = False, rows: int | None = None
) -> None:
    """Write the tables of these hospitals, or of all four, into a folder's `hospitals`.

    With `as_sites` they are called as the sites of a federation are, on which draws and their order depend. With `rows`
    each has so many, so that one compiled program serves all.
    """
    tables = starter.hospitals()
    (folder / "hospitals").mkdir(exist_ok=True)
    for number, name in enumerate(names or tables):
        lines = tables[name].splitlines(keepends=True)
        file = f"hospitals/site-{number + 1}.csv" if as_sites else f"hospitals/{name}.csv"
        (folder / file).write_text("".join(lines[: None if rows is None else rows + 1]))


def know_secrets(*folders: Path) -> None:
    """Give these sites one secret, so that a simulation can draw the rows that they keep out of training."""
    for folder in folders:
        folder.mkdir(exist_ok=True, mode=0o700)
        (folder / SECRET).write_bytes(bytes(32))


def shares_at(settings: Settings, folder: Path) -> Shares:
    """What a simulation has to keep out of training to have the rows of the site with this folder."""
    return seeded(figures.shares_of(settings), folder)


def draw_as_sites_do(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let simulations keep those rows out of training that the sites with these folders keep out."""
    know_secrets(*folders)
    shares_of = figures.shares_of
    monkeypatch.setattr(figures, "shares_of", lambda settings: seeded(shares_of(settings), folders[0]))


@dataclass(frozen=True)
class Result:
    """What a command did: its exit status and what it printed."""

    status: int
    out: str
    err: str


Command = Callable[..., Result]


def commands(
    study: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int = 120
) -> Command:
    """Make the hospitals and study.toml in the folder, enter it, and return what runs `foedus` there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    write_tables(Path())
    Path("study.toml").write_text(study)

    def run(*arguments: str) -> Result:
        status = cli.run(list(arguments))
        printed = capsys.readouterr()
        return Result(status, printed.out, printed.err)

    return run
