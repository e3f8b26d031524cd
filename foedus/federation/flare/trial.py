"""A federation on one machine: kits, a server and sites on loopback; `down` leaves no process behind."""

# pyright: reportMissingImports=false

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.federation.flare.console import Console, Unreachable
from foedus.federation.flare.kits import Project, provision, require_nvflare, write_site_file
from foedus.federation.flare.party import begin
from foedus.federation.flare.processes import alive, began, pids_with_mark
from foedus.federation.policy import SITE_FILE
from foedus.federation.terms import digest_of

STATE = "federation.json"
START_SECONDS = 90.0  # for the server and all sites to be connected


@dataclass(frozen=True)
class PartyStatus:
    """A party of the federation, and whether its process runs."""

    name: str
    pid: int | None
    running: bool


class Federation:
    """The federation in a folder; `up` makes and starts one, `at` finds one that was started."""

    def __init__(self, folder: Path, state: Json):
        self.folder, self.state = Path(folder), state

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.state["sites"])

    def kit(self, party: str) -> Path:
        return Path(self.state["kits"][party])

    def data(self, site: str) -> Path:
        """Return the file for a site's data in a trial, which lies outside its kit."""
        folder = self.folder / "data"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"{site}.npz"

    @staticmethod
    def up(
        folder: Path,
        sites: int | tuple[str, ...],
        policy: Json | None = None,
        line: Callable[[int], int] | None = None,
    ) -> "Federation":
        """Provision kits, start the server and the sites, and wait until they are connected.

        With a policy, the sites are those of a trial: their files name where its data will be placed. Without, each
        has the file of its kit, to be filled in. `line` takes the server's port and returns the one that sites call
        instead, as that of a proxy.
        """
        require_nvflare()
        folder = Path(folder).absolute()
        if (folder / STATE).exists():
            there = Federation.at(folder)
            if any(party.running for party in there.status()):
                raise FoedusError(f"a federation is running in {folder}; 'foedus federation down' stops it.")
            shutil.rmtree(folder / "kits", ignore_errors=True)
        names = tuple(f"site-{i + 1}" for i in range(sites)) if isinstance(sites, int) else sites
        port, admin_port = _free_ports(2)
        project = Project("foedus", "localhost", names, port, admin_port)
        kits = provision(project, folder / "kits")
        state = {
            "sites": list(names),
            "ports": [port, admin_port],
            "kits": {k: str(v) for k, v in kits.items()},
            "processes": {},
        }
        federation = Federation(folder, state)
        if policy is not None:
            for site in names:
                write_site_file(federation.kit(site), federation.data(site), policy)
        if line is not None:
            target, own = line(port), f"localhost:{port}"
            for site in names:
                path = federation.kit(site) / "startup" / "fed_client.json"
                write_whole(path, path.read_text().replace(own, f"localhost:{target}").encode())
        try:
            federation.heal()
            federation.wait()
        except BaseException:
            federation.down()
            raise
        return federation

    @staticmethod
    def again(folder: Path, sites: tuple[str, ...], policy: Json) -> "Federation":
        """Start the trial federation that was left in this folder again, or a new one."""
        if not (Path(folder) / STATE).exists():
            return Federation.up(folder, sites, policy)
        there = Federation.at(folder)
        if there.sites != sites:
            return Federation.up(folder, sites, policy)
        if not any(party.running for party in there.status()):
            there._check_ports()
        try:
            there.heal()
            there.wait()
        except BaseException:
            there.down()
            raise
        return there

    def _check_ports(self) -> None:
        """Raise where somebody else has a port by now: the kits name it."""
        for port in self.state["ports"]:
            with socket.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    one.bind(("127.0.0.1", port))
                except OSError:
                    raise FoedusError(
                        f"another program has port {port}, which the federation in {self.folder} needs; stop it, or "
                        "delete the folder to start anew."
                    ) from None

    @staticmethod
    def at(folder: Path) -> "Federation":
        """Return the federation that was started in this folder."""
        path = Path(folder).absolute() / STATE
        try:
            return Federation(path.parent, json.loads(path.read_text()))
        except FileNotFoundError:
            raise FoedusError(f"there is no federation in {folder}; 'foedus federation up' starts one.") from None
        except ValueError:
            raise FoedusError(f"{path} is damaged; delete the folder and start anew.") from None

    def heal(self) -> list[str]:
        """Start every party that is not running, and again every site whose file has changed; returns their names."""
        names = self.refresh()
        for party in ("server", *self.sites):
            if alive(self.state["processes"].get(party)) is None:
                self._end(party)  # jobs of a parent that was killed
                self._start(party)
                names.append(party)
        return names

    def refresh(self) -> list[str]:
        """Start every running site again whose file has changed, for a site reads it once; returns their names."""
        names = []
        for site in self.sites:
            process = self.state["processes"].get(site)
            if process and alive(process) is not None and process.get("terms") != self._terms(site):
                self._end(site)
                self._start(site)
                names.append(site)
        return names

    def _terms(self, party: str) -> str:
        """Return the digest of a site's file; the server has none, for it reads its file for every run."""
        return "" if party == "server" else digest_of(self.kit(party) / "local" / SITE_FILE)

    def _start(self, party: str) -> None:
        kit, terms = self.kit(party), self._terms(party)
        # a mark that the party's job processes inherit: they are found by it when their parent is gone
        process = begin(kit, self._mark(party), supervised=False)  # the command that starts it ends
        process_of = {"pid": process.pid, "began": began(process.pid), "started": time.time(), "terms": terms}
        self.state["processes"][party] = process_of
        _OWN[process.pid] = process
        self._save()

    def _mark(self, party: str) -> str:
        return f"{self.folder}:{party}"

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / STATE, json.dumps(self.state, indent=1).encode())

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Return when the server answers and every site is connected."""
        until = time.monotonic() + seconds
        start_times = {site: self.state["processes"].get(site, {}).get("started", 0.0) for site in self.sites}
        while True:
            try:
                with Console(self.kit("admin"), timeout=5.0) as console:
                    console.wait_for_sites(self.sites, max(1.0, until - time.monotonic()), start_times)
                return
            except Unreachable:
                dead = [p.name for p in self.status() if not p.running]
                if dead or time.monotonic() > until:
                    what = f"{dead[0]} has stopped" if dead else "it is not complete"
                    raise FoedusError(f"the federation did not start: {what}; see {self.folder}/kits.") from None
                time.sleep(0.3)

    def status(self) -> list[PartyStatus]:
        """Return every party and whether its process runs."""
        processes = self.state["processes"]
        parties = []
        for name in ("server", *self.sites):
            process = alive(processes.get(name))
            parties.append(PartyStatus(name, process, process is not None))
        return parties

    def processes(self, party: str) -> list[int]:
        """Return the ids of a party's processes: its own first, then those of its jobs."""
        own = alive(self.state["processes"].get(party))
        pids = pids_with_mark(self._mark(party))
        return [own, *(pid for pid in pids if pid != own)] if own is not None else pids

    def _end(self, party: str) -> None:
        import signal

        for _ in range(50):
            pids = self.processes(party)
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                if pid in _OWN:
                    _OWN.pop(pid).wait(timeout=10)
            time.sleep(0.05)

    def down(self) -> None:
        """Stop every process of the federation: the sites first, then the server."""
        for party in (*self.sites, "server"):
            self._end(party)
        self.state["processes"] = {}
        if self.folder.exists():
            self._save()


_OWN: dict[int, subprocess.Popen[bytes]] = {}  # the children of this process, which it must wait for


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody has on loopback."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
