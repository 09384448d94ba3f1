"""Checks the names and the file system by which a SQLite file is opened.

SQLite finds a file's log by the name of the file: `keptwork.db-wal`. Two names of one file mean two logs, and each log
overwrites the changes of the other. SQLite first resolves symbolic links, so they do not count as second names. On a
network file system, another machine can hold the file without a lock that this machine sees.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from typing import NamedTuple

from keptwork.errors import HardLinks, MountedAlone, SharedFiles

MOUNTINFO = "/proc/self/mountinfo"
NETWORK = {
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smbfs",
        "smb3",
        "9p",
        "ceph",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "lustre",
        "glusterfs",
    ),
    "fuse.glusterfs",
}
PASSED_ON = {"virtiofs", "fuse", "fakeowner"}  # prefixes up to the first dot: fuse.grpcfuse, fuse.sshfs
MOST_NAMED = 5

logger = logging.getLogger("keptwork")

_ESCAPED = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mount point and the kind of its file system."""

    place: str
    kind: str


def inspect(path: str, real: str, *, shared: bool) -> None:
    """Reject a file with several names, and a file on a network file system. The user can accept the latter with
    `shared`. `real` is the path without symbolic links."""
    refuse_hard_links(path, real)
    refuse_mount(path, real, shared=shared)


def refuse_mount(path: str, real: str, *, shared: bool) -> None:
    """Reject a file that is a mount of its own or on a network file system. Warn where locks might not be passed on."""
    mount = mount_of(real, mountinfo())
    if mount is None:
        return
    if mount.place == real:
        raise MountedAlone(path=path, folder=os.path.dirname(real))
    if mount.kind in NETWORK and not shared:
        raise SharedFiles(path=path, kind=mount.kind)
    if mount.kind.partition(".")[0] in PASSED_ON and not shared:
        logger.warning(
            "%s is on %s: run every process that uses it on one side of that mount, or add ?shared=ok to its URL",
            *(path, mount.kind),
        )


def refuse_hard_links(path: str, real: str) -> None:
    """Reject a file that has several names, and list those in the same directory."""
    try:
        found = os.stat(real)
    except OSError:
        return  # there is no file yet, or opening it reports the error
    if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
        raise HardLinks(path=path, links=found.st_nlink, others=_listed(_other_names(real, found)))


def mountinfo() -> bytes:
    """Return the mounts as Linux lists them, or nothing on other systems."""
    try:
        file = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return b"".join(iter(lambda: os.read(file, 1 << 16), b""))
    finally:
        os.close(file)


def mount_of(real: str, mounted: bytes) -> Mount | None:
    """Return the mount of a path without symbolic links. Among several mounts at one place, the last one counts.

    >>> mounted = b"22 1 8:1 / / rw - ext4 /dev/a rw\\n23 22 0:9 /x /a\\\\040b rw master:1 - nfs4 srv:/x rw\\n"
    >>> mount_of("/a b/k.db", mounted), mount_of("/a bc/k.db", mounted)
    (Mount(place='/a b', kind='nfs4'), Mount(place='/', kind='ext4'))
    """
    path, place, found = os.fsencode(real), b"", b""
    for line in mounted.splitlines():
        here = line.split(b" ", 5)[4]
        if b"\\" in here:
            here = _ESCAPED.sub(lambda octal: bytes([int(octal[1], 8)]), here)
        if len(here) >= len(place) and (path == here or path.startswith(here.rstrip(b"/") + b"/")):
            place, found = here, line
    if not found:
        return None
    return Mount(os.fsdecode(place), found.partition(b" - ")[2].split(b" ")[0].decode())


def _other_names(real: str, found: os.stat_result) -> list[str]:
    try:
        beside = [entry for entry in os.scandir(os.path.dirname(real)) if entry.inode() == found.st_ino]
    except OSError:
        return []
    return sorted(entry.name for entry in beside if entry.name != os.path.basename(real))


def _listed(names: list[str]) -> str:
    """
    >>> _listed(["b.db", "c.db"]), _listed([])
    ('b.db and c.db beside it', 'in other folders')
    """
    if not names:
        return "in other folders"
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return f"{' and '.join([*names[:MOST_NAMED], *more])} beside it"
