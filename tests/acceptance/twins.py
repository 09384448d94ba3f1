"""Broken twins: the shipped store with one guard taken out, to show that a check would notice."""

from detent.store import sqlite_file
from detent.store.dialect import Dialect
from detent.store.queries import Catalogue
from detent.store.sqlite_writer import Writer


def break_store(twin: str) -> None:
    """Takes a guard out of this process's statements."""
    {"no-lock": _claims_without_lock, "no-fence": _moves_without_fence, "impatient": _writes_out_of_turn}[twin]()


def _claims_without_lock() -> None:
    """PostgreSQL claims that neither lock nor skip what they are about to take."""
    _patch("claim", "FOR NO KEY UPDATE OF j SKIP LOCKED", "")


def _moves_without_fence() -> None:
    """Moves that look neither at who holds the job nor at what has become of it since."""
    from pytest import MonkeyPatch  # noqa: PT013 - here, so that workers which are no twins start without it

    from tests.support.broken_sql import ignore_columns

    ignore_columns(MonkeyPatch(), "seq", "epoch", "state", "owner", "lease_until")


def _writes_out_of_turn() -> None:
    """SQLite connections that do not wait for a locked file, in processes that do not take turns."""
    sqlite_file.BUSY_SECONDS = 0

    def at_once(self: Writer, *, wait: bool) -> bool:
        return True

    Writer._take_turn = at_once  # type: ignore[method-assign]  # that is what a twin is


def _patch(name: str, old: str, new: str) -> None:
    original = Catalogue.__init__

    def patched(self: Catalogue, dialect: Dialect) -> None:
        original(self, dialect)
        assert old in self._raw[name], "the guard to be taken out is not there"
        self._raw = {**self._raw, name: self._raw[name].replace(old, new)}

    Catalogue.__init__ = patched  # type: ignore[method-assign]  # that is what a twin is
