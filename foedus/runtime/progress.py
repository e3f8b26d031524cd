"""The progress bar of a run: round, objective, worst constraint, time left; on a terminal, or in a notebook."""

import sys
import time
from html import escape
from typing import Protocol

EVERY = 0.1  # seconds between two pictures of a bar in a notebook


class Bar(Protocol):
    """A progress bar."""

    def update(self, rounds: int, record: dict[str, float]) -> None:
        """Show the number of rounds and the last round's figures."""
        ...

    def close(self) -> None:
        """End the bar."""
        ...


def progress_bar(total: int, title: str) -> Bar:
    """Return a bar for wherever the run is watched."""
    return NotebookBar(total, title) if in_notebook() else ProgressBar(total, title)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _words(record: dict[str, float]) -> str:
    """The figures of a round that matter to whoever waits."""
    names = [name for name in ("objective", "minibatch_objective", "gradient", "feasibility") if name in record]
    return "  ".join(f"{name.replace('_', ' ')} {record[name]:.4g}" for name in names)


class ProgressBar:
    """A rich bar that names what matters in the last round's record."""

    def __init__(self, total: int, title: str):
        # rich is imported where a bar is shown: most runs show none
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
        )
        self.progress = Progress(*columns, TimeRemainingColumn(), transient=True)
        self.task = self.progress.add_task(title, total=total, words="compiling")
        self.progress.start()

    def update(self, rounds: int, record: dict[str, float]) -> None:
        """Show the number of rounds and the last round's figures."""
        self.progress.update(self.task, completed=rounds, words=_words(record))

    def close(self) -> None:
        """Take the bar off the screen."""
        self.progress.stop()


class NotebookBar:
    """A bar in the output of a notebook's cell, which needs no widgets; the last state stays there."""

    def __init__(self, total: int, title: str):
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self.total, self.title = total, title
        self.state, self.shown_at = (0, "starting"), time.monotonic()
        self.handle = display(self._picture(), raw=True, display_id=True)

    def update(self, rounds: int, record: dict[str, float]) -> None:
        """Show the number of rounds and the last round's figures, not too often."""
        self.state = (rounds, _words(record))
        if time.monotonic() - self.shown_at >= EVERY:
            self._show()

    def close(self) -> None:
        """Show the last state."""
        self._show()

    def _show(self) -> None:
        self.shown_at = time.monotonic()
        if self.handle is not None:
            self.handle.update(self._picture(), raw=True)

    def _picture(self) -> dict[str, str]:
        rounds, words = self.state
        text = f"{self.title}: round {rounds} of at most {self.total}  {words}"
        bar = f'<progress value="{rounds}" max="{self.total}"></progress>'
        return {"text/plain": text, "text/html": f"<div>{bar} {escape(text)}</div>"}
