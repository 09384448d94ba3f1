"""Finds PostgreSQL's programs `pg_dump` and `pg_restore` for a backup, and runs them without a shell.

A password goes into the environment of the program. It never goes into the arguments, which other users of the host can
read.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from typing import IO, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from keptwork.errors import MissingProgram, ProgramFailed
from keptwork.store.url import DatabaseUrl

USUAL_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/opt/homebrew/opt/libpq/bin",
    "/usr/local/opt/postgresql*/bin",
    "/usr/local/opt/libpq/bin",
    "/usr/local/pgsql/bin",
)
LIBPQ = {
    *(
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "passfile",
        "service",
        "sslmode",
        "sslcert",
        "sslkey",
        "sslrootcert",
    ),
    *("sslcrl", "ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs", "application_name"),
    *("connect_timeout", "options", "krbsrvname", "gsslib", "channel_binding", "client_encoding"),
}

_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")


class Program(NamedTuple):
    """A program, with the major version of PostgreSQL that it comes from."""

    path: str
    version: int

    def run(self, *arguments: str, url: DatabaseUrl | None = None) -> str:
        """Run the program to its end and return its output. A failure raises its first error message."""
        done = subprocess.run(
            [self.path, *arguments, *(_target(url) if url else ())],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=_environment(url),
        )
        if done.returncode:
            raise ProgramFailed(program=os.path.basename(self.path), detail=_first_error(done.stderr))
        return done.stdout

    @contextmanager
    def printing(self, *arguments: str) -> Iterator[IO[bytes]]:
        """Run the program and yield its output as a stream of any length."""
        argv = [self.path, *arguments]
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(argv, stdin=none, stdout=pipe, stderr=none, env=_environment(None)) as process:
            assert process.stdout is not None  # noqa: S101 - it was asked for
            try:
                yield process.stdout
                if process.wait():
                    raise ProgramFailed(program=os.path.basename(self.path), detail="it cannot read the file")
            finally:
                process.kill()


def program(name: str, server: int) -> Program:
    """Return a program that works with a server of this major version, of the lowest version that does."""
    found = [version for folder in _folders() if (version := _version(os.path.join(folder, name)))]
    able = [one for one in found if one.version >= server]
    if not able:
        older = f"; found only version {max(one.version for one in found)}" if found else ""
        raise MissingProgram(program=name, needed=server, older=older)
    return min(able, key=lambda one: one.version)


def _folders() -> list[str]:
    usual = [folder for place in USUAL_PLACES for folder in sorted(glob(place), reverse=True)]
    return [*filter(None, os.environ.get("PATH", "").split(os.pathsep)), *usual]


def _version(path: str) -> Program | None:
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = _VERSION.search(done.stdout)
    return Program(path, int(told[1])) if told else None


def _target(url: DatabaseUrl) -> tuple[str, ...]:
    """Return libpq's arguments for the database, without the password and the session's own settings."""
    parts = urlsplit(url.text)
    user, at, hosts = parts.netloc.rpartition("@")
    given = [(name, value) for name, value in parse_qsl(parts.query) if name in LIBPQ]
    if url.servers > 1 and "target_session_attrs" not in dict(given):
        given.append(("target_session_attrs", "read-write"))
    settings = urlencode(given)
    login = f"{user.partition(':')[0]}{at}"
    return ("--no-password", f"--dbname=postgresql://{login}{hosts}{parts.path}{settings and f'?{settings}'}")


def _environment(url: DatabaseUrl | None) -> dict[str, str]:
    told = {**os.environ, "LC_ALL": "C", "PGAPPNAME": "keptwork"}
    if url is None:
        return told
    parts = urlsplit(url.text)
    given = dict(parse_qsl(parts.query))
    password = parts.netloc.rpartition("@")[0].partition(":")[2] or given.get("password", "")
    settings = [f"-c {name}={_escaped(value)}" for name, value in given.items() if name not in {*LIBPQ, "password"}]
    if password:
        told["PGPASSWORD"] = unquote(password)
    if settings:
        told["PGOPTIONS"] = " ".join([os.environ.get("PGOPTIONS", ""), *settings]).strip()
    return told


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _first_error(stderr: str) -> str:
    """
    >>> _first_error("pg_dump: error: connection failed: refused\\nDETAIL: x")
    'connection failed: refused'
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors: Sequence[str] = [line for line in lines if "error:" in line] or lines or ["it gave no reason"]
    return errors[0].partition("error: ")[2] or errors[0]
