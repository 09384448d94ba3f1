"""A process with a SQLite database open that does what its test asks of it, one line at a time.

    python -m tests.support.clerk [--without GUARD] URL

`enqueue N` acknowledges jobs and prints how many the process has acknowledged so far. `open PATH` and `sqlite3 PATH`
open a file and close it, as careless code in the same process would. `--without doors`, `held` or `judge` takes a guard
away: a test proves with it that the guard is what prevents the loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keptwork.errors import KeptworkError
from keptwork.store import NewJob, Store, open_store
from keptwork.store.sqlite import file, open_files
from tests.support.command import environment

ROOT = Path(__file__).parents[2]
HERE = "/proc/self/fd"
SECONDS = 100


class Refused(Exception):
    """What the process answered instead of doing it."""


class Clerk:
    """The process. Its database is open when this returns."""

    def __init__(self, url: str, without: str | None = None, prefix: tuple[str, ...] = ()) -> None:
        argv = [*prefix, sys.executable, "-m", "tests.support.clerk", *(["--without", without] if without else []), url]
        env = environment(PYTHONPATH=os.pathsep.join((environment()["PYTHONPATH"], str(ROOT))))
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, cwd=ROOT)
        self.acknowledged = 0
        try:
            self._answer()
        except BaseException:
            self.kill9()
            raise

    def enqueue(self, count: int) -> int:
        """Have jobs acknowledged; return how many this process has acknowledged so far."""
        self.acknowledged = int(self.ask(f"enqueue {count}"))
        return self.acknowledged

    def ask(self, line: str) -> str:
        """Return the answer, or raise what the process refused."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Let it close its database and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(SECONDS) == 0
        self._let_go()

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        self._let_go()

    def _let_go(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line.startswith("refused: "):
            raise Refused(line.removeprefix("refused: ").strip())
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read())
        return line.strip()


@contextmanager
def clerk(url: str, without: str | None = None, prefix: tuple[str, ...] = ()) -> Iterator[Clerk]:
    """A process that is killed at the end, if it has not ended by then."""
    one = Clerk(url, without, prefix)
    try:
        yield one
    finally:
        one.kill9()


GUARDS = {"doors": (file, "inspect"), "judge": (file, "judge"), "held": (open_files, "hold")}


async def serve(url: str) -> None:
    store = await _opened(url)
    print("open", flush=True)
    acknowledged = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, _, rest = line.strip().partition(" ")
        try:
            acknowledged += await _done(store, verb, rest)
            print(acknowledged, flush=True)
        except KeptworkError as error:
            print(f"refused: {error}", flush=True)
    await store.close()


async def _opened(url: str) -> Store:
    """A URL whose path begins with /proc/self/fd opens the file that follows by a descriptor of this process."""
    scheme, _, file = url.partition(f"{HERE}/")
    if file:
        url = f"{scheme}{HERE}/{os.open(f'/{file}', os.O_RDWR)}"
    return await open_store(url)


async def _done(store: Store, verb: str, rest: str) -> int:
    match verb:
        case "enqueue":
            return len(await store.enqueue([NewJob("busy") for _ in range(int(rest))]))
        case "open":
            with contextlib.suppress(FileNotFoundError):  # its log is gone, once another process took it
                open(rest, "rb").close()  # noqa: ASYNC230 - what careless code does
        case "sqlite3":
            db = sqlite3.connect(rest, uri=rest.startswith("file:"))
            with contextlib.suppress(sqlite3.Error):
                db.execute("SELECT count(*) FROM jobs").fetchall()
            db.close()
        case "forked":
            return _in_a_forked_child(rest)
    return 0


def _in_a_forked_child(path: str) -> int:
    child = os.fork()
    if not child:
        try:
            open(path, "rb").close()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    if os.waitpid(child, 0)[1]:
        raise KeptworkError(what="the forked child was refused")
    return 0


def main(arguments: list[str]) -> None:
    if arguments[0] == "--without":
        module, name = GUARDS[arguments[1]]
        setattr(module, name, lambda *_, **__: None)
    try:
        asyncio.run(serve(arguments[-1]))
    except KeptworkError as error:
        print(f"refused: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
