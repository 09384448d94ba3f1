"""Ordinary programs that fork while their application is open in an event loop; `test_other_loops` runs them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from typing import Any

from keptwork import Keptwork
from keptwork.errors import KeptworkError

app = Keptwork(sys.argv[2] if len(sys.argv) > 2 else "sqlite:///:memory:")


@app.job()
def note(ctx: Any, by: str) -> None: ...


def reaped(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def child_of(name: str) -> None:
    """As people write children: enqueue, enqueue in a transaction, and end like any program."""

    async def use() -> None:
        await note.enqueue(by=name)
        async with app.transaction() as tx:
            await note.enqueue(by=name, _tx=tx)

    asyncio.run(use())
    asyncio.run(note.enqueue(by=name))


def forks() -> None:
    """Children of `os.fork`, forked inside a running loop, while the parent goes on with its connections."""

    async def parent() -> list[int]:
        codes = []
        await note.enqueue(by="parent")
        for number in range(3):
            if not (child := os.fork()):
                child_of(f"child {number}")
                os._exit(0)
            await note.enqueue(by="parent")
            codes.append(await asyncio.to_thread(reaped, child))
            await asyncio.gather(*[note.enqueue(by="parent") for _ in range(5)])
        return codes

    async def whole() -> None:
        async with app:
            print(await parent())

    asyncio.run(whole())


def multiprocesses() -> None:
    """The same by `multiprocessing`, whose children end in their own way."""

    async def parent() -> list[int | None]:
        async with app:
            await note.enqueue(by="parent")
            context = multiprocessing.get_context("fork")
            children = [context.Process(target=child_of, args=(f"child {number}",)) for number in range(3)]
            for child in children:
                child.start()
            await asyncio.gather(*[note.enqueue(by="parent") for _ in range(7)])
            for child in children:
                await asyncio.to_thread(child.join)
            await asyncio.gather(*[note.enqueue(by="parent") for _ in range(11)])
            return [child.exitcode for child in children]

    print(asyncio.run(parent()))


def forks_in_a_transaction() -> None:
    """The child may not use it, and the parent commits."""

    async def parent() -> int:
        async with app, app.transaction() as tx:
            await tx.fetch("SELECT 1 AS one")
            if not (child := os.fork()):
                try:
                    asyncio.run(note.enqueue(by="child", _tx=tx))
                except KeptworkError as error:
                    print(error, flush=True)
                os._exit(0)
            code = await asyncio.to_thread(reaped, child)
            await note.enqueue(by="parent", _tx=tx)
            return code

    print(asyncio.run(parent()))


def goes_on_in_the_loop() -> None:
    """A child that goes on inside the loop of its parent is told so."""

    async def parent() -> int:
        async with app:
            if not (child := os.fork()):
                try:
                    await note.enqueue(by="child")
                except KeptworkError as error:
                    print(error, flush=True)
                os._exit(0)
            return reaped(child)

    print(asyncio.run(parent()))


if __name__ == "__main__":
    {one.__name__: one for one in (forks, multiprocesses, forks_in_a_transaction, goes_on_in_the_loop)}[sys.argv[1]]()
