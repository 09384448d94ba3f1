"""Tracks the SQLite files that this process has open, and keeps other code of the process from opening them.

POSIX drops every lock that a process has on a file as soon as the process closes any descriptor of that file. A plain
`open("keptwork.db").close()`, or a second SQLite library, therefore removes Keptwork's locks without an error, and
another process then overwrites acknowledged work. An audit hook rejects such an `open` before it happens.

The hook compares base names first, then device and inode. It does not see a link with another name, `dir_fd`, ATTACH
from another connection, a connection that was opened earlier, or a C library that opens files itself. A forked child
has no locks to lose, so the hook does nothing there.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import apsw

from keptwork.errors import HeldFile

SUFFIXES = ("", "-wal", "-shm")
OPENING = ("open", "sqlite3.connect")


class Connection(apsw.Connection):
    """A connection to a file. The file counts as held until its last connection is closed."""

    def close(self, force: bool = False) -> None:
        super().close(force)
        _release(self)


class Held(NamedTuple):
    """An open file: its path without symbolic links, the paths it was opened by, its device and inode, and its
    connections."""

    path: str
    spellings: set[str]
    identity: tuple[int, int]
    connections: WeakSet[Connection]


_lock = threading.Lock()
_held: dict[tuple[int, int], Held] = {}
_names: dict[str, list[Held]] = {}


def hold(path: str, connection: Connection) -> None:
    """Reject other openings of the file in this process until the connection is closed."""
    found = os.stat(path)
    identity = (found.st_dev, found.st_ino)
    with _lock:
        held = _held.get(identity) or _held.setdefault(
            identity, Held(os.path.realpath(path), set(), identity, WeakSet())
        )
        held.connections.add(connection)
        if (spelling := os.path.abspath(path)) not in held.spellings:
            held.spellings.add(spelling)
            _index()
    _listen()


@cache
def _listen() -> None:
    os.register_at_fork(after_in_child=_forget)
    sys.addaudithook(_on_event)


def holds(path: str) -> bool:
    """Return whether this process has the file open by this name. A hard link is another name of the same file."""
    if not _held:
        return False
    try:
        found = os.stat(path)
    except OSError:
        return False
    held = _held.get((found.st_dev, found.st_ino))
    if held is None or not held.connections:
        return False
    return os.path.abspath(path) in held.spellings or os.path.realpath(path) == held.path


def _release(connection: Connection) -> None:
    with _lock:
        for held in _held.values():
            held.connections.discard(connection)
        for identity in [held.identity for held in _held.values() if not held.connections]:
            del _held[identity]
        _index()


def _index() -> None:
    """Index the files by base name. Case is folded because some file systems ignore it. The inode decides."""
    global _names
    names: dict[str, list[Held]] = {}
    for held in _held.values():
        spelled = {os.path.basename(path).casefold() for path in (held.path, *held.spellings)}
        for name in {f"{base}{suffix}" for base in spelled for suffix in SUFFIXES}:
            names.setdefault(name, []).append(held)
    _names = names


def _forget() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent might have held it
    _held.clear()
    _names.clear()


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event in OPENING and _names:
        for path in _paths(arguments[0], is_uri=event == "sqlite3.connect"):
            _refuse(path)


def _paths(given: Any, is_uri: bool) -> list[str]:
    """Return the paths that an opening can mean. A descriptor has none, and a possible `file:` URI has two."""
    try:
        path = os.fsdecode(given)
    except (TypeError, ValueError):
        return []
    return [path, unquote(urlsplit(path).path)] if is_uri and path.startswith("file:") else [path]


def _refuse(path: str) -> None:
    for held in _names.get(os.path.basename(path).casefold(), ()):
        if held.connections and _is_part(path, held):
            raise HeldFile(path=path, database=held.path)


def _is_part(path: str, held: Held) -> bool:
    """Return whether the path leads to the file, its log, or its index."""
    try:
        found = os.stat(path)
        if (found.st_dev, found.st_ino) == held.identity:
            return True
        return any(_same(found, f"{held.path}{suffix}") for suffix in SUFFIXES[1:])
    except (OSError, ValueError):
        return False


def _same(found: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(found, os.stat(path))
    except OSError:
        return False
