"""Handlers with steps, to be run in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keptwork.errors import KeptworkError


def _note(path: str, what: str, size: int = 0) -> str:
    with Path(path).open("a") as file:
        file.write(f"{what}\n")
    return "x" * size or what


async def _note_async(path: str, what: str) -> str:
    return _note(path, what)


async def steps_async(ctx: Any, path: str, size: int) -> list[Any]:
    """An async step, one in a thread with a large result, a failed attempt, a sleep, and one more."""
    one = await ctx.step("one", _note_async, path, "one")
    two = await ctx.step("two", _note, path, "two", size=size)
    if ctx.fencing_token == 0:
        raise RuntimeError("again")
    await ctx.sleep("10ms")
    return [one, len(two), await ctx.step("three", _note, path, "three")]


def steps_plain(ctx: Any, path: str, size: int) -> list[Any]:
    """The same in ordinary code."""
    one = ctx.step("one", _note_async, path, "one")
    two = ctx.step("two", _note, path, "two", size=size)
    if ctx.fencing_token == 0:
        raise RuntimeError("again")
    ctx.sleep("10ms")
    return [one, len(two), ctx.step("three", _note, path, "three")]


async def many_steps(ctx: Any, count: int) -> int:
    """All of them are recalled in the second attempt."""
    total: int = sum([await ctx.step(f"part {n}", int, n) for n in range(count)])
    if ctx.attempt == 1:
        raise RuntimeError("again")
    return total


def tells(ctx: Any) -> None:
    """Says how far it has come."""
    ctx.progress(0.1, "a little")
    ctx.progress(0.5, "half")


FORGED = [
    ('["save", "x", null]\nno json', "makes no sense"),
    ('["save", 5, null]\n1', "is no step"),
    (f'["save", "{"x" * 501}", null]\n1', "over the limit of 500"),
    ('["save", "a\\u0000b", null]\n1', "is no step"),
    (f'["save", "x", "{"x" * 501}"]\n1', "over the limit of 500"),
    ('["save", "x"]\n1', "makes no sense"),
    ('["whole", "other"]\n', "makes no sense"),
    ('["recall", "x"]\n', "makes no sense"),
    ('["tell", 7, "x"]\n', "7 is no progress"),
    ('["apply", {}]\n', "makes no sense"),
    ("[]\n", "makes no sense"),
]


def forges(ctx: Any, what: str) -> str:
    """Says to its worker what no handler of ours would."""
    import json

    line, head = ctx._line, what.partition("\n")
    shipped = json.dumps
    json.dumps = lambda *_, **__: head[0]
    try:
        return str(line.ask("anything", content=head[2].encode()))
    except KeptworkError as refusal:
        return str(refusal)
    finally:
        json.dumps = shipped
