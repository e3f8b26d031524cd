"""The progress bar of a run: round, objective, worst constraint, time left."""


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
        names = [name for name in ("objective", "minibatch_objective", "gradient", "feasibility") if name in record]
        words = "  ".join(f"{name.replace('_', ' ')} {record[name]:.4g}" for name in names)
        self.progress.update(self.task, completed=rounds, words=words)

    def close(self) -> None:
        """Take the bar off the screen."""
        self.progress.stop()
