"""Flows in a SQLite file, for commands to be tried on; and a hand that types SQL into it."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TypeVar

import pytest

from keptwork.cli import main, screen
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.store import Store, open_store
from tests.service.flow_driver import Driver
from tests.support.command import Done

T = TypeVar("T")


class Scene:
    """A database file; each call opens it anew, as every command does."""

    def __init__(self, path: str) -> None:
        self.path, self.url = path, f"sqlite:///{path}"

    def use(self, work: Callable[[Store], Awaitable[T]]) -> T:
        async def opened() -> T:
            store = await open_store(self.url)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(opened())

    def start(self, flow: Flow, **how: Any) -> flows.FlowRef:
        return self.use(lambda store: flows.start(store, flow, **how))

    def drive(self, failing: str | None = None) -> None:
        """Everything that can happen happens, and what has that name fails."""
        self.use(lambda store: Driver(store).to_the_end(lambda name: name == failing))

    def settle(self, failing: str | None = None) -> None:
        """What is due is done, once."""

        async def once(store: Store) -> None:
            driver = Driver(store)
            await driver.settle(await driver.start(), lambda name: name == failing)

        self.use(once)

    def state(self, ref: flows.FlowRef) -> str:
        async def read(store: Store) -> str:
            (row,) = await store.rows(ref.kind.flow, [ref.id], ("state",))
            return str(row["state"])

        return self.use(read)

    def sql(self, *statements: str) -> None:
        """Plain SQL, as an operator of old would type it."""
        db = sqlite3.connect(self.path)
        for statement in statements:
            assert db.execute(statement).rowcount > 0, statement
        db.commit()
        db.close()

    def keptwork(self, *arguments: str) -> Done:
        """The command as in a process of its own, but in this one: there are many, and starting each takes time."""
        said, complained, given = io.StringIO(), io.StringIO(), [*arguments, "--db", self.url]
        _forget_consoles()
        with redirect_stdout(said), redirect_stderr(complained), pytest.raises(SystemExit) as ended:
            main.run(given)
        _forget_consoles()
        return Done(given, int(ended.value.code or 0), said.getvalue(), complained.getvalue())

    def told(self, *arguments: str) -> Any:
        return json.loads(self.keptwork(*arguments, "--json").stdout)


def _forget_consoles() -> None:
    """They are made once, over the stream there is then."""
    screen.stdout.cache_clear()
    screen.stderr.cache_clear()
