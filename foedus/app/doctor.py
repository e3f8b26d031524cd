"""Checks of a party's machine, each with a remedy: versions, disk, clock, certificate, way to the server, data, policy.

A place is the kit of a site, of the server or of the coordinator, a site's home or a coordinator's plan of a run by
courier. Nothing is changed, no message is sent, and nothing of the data is printed.
"""

import datetime
import json
import os
import shutil
import socket
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.quantities import size
from foedus.federation.names import RUNS
from foedus.federation.policy import SITE_FILE, SiteFile
from foedus.federation.site_ledger import SiteLedger

LEAST_DISK = 10**9  # bytes that a party needs for its records, logs and checkpoints
WARN_DAYS = 30  # before its end a certificate is spoken of
SECONDS = 5.0  # to wait for a connection
VERSIONS = {"jax": ("0.10",), "nvflare": ("2.9",), "cryptography": (), "psutil": ()}  # those that are known to work
OF_FLARE = ("nvflare", "psutil")
GOOD, FAIR, BAD = "ok", "look", "wrong"


@dataclass(frozen=True)
class Check:
    """What was looked at, whether it is as it should be, what was found, and what to do where it is not."""

    what: str
    level: str
    words: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:5}  {self.what}: {self.words}" + (f"; {self.remedy}" if self.remedy else "") + "."


@dataclass(frozen=True)
class Server:
    """Where a party finds its server."""

    host: str
    port: int


def examine(place: Path, seconds: float = SECONDS) -> list[Check]:
    """Return all checks of a place."""
    if not place.is_dir():
        raise FoedusError(f"{place} is no folder; name a kit, a site's home, or a plan.")
    kind = kind_of(place)
    if kind is None:
        raise FoedusError(f"{place} is no kit, no home of a site and no plan of a run by courier.")
    checks = [*_versions(with_flare=kind in ("site", "server", "coordinator")), _disk(place)]
    checks += _certificate(place)
    if kind in ("site", "coordinator"):
        checks += _way(place, server_of(place), seconds)
    if kind in ("site", "home"):
        checks += _data_and_policy(place)
        checks.append(_ledger(place))
    return checks


def kind_of(place: Path) -> str | None:
    """Return which place this is: the kit of a 'site', 'server' or 'coordinator', a 'home' or a 'plan'; or None."""
    files = {
        "site": "startup/fed_client.json",
        "server": "startup/fed_server.json",
        "coordinator": "startup/fed_admin.json",
        "plan": "coordinator/settings.json",
        "home": f"local/{SITE_FILE}",
    }
    return next((kind for kind, name in files.items() if (place / name).is_file()), None)


def _versions(with_flare: bool) -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", GOOD if sys.version_info >= (3, 11) else BAD, python)
    for name, known in VERSIONS.items():
        if name in OF_FLARE and not with_flare:
            continue
        try:
            number = version(name)
        except PackageNotFoundError:
            extra = "flare" if name in OF_FLARE else "secure"
            yield Check(name, BAD, "it is not installed", f"pip install 'foedus[{extra}]'")
            continue
        fits = not known or number.startswith(tuple(f"{one}." for one in known))
        remedy = "" if fits else f"pip install '{name}=={known[0]}.*', as all other parties have it"
        yield Check(name, GOOD if fits else BAD, number, remedy)


def _disk(place: Path) -> Check:
    free = shutil.disk_usage(place).free
    if free >= LEAST_DISK:
        return Check("disk", GOOD, f"{size(free)} are free")
    return Check("disk", BAD, f"{size(free)} are free at {place}", f"make room for {size(LEAST_DISK)}")


def _certificate(place: Path) -> Iterator[Check]:
    """The dates of the certificate, and by them the clock: a certificate is never made in the future."""
    names = ("startup/client.crt", "startup/server.crt", "coordinator/keys/coordinator.crt")
    path = next((place / name for name in names if (place / name).is_file()), None)
    now = datetime.datetime.now(datetime.UTC)
    clock = f"{now:%Y-%m-%d %H:%M} UTC"
    if path is None:
        if kind_of(place) == "site":
            yield Check("certificate", BAD, "there is none", "foedus site request, and install what is sent back")
        yield Check("clock", GOOD, clock)
        return
    try:
        from cryptography import x509

        one = x509.load_pem_x509_certificate(path.read_bytes())
    except (ImportError, OSError, ValueError):
        yield Check("certificate", BAD, f"{path} cannot be read", "ask the coordinator for it once more")
        return
    start, end = one.not_valid_before_utc, one.not_valid_after_utc
    if now < start:
        words = f"{clock}, before the certificate was made ({start:%Y-%m-%d %H:%M} UTC)"
        yield Check("clock", BAD, words, "set this computer's clock, by NTP where you can")
    else:
        yield Check("clock", GOOD, clock)
    days = (end - now).days
    level = GOOD if days >= WARN_DAYS else FAIR if now < end else BAD
    words = f"valid until {end:%Y-%m-%d}" if now < end else f"it has ended on {end:%Y-%m-%d}"
    yield Check("certificate", level, words, "" if level == GOOD else "ask the coordinator for a new one")


def server_of(kit: Path) -> Server:
    """Return where the server is, by the file that FLARE reads."""
    try:
        path = next(p for name in ("client", "admin") if (p := kit / "startup" / f"fed_{name}.json").is_file())
        content: Json = json.loads(path.read_text(encoding="utf-8"))
        if "admin" in content:
            own = content["admin"]
            return Server(str(own["host"]), int(own["port"]))
        service = content["servers"][0]["service"]
        host, _, port = service["target"].rpartition(":")
        return Server(host, int(port))
    except (OSError, ValueError, KeyError, IndexError, TypeError, StopIteration):
        raise FoedusError(f"{kit}/startup is damaged; take it from the kit as the coordinator made it.") from None


def _proxy_of(server: Server) -> str:
    """Return the proxy that this computer's environment names for the server: HOST:PORT, or nothing."""
    address = getproxies().get("https", "")
    if not address or proxy_bypass(server.host):
        return ""
    parts = urlsplit(address if "//" in address else f"//{address}")
    return f"{parts.hostname}:{parts.port or 8080}"


def _way(kit: Path, server: Server, seconds: float) -> Iterator[Check]:
    """The way to the server: its name, its port, a proxy, and whether TLS arrives there unbroken."""
    proxy, where = _proxy_of(server), f"{server.host}:{server.port}"
    try:
        address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0][4][0]
        yield Check("name", GOOD, f"{server.host} is {address}")
    except OSError:
        yield Check("name", BAD, f"{server.host} is not found", "ask for an entry in DNS, or write one into /etc/hosts")
        return
    if proxy:
        remedy = "no party speaks to it by itself: 'foedus party tunnel KIT --proxy ...' leads it through"
        yield Check("proxy", FAIR, proxy, remedy)
    try:
        connection = socket.create_connection((server.host, server.port), seconds)
    except OSError as error:
        why = "nobody answers" if isinstance(error, TimeoutError) else error.strerror or str(error)
        remedy = f"let this computer connect to {where} (outgoing TCP), and see that the server runs"
        yield Check("port", BAD, f"{where}: {why}", remedy)
        if proxy:
            yield _through(proxy, where, seconds)
        return
    yield Check("port", GOOD, f"{where} answers")
    with connection:
        yield _tls(kit, server, connection)


def _through(proxy: str, where: str, seconds: float) -> Check:
    """Ask a proxy for a tunnel."""
    host, _, port = proxy.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), seconds) as connection:
            connection.sendall(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
            line = connection.recv(200).split(b"\r\n")[0].decode("latin-1")
    except OSError as error:
        return Check("tunnel", BAD, f"the proxy {proxy} does not answer ({error.strerror or error})", "check its name")
    status = line.split(" ")[1] if line.startswith("HTTP/") and " " in line else line
    if status == "200":
        return Check("tunnel", GOOD, f"the proxy {proxy} lets through to {where}")
    return Check("tunnel", BAD, f"the proxy {proxy} answers {status}", f"ask for CONNECT to {where}")


def _tls(kit: Path, server: Server, connection: socket.socket) -> Check:
    """Shake hands as a party does, and see that the other end is the project's server."""
    root, certificate, key = (kit / "startup" / name for name in ("rootCA.pem", "client.crt", "client.key"))
    try:
        context = ssl.create_default_context(cafile=str(root))
        context.load_cert_chain(str(certificate), str(key))
    except (OSError, ssl.SSLError):
        return Check(
            "TLS",
            BAD,
            f"{kit}/startup lacks the project's root, or this party's certificate and key",
            "see the README of the kit",
        )
    try:
        with context.wrap_socket(connection, server_hostname=server.host) as secure:
            return Check("TLS", GOOD, f"the other end is {server.host} of this project ({secure.version()})")
    except ssl.SSLCertVerificationError as error:
        remedy = "something on the way answers in its place: ask for a way without inspection of TLS"
        return Check("TLS", BAD, f"the other end is not the project's server ({error.verify_message})", remedy)
    except OSError as error:
        remedy = "another service has this port, or something on the way breaks TLS"
        return Check("TLS", BAD, f"no TLS is spoken there ({error.strerror or type(error).__name__})", remedy)


def _data_and_policy(place: Path) -> Iterator[Check]:
    path = place / "local" / SITE_FILE
    try:
        site = SiteFile.read(path)
    except FoedusError as error:
        yield Check("policy", BAD, str(error).removesuffix("."), "correct it there")
        return
    policy = site.policy
    limits = f"approve = {policy.approve!r}, secure = {str(policy.secure).lower()}, min_subset = {policy.min_subset}"
    yield Check("policy", GOOD, limits)
    if site.data is None:
        yield Check("data", BAD, "no data file is named", f"write file = '...' into [data] of {path}")
        return
    if not site.data.file.is_file():
        yield Check("data", BAD, f"{site.data.file} is missing", f"correct file in [data] of {path}")
        return
    if not os.access(site.data.file, os.R_OK):
        yield Check("data", BAD, f"{site.data.file} cannot be read by this user", "give it the right to read")
        return
    if site.data.file.suffix != ".npz" and not (site.data.labels or site.data.y):
        remedy = f"list the columns that may be predicted in labels, in [data] of {path}"
        yield Check("data", FAIR, "no column may be a label, so every experiment is refused", remedy)
        return
    yield Check("data", GOOD, f"{site.data.file}, {size(site.data.file.stat().st_size)}")


def _ledger(place: Path) -> Check:
    folder = place / RUNS
    try:
        count = len(SiteLedger(folder).lines) if folder.is_dir() else 0
    except FoedusError as error:
        return Check(
            "ledger", BAD, str(error).removesuffix("."), "restore it from a backup; nothing is released before"
        )
    return Check("ledger", GOOD, f"{count} releases")
