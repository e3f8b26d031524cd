"""The command line: what works ends with status 0 and a result; what is wrong ends with status 2 and one sentence."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.text import Text

import foedus as fd
from foedus.app import cli


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs `foedus` with arguments, in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Result:
        status = cli.run(list(arguments))
        printed = capsys.readouterr()
        return Result(status, printed.out, printed.err)

    return run


Command = Callable[..., Result]


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], str]:
    """Writes a CSV file beside the folder commands run in, and returns its name."""

    def write(text: str) -> str:
        path = tmp_path / "table.csv"
        path.write_text(text)
        return str(path)

    return write


def refused(result: Result, *words: str) -> None:
    """Status 2, one line on the error stream with these words, and nothing left in the folder."""
    assert result.status == 2
    assert result.err.startswith("foedus: ")
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert list(Path.cwd().iterdir()) == []


def examples(rows: int = 40, seed: int = 0) -> str:
    """A table that two features separate only in part, with a header."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    y = (x[:, 0] + rng.normal(size=rows) > 0).astype(int)
    return "age,dose,ill\n" + "".join(f"{a:.4f},{b:.4f},{label}\n" for (a, b), label in zip(x, y, strict=True))


def test_version(command: Command):
    result = command("--version")
    assert result.status == 0
    assert result.out == f"foedus {fd.__version__}\n"


def test_help_names_every_command(command: Command):
    result = command("--help")
    assert result.status == 0
    for name in ("demo", "reproduce", "bench"):
        assert name in result.out


def commands_below(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every command and group of commands, with the words that call it."""
    yield path, group
    for name, below in getattr(group, "commands", {}).items():
        yield from commands_below(below, (*path, name))


def test_every_command_prints_its_help(command: Command):
    for words, _ in commands_below(typer.main.get_command(cli.app)):
        result = command(*words, "--help")
        assert (result.status, result.err) == (0, ""), words
        assert "Usage: foedus" in result.out, words


def test_no_bracket_of_a_help_is_taken_for_a_style():
    for words, below in commands_below(typer.main.get_command(cli.app)):
        for told in (below, *getattr(below, "params", ())):
            text = getattr(told, "help", None) or ""
            assert Text.from_markup(text).plain == text, (words, told)


def test_demo_ends_on_a_table_a_picture_and_runs_that_load(command: Command, table: Callable[[str], str]):
    result = command("demo", "--data", table(examples()), "--sites", "4", "--out", "kept")
    assert result.status == 0, result.err
    assert result.err == ""
    assert "FedGiA" in result.out
    assert "FedAvg" in result.out
    assert Path("kept/comparison.png").read_bytes().startswith(b"\x89PNG")
    run = fd.load("kept/FedGiA")
    assert run.converged
    assert f"{run.objective:.6f}" in result.out


def test_demo_reaches_what_scikit_learn_finds_on_the_pooled_table(table: Callable[[str], str]):
    from sklearn.linear_model import LogisticRegression

    from foedus.app import demo

    data = demo.read_csv(Path(table(examples())))
    # 10 examples at each site, so that the mean over sites is the mean over examples
    problem = demo.problem_of(data, sites=4, seed=0)
    x = demo.standardise(data.x)
    model = LogisticRegression(C=1.0 / (40 * demo.RIDGE), fit_intercept=False, tol=1e-12, max_iter=1000).fit(x, data.y)
    losses = np.logaddexp(0.0, -np.where(data.y > 0, 1, -1) * (x @ model.coef_[0]))
    theirs = losses.mean() + 0.5 * demo.RIDGE * np.sum(model.coef_**2)
    assert demo.optimum(problem) == pytest.approx(theirs, abs=1e-10)
    (entry,) = demo.compare(problem, demo.algorithms_called("fedgia"), seed=0).values()
    assert entry.run.objective == pytest.approx(theirs, abs=1e-5)
    assert entry.squared_gradient <= 1.001e-7


@pytest.mark.slow
def test_demo_is_the_same_for_the_same_seed(command: Command, table: Callable[[str], str]):
    name = table(examples())
    for folder in ("first", "second"):
        asked = "--data", name, "--sites", "4", "--algorithms", "LocalSGD", "--seed", "3", "--out", folder
        assert command("demo", *asked).status == 0
    for kept in ("LocalSGD/history.npz", "LocalSGD/parameters.npz", "comparison.png"):
        assert Path("first", kept).read_bytes() == Path("second", kept).read_bytes()


def test_demo_without_matplotlib_says_what_to_install(
    command: Command, table: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("foedus.app.demo.drawable", lambda: False)
    result = command("demo", "--data", table(examples()), "--sites", "4", "--algorithms", "fedavg")
    assert result.status == 0
    assert "pip install 'foedus[plot]'" in result.out
    assert not list(Path.cwd().rglob("*.png"))


def test_constant_and_huge_columns_are_standardised(table: Callable[[str], str]):
    from foedus.app import demo

    text = "".join(f"7,{k}e300,{k % 2}\n" for k in range(1, 9))
    x = demo.standardise(demo.read_csv(Path(table(text))).x)
    np.testing.assert_allclose(x.mean(axis=0), [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(x.std(axis=0), [0, 1, 0], atol=1e-12)


def test_unknown_algorithm(command: Command):
    refused(command("demo", "--algorithms", "FedGiA,FedAgv"), "'FedAgv'", "Scaffold", "Did you mean 'fedavg'?")


def test_no_algorithm(command: Command):
    refused(command("demo", "--algorithms", " , "), "--algorithms", "FedGiA")


def test_unreadable_file(command: Command, tmp_path: Path):
    refused(command("demo", "--data", "nowhere.csv"), "nowhere.csv", "No such file")
    refused(command("demo", "--data", str(tmp_path)), str(tmp_path), "Is a directory")
    binary = tmp_path / "picture.csv"
    binary.write_bytes(b"\x89PNG\xff\xfe\x00")
    refused(command("demo", "--data", str(binary)), "picture.csv", "UTF-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age,ill\n1,0\nnan,1\n", ("line 3, column 1 (age)", "'nan'", "finite number")),
        ("1,0\n2,inf\n", ("line 2, column 2:", "'inf'")),
        ("1,0\nmany,1\n", ("line 2, column 1:", "'many'")),
        ("1,0\n\n,1\n", ("line 3, column 1:", "''")),
        ("1,x,0\n2,3,1\n", ("line 1, column 2:", "'x'")),
        ("1,0\n2,2\n3,1\n", ("line 2", "label", "is 2;", "0/1 or -1/+1")),
        ("1,0\n2,-1\n3,1\n", ("line 2", "is -1;")),
        ("1,1\n2,1\n", ("every label is 1", "both classes")),
        ("1,2,0\n1,1\n", ("line 2", "2 cells", "line 1 has 3")),
        ("a,b,ill\n1,1\n", ("line 2", "2 cells", "header has 3")),
        ("0\n1\n", ("one column", "commas")),
        ("1;0\n2;1\n", ("one column", "commas")),
        ("a,ill\n", ("no examples",)),
        ("", ("no examples",)),
    ],
)
def test_wrong_table(command: Command, table: Callable[[str], str], text: str, words: tuple[str, ...]):
    refused(command("demo", "--data", table(text)), "table.csv", *words)


def test_more_sites_than_examples(command: Command, table: Callable[[str], str]):
    refused(command("demo", "--data", table("1,0\n2,1\n"), "--sites", "3"), "--sites", "[1, 2]", "Got 3")
    refused(command("demo", "--data", table("1,0\n2,1\n"), "--sites", "2"), "--hospitals", "[1, 1]", "Got 5")


def test_out_must_be_a_folder(command: Command, tmp_path: Path):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for out in (taken, taken / "below"):
        refused(command("demo", "--out", str(out)), f"{taken} is a file")
    assert taken.read_text() == "a file"


@pytest.mark.parametrize(
    "arguments",
    [("demo", "--sites", "0"), ("demo", "--sites", "many"), ("demo", "--seed", "-1"), ("dmeo",), ("demo", "-x")],
)
def test_usage_errors(command: Command, arguments: tuple[str, ...]):
    result = command(*arguments)
    assert result.status == 2
    assert arguments[-1 if arguments[-1].startswith("-x") else -2 if len(arguments) > 1 else 0] in result.err
    assert "Traceback" not in result.err
    assert list(Path.cwd().iterdir()) == []


def test_reproduce_lists_its_experiments(command: Command):
    result = command("reproduce", "--list")
    assert result.status == 0
    assert "fedgia-table4" in result.out


def test_unknown_experiment(command: Command):
    refused(
        command("reproduce", "fedgia-tabel4"), "'fedgia-tabel4'", "drfl-fig5, and all", "Did you mean 'fedgia-table4'?"
    )
    refused(command("reproduce"), "--list")


def test_unknown_benchmark(command: Command):
    refused(command("bench", "--only", "nothing-like-it"), "'nothing-like-it'")


def test_interrupt_ends_with_130(command: Command, monkeypatch: pytest.MonkeyPatch):
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("foedus.app.demo.demo", interrupted)
    assert command("demo").status == 130


def test_the_installed_command_refuses_without_a_traceback(tmp_path: Path):
    script = Path(sys.executable).with_name("foedus")
    ended = subprocess.run(
        [script, "demo", "--data", "nowhere.csv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == "foedus: cannot read nowhere.csv: No such file or directory.\n"
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []
