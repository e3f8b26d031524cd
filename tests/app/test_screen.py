"""What is seen of a run while it goes."""

import io
import json

import pytest
from rich.console import Console

from foedus.app.experiment.screen import Screen

RECORD = {
    "objective": 0.1234567,
    "feasibility": 0.02,
    "answered": 3,
    "total_up": 123_456,
    "total_down": 999,
}


def shown(screen: Screen) -> str:
    return screen.console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def terminal(mode: str = "live") -> Screen:
    return Screen(mode, Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None))


def test_the_table_names_round_objective_worst_site_bytes_and_time():
    screen = terminal()
    screen.total = 3
    screen.begin("study: ProxAL over 4 sites", 100, 4)
    screen.round(10, RECORD)
    screen.round(20, RECORD | {"feasibility": 0.0})
    screen.end()
    text = shown(screen)
    for words in (
        "study: ProxAL over 4 sites",
        "run 1 of 3",
        "preparing the program",
        "20 of at most 100",
        "0.123457",
        "within its limits",
        "3 of 4",
        "123 kB up, 999 B down",
        "left",
    ):
        assert words in text
    assert screen.runs_done == 1


def test_a_terminal_is_not_assumed():
    screen = Screen("live", Console(file=io.StringIO()))
    screen.begin("study", 100, 4)
    screen.round(10, RECORD)
    screen.end()
    assert shown(screen) == ""


@pytest.mark.parametrize("mode", ["quiet", "json"])
def test_other_modes_show_no_table_and_say_nothing(mode: str, capsys: pytest.CaptureFixture[str]):
    screen = terminal(mode)
    screen.begin("study", 100, 4)
    screen.round(10, RECORD)
    screen.say("a sentence")
    screen.end()
    assert shown(screen) == ""
    screen.note({"event": "end", "rounds": 10})
    printed = capsys.readouterr().out
    assert printed == ("" if mode == "quiet" else json.dumps({"event": "end", "rounds": 10}) + "\n")
