"""Database URLs: what they name, and how they are shown without their secrets."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from detent.errors import BadDatabaseUrl, UnknownScheme

DEFAULT_URL = "sqlite:///detent.db"


class DatabaseUrl(NamedTuple):
    """A parsed URL: `path` for SQLite (":memory:" for none), the URL itself for PostgreSQL."""

    dialect: str
    text: str
    path: str = ""

    @property
    def shown(self) -> str:
        return redacted(self.text)


def database_url(text: str | None = None) -> DatabaseUrl:
    """The database to use: as given, else DETENT_DB, else ./detent.db.

    >>> database_url("sqlite:///work.db").path
    'work.db'
    >>> database_url("sqlite:////var/lib/work.db").path
    '/var/lib/work.db'
    """
    text = text or os.environ.get("DETENT_DB") or DEFAULT_URL
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise BadDatabaseUrl(url=redacted(text), detail="it has no scheme")
    if scheme == "sqlite":
        return DatabaseUrl("sqlite", text, _sqlite_path(text, rest))
    if scheme in ("postgresql", "postgres"):
        _check_postgres(text)
        return DatabaseUrl("postgres", text)
    raise UnknownScheme(scheme=scheme, url=redacted(text))


def redacted(text: str) -> str:
    """The URL with every password taken out.

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
    # Put together by hand: urlunsplit drops the two slashes before an empty host.
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


def _check_postgres(text: str) -> None:
    try:
        _ = urlsplit(text).port
    except ValueError:
        raise BadDatabaseUrl(url=redacted(text), detail="the port is not a number") from None
