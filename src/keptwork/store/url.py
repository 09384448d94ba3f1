"""Database URLs: parsing them, and displaying them without secrets."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from keptwork.errors import BadDatabaseUrl, UnknownScheme

DEFAULT_URL = "sqlite:///keptwork.db"

SYNCHRONOUS = ("full", "normal")
"""SQLite's `off` is excluded, because a power failure can then damage the file."""


class DatabaseUrl(NamedTuple):
    """A parsed URL. `path` is for SQLite (":memory:" for a database without a file), and `text` is the URL itself.
    `synchronous` is SQLite's setting for durable commits: `full` waits for the disk, and `normal` is durable soon
    afterward. `servers` is the number of servers in a PostgreSQL URL, of which one accepts writes. `shared` accepts a
    SQLite file on a network file system."""

    dialect: str
    text: str
    path: str = ""
    synchronous: str = "full"
    servers: int = 1
    shared: bool = False

    @property
    def shown(self) -> str:
        return redacted(self.text)

    @property
    def lasting(self) -> str:
        """The URL of the same database, independent of the environment and the working directory."""
        if self.dialect != "sqlite" or self.path == ":memory:":
            return self.text
        settings = [f"synchronous={self.synchronous}"] * (self.synchronous != "full") + ["shared=ok"] * self.shared
        return f"sqlite:///{quote(os.path.abspath(self.path))}{'?' * bool(settings)}{'&'.join(settings)}"


def database_url(text: str | None = None) -> DatabaseUrl:
    """Return the parsed URL. Default: $KEPTWORK_DB, then ./keptwork.db.

    >>> database_url("sqlite:///work.db").path
    'work.db'
    >>> database_url("sqlite:////var/lib/work.db").path
    '/var/lib/work.db'
    >>> database_url("sqlite:///work.db?synchronous=normal").synchronous
    'normal'
    """
    text = text or os.environ.get("KEPTWORK_DB") or DEFAULT_URL
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise BadDatabaseUrl(url=redacted(text), detail="it has no scheme")
    if scheme == "sqlite":
        place, _, settings = rest.partition("?")
        synchronous, shared = _settings(text, settings)
        return DatabaseUrl("sqlite", text, _sqlite_path(text, place), synchronous, shared=shared)
    if scheme in ("postgresql", "postgres"):
        return DatabaseUrl("postgres", text, servers=len(_servers(text)))
    raise UnknownScheme(scheme=scheme, url=redacted(text))


def redacted(text: str) -> str:
    """Return the URL with every password masked.

    >>> redacted("postgresql://ann:secret@db/work")
    'postgresql://ann:***@db/work'
    >>> redacted("sqlite:///work.db")
    'sqlite:///work.db'
    """
    if "://" not in text:
        return f"***{text[text.rindex('@') :]}" if "@" in text else text
    try:
        parts = urlsplit(text)
        query = "&".join(f"{k}={'***' if 'pass' in k.lower() else v}" for k, v in parse_qsl(parts.query))
    except ValueError:
        return text.partition("://")[0] + "://***"
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    # Built manually because urlunsplit drops the two slashes before an empty host.
    return f"{parts.scheme}://{name}{colon and ':***'}{at}{host}{parts.path}{query and f'?{query}'}"


def _sqlite_path(text: str, rest: str) -> str:
    if rest in (":memory:", "/:memory:", ""):
        return ":memory:"
    host, slash, path = rest.partition("/")
    if host or not slash or not path:
        raise BadDatabaseUrl(url=text, detail="a SQLite URL has three slashes before a relative path, four before /")
    if "\0" in unquote(path):
        raise BadDatabaseUrl(url=text, detail="a path cannot hold a NUL character")
    return unquote(path)


def _settings(text: str, settings: str) -> tuple[str, bool]:
    """Return the settings after the path: `synchronous`, and whether `shared=ok` is set."""
    given = dict(parse_qsl(settings, keep_blank_values=True))
    as_written = "&".join(f"{name}={value}" for name, value in given.items())
    chosen, shared = given.pop("synchronous", "full"), given.pop("shared", None)
    if given or chosen not in SYNCHRONOUS or shared not in (None, "ok") or settings != as_written:
        known = " or ".join(f"?synchronous={one}" for one in SYNCHRONOUS)
        raise BadDatabaseUrl(
            url=text, detail=f"after a path there may be {known}, and shared=ok; a ? in a path is written %3F"
        )
    return chosen, shared == "ok"


def _servers(text: str) -> list[str]:
    """Return HOST:PORT of every server in a PostgreSQL URL."""
    try:
        servers = urlsplit(text).netloc.rpartition("@")[2].split(",")
        _ = [urlsplit(f"//{server}").port for server in servers]
    except ValueError:
        raise BadDatabaseUrl(url=redacted(text), detail="the port is not a number") from None
    return servers
