"""An experiment of `foedus reproduce`, and the options that it runs with."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from foedus.base.errors import FoedusError
from foedus.base.files import write_whole

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Options:
    """How to run an experiment: the number of instances (None: the usual one), where to write, how to print."""

    trials: int | None
    seed: int
    quick: bool
    out: Path
    echo: Callable[[object], None]  # a line, or a table, whose text is printed
    written: list[Path] = field(default_factory=list)  # the files that the experiment has written so far

    def instances(self, usual: int) -> int:
        """Return the number of instances to average over: `trials` if set, else one if quick, else the usual number."""
        return self.trials if self.trials is not None else 1 if self.quick else usual

    def keep(self, name: str, content: bytes) -> Path:
        """Write a file into the folder `out`, whole or not at all, and say where it is."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FoedusError(f"cannot make the folder {self.out}: {error.strerror}.") from None
        path = self.out / name
        write_whole(path, content)
        self.written.append(path)
        self.echo(f"written: {path}")
        return path


@dataclass(frozen=True)
class PaperExperiment:
    """A table or figure of a paper, under its name on the command line."""

    name: str
    title: str
    run: Callable[[Options], None]


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar over `total` pieces of work on a terminal; call what it yields before each piece, with its name."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=total)
        in_progress = False

        def step(name: str) -> None:
            nonlocal in_progress
            bar.update(task, description=name, advance=1 if in_progress else 0)
            in_progress = True

        yield step


def tracked(pieces: Sequence[Piece], words: Callable[[Piece], str]) -> Iterator[Piece]:
    """Yield pieces of work one after the other under a bar, which shows the words for the current one."""
    with progress(len(pieces)) as step:
        for piece in pieces:
            step(words(piece))
            yield piece
