"""A site's terms: the site file, read once when the site starts and never another one until it starts again.

The site's own process reads the file, checks it and keeps its digest. Every job process gets the digest with its
environment and takes part only where the file still has it, so a file that was changed while the site runs keeps the
site out until its administrator starts it again. Nobody but the file's owner may be able to write it, and the data
that it names lie outside the kit: FLARE can name files inside the kit, and none outside.
"""

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.federation.policy import SITE_FILE, SiteFile

DIGEST = "FOEDUS_SITE_FILE"  # the variable with which the site's process tells its jobs the digest


def digest_of(path: Path) -> str:
    """The digest of a file's content; that of nothing where there is no file."""
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


def read_terms(kit: Path) -> tuple[SiteFile, str]:
    """The site file of a kit, checked, and its digest."""
    path = kit / "local" / SITE_FILE
    digest = digest_of(path)
    site = SiteFile.read(path)
    if digest_of(path) != digest:
        raise FoedusError(f"the site file {path} changed while it was read.")
    if path.stat().st_mode & 0o022:
        raise FoedusError(f"the site file {path} can be written by others than its owner; 'chmod 600' mends that.")
    if site.data is not None and lies_inside(site.data.file, kit):
        raise FoedusError(
            f"the site file {path} names the data file {site.data.file}, which lies inside the kit; "
            "keep the data outside of it."
        )
    return site, digest


def agreed_terms(kit: Path) -> SiteFile:
    """Return the site file for a job process; raise where it is not the one with which the site was started."""
    site, digest = read_terms(kit)
    if os.environ.get(DIGEST) != digest:
        raise FoedusError(
            f"the site file {kit / 'local' / SITE_FILE} is not the one with which this site was started; "
            "if its administrator has changed it, start the site again."
        )
    return site


def lies_inside(file: Path, kit: Path) -> bool:
    """Return whether a file, or what a link of this name leads to, is in the kit's folder."""
    kits = {Path(os.path.abspath(kit)), kit.resolve(), (kit / "local").resolve().parent}
    names = {Path(os.path.abspath(file)), file.resolve()}
    return any(name.is_relative_to(place) for name in names for place in kits)


def make_private(folder: Path) -> None:
    """Take a folder and all in it, as far as it is ours, from everybody but its owner."""
    names = [str(folder)]
    names += [os.path.join(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files)]
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # another process of the party has removed it meanwhile
            about = os.lstat(name)
            if not stat.S_ISLNK(about.st_mode) and about.st_uid == os.geteuid() and about.st_mode & 0o077:
                os.chmod(name, stat.S_IMODE(about.st_mode) & 0o700)
