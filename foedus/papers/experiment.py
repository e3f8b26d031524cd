"""What `foedus reproduce` runs: an experiment by name, and the options it is run with."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from foedus.errors import FoedusError
from foedus.files import write_whole


@dataclass(frozen=True)
class Options:
    """How to run an experiment: on how many instances (None: its own choice), where to write, how to speak."""

    trials: int | None
    seed: int
    quick: bool
    out: Path
    echo: Callable[[str], None]

    def instances(self, usual: int) -> int:
        """How many instances to average over: as asked, else one when quick, else the usual number."""
        return self.trials if self.trials is not None else 1 if self.quick else usual

    def keep(self, name: str, content: bytes) -> Path:
        """Write a file into the folder `out`, whole or not at all, and say where it is."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FoedusError(f"cannot make the folder {self.out}: {error.strerror}.") from None
        path = self.out / name
        write_whole(path, content)
        self.echo(f"written: {path}")
        return path


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, under the name the command line knows it by."""

    name: str
    title: str
    run: Callable[[Options], None]


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar over `total` pieces of work, on a terminal only; call what it gives before each piece with its name."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as shown:
        task = shown.add_task("", total=total)
        begun = False

        def step(name: str) -> None:
            nonlocal begun
            shown.update(task, description=name, advance=1 if begun else 0)
            begun = True

        yield step
