"""A coordinator and sites whose messages are files in folders, all in one process."""

from pathlib import Path

import numpy as np
from hospitals import know_secrets, shares_at, write_tables

from foedus.app.experiment import file, sources, starter
from foedus.app.experiment.plan import Plan
from foedus.federation.courier.coordinator import CourierPlan, Progress
from foedus.federation.courier.site import CourierSite
from foedus.federation.order import Order, Result, order_of, site_arrays
from foedus.federation.plan import Request
from foedus.problem.problem import Problem
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.participation import as_participation


def names_of(problem: Problem) -> tuple[str, ...]:
    """The sites of a problem's clients."""
    return tuple(f"site-{i + 1}" for i in range(problem.terms.clients))


def site_file(home: Path, data: Path, policy: dict, **more: object) -> None:
    """Write the site file of a home."""
    import json

    (home / "local").mkdir(parents=True, exist_ok=True)
    keys = {"file": str(data.absolute())} | more
    lines = ["[data]", *(f"{k} = {json.dumps(v)}" for k, v in keys.items()), "[policy]"]
    lines += [f"{k} = {json.dumps(v)}" for k, v in policy.items()]
    (home / "local" / "foedus.toml").write_text("\n".join(lines) + "\n")


class Courier:
    """A plan and its sites; `play` carries all files until there is a result."""

    def __init__(self, folder: Path, work, patience: dict | None = None, modules=()):
        self.folder, self.notes, self.lines = folder, [], []  # the last: what the coordinator was told
        self.plan = CourierPlan.make(work, folder / "plan", patience, modules)
        self.names = work.sites
        self.restarts: tuple[str, ...] = ()  # sites each of whose answers is given by a new process

    def home(self, name: str) -> Path:
        return self.folder / f"home-{name}"

    def open_sites(self) -> None:
        """The sites as after a restart: only what is on their disks remains."""
        self.site = {name: CourierSite(self.home(name), self.notes.append) for name in self.names}

    @property
    def project(self) -> str:
        return self.plan.keys.fingerprint

    def answer(self, name: str, folder: Path | None = None) -> Path | None:
        """One site answers what is in its folder."""
        site, place = self.site[name], folder or self.plan.place(name)
        if name in self.restarts:
            site = CourierSite(self.home(name), self.notes.append)
        inbox = site.look(place, name, self.project)
        return None if inbox.question is None else site.answer(inbox.question, place)

    def next(self, **told) -> Progress:
        """The coordinator goes on, and accepts keys that it has compared."""
        progress = self.plan.next(**told)
        if progress.strangers:
            progress = self.plan.next(trust=progress.strangers, **told)
        return progress

    def play(self, most: int = 200) -> Result:
        """Carry files until there is a result."""
        for _ in range(most):
            for name in self.names:
                self.answer(name)
            progress = self.next()
            self.lines += progress.lines
            assert not progress.refused, progress.refused
            if progress.result is not None:
                for name in self.names:
                    self.answer(name)
                return progress.result
            assert progress.written, progress.lines
        raise AssertionError("no result")

    @property
    def exchanges(self) -> int:
        return len(self.plan.exchanges)


class CourierHall(Courier):
    """A problem over sites that bring arrays; their own draws are those of a simulation."""

    @classmethod
    def of(
        cls, folder: Path, problem: Problem, algorithm: Algorithm, policy: dict | None = None, patience=None, **told
    ):
        """The hall of a problem and an algorithm."""
        start = np.zeros(problem.terms.dim)
        fit = algorithm.fit(problem.over(start))
        who = as_participation(told.pop("participation", 1.0))
        order = order_of(
            fit.problem,
            fit.algorithm,
            start,
            run="r1",
            sites=names_of(problem),
            participation=who,
            **{"seed": 0} | told,
        )
        return cls(folder, order, fit.problem, policy, patience)

    def __init__(self, folder: Path, order: Order, problem: Problem, policy: dict | None = None, patience=None):
        for i, name in enumerate(order.sites):
            np.savez(folder / f"{name}.npz", **site_arrays(problem, i))
            site_file(
                folder / f"home-{name}", folder / f"{name}.npz", {"min_subset": 1, "min_sites": 1} | (policy or {})
            )
        super().__init__(folder, order, patience, ("constrained_cases",))
        self.open_sites()


class CourierWard(Courier):
    """Hospitals with a table each, and an experiment."""

    def __init__(
        self, folder: Path, text: str, policy: dict | None = None, patience=None, rows: int = 60, fifth: bool = False
    ):
        write_tables(folder, rows=rows)
        if fifth:  # of the rows that the city's own table leaves out
            lines = starter.hospitals()["city"].splitlines(keepends=True)
            (folder / "hospitals/harbour.csv").write_text("".join([lines[0], *lines[rows + 1 : 2 * rows + 1]]))
        (folder / "study.toml").write_text(text)
        (self.case,) = file.load(folder / "study.toml").cases
        self.cohort = sources.cohort_of(self.case.settings, folder)
        names = tuple(self.cohort.tables)
        more = {"labels": ["readmitted"], "groups": ["sex"]}
        for name in names:
            home = folder / f"home-{name}"
            site_file(
                home, folder / f"hospitals/{name}.csv", {"min_subset": 1, "ranges": True} | (policy or {}), **more
            )
            (home / "foedus-runs").mkdir()
        know_secrets(*(folder / f"home-{name}" / "foedus-runs" for name in names))
        self.shares = shares_at(self.case.settings, folder / f"home-{names[0]}" / "foedus-runs")
        super().__init__(folder, Request("r1", names, Plan.of(self.case.settings)), patience)
        self.open_sites()
