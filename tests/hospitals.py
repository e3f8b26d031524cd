"""A folder with four invented hospitals and an experiment file, and the command line played in it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from foedus import cli
from foedus.experiment import starter

DATA = """\
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
group = "sex"
[problem]
penalty = { name = "Ridge", mu = 0.01, per_example = false }
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

ACCEPT = "--accept-uncertified"  # FEDAVG plays a fixed number of rounds, so its runs never pass a stopping test


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
    Path("hospitals").mkdir()
    for name, text in starter.hospitals().items():
        Path(f"hospitals/{name}.csv").write_text(text)
    Path("study.toml").write_text(study)

    def run(*arguments: str) -> Result:
        status = cli.run(list(arguments))
        printed = capsys.readouterr()
        return Result(status, printed.out, printed.err)

    return run
