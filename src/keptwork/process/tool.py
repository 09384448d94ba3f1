"""Run a program as a tool: without a shell, with a given environment, bounded output, and no process left behind.

A keeper watches each tool (see `keeper`). It is forked from a zygote that has imported very little, so that a tool
costs only a few milliseconds more than the program itself. The arguments arrive byte for byte, or the program is not
started.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from keptwork.errors import BadInput
from keptwork.process.output import Kept, Stream
from keptwork.process.pool import Cages, Ending, Longest, Talk
from keptwork.process.resource_limits import Limits
from keptwork.process.tree import ON_LINUX

PROGRAM = "keptwork.process.tool_process"
GRACE_SECONDS = 2.0
LARGEST_ANSWER = 1 << 20
LARGEST_STDIN = 16 << 20
MOST_OUTPUT = 1 << 20
LONGEST_ARGUMENT = (128 << 10) - 1
"""Linux allows 32 pages for one argument or variable, including its final NUL."""
LONGEST_TOGETHER = 4 << 20
"""Above the usual limit of Linux. Below it, the kernel refuses what is too long."""

_MAY_PASS = (errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EINTR)


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run, exactly as it will be started."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes = b""
    limits: Limits = field(default_factory=Limits)


class Output:
    """The output of a program so far. `heard` is called when there is more."""

    def __init__(self, most: int = MOST_OUTPUT, heard: Callable[[Kept], None] = lambda kept: None) -> None:
        self.stdout, self.stderr = Kept(most), Kept(most)
        self.heard = heard

    @property
    def truncated(self) -> bool:
        """Whether any output was dropped."""
        return bool(self.stdout.cut or self.stderr.cut)


class NotStarted(Exception):
    """The program could not be started. `may_pass` is whether a retry might succeed."""

    def __init__(self, what: str, may_pass: bool = False) -> None:
        super().__init__(what)
        self.may_pass = may_pass


class Tools:
    """Runs the tools of one worker."""

    def __init__(self, program: str = PROGRAM, grace: float | None = None) -> None:
        self._cages = Cages(program, [], GRACE_SECONDS if grace is None else grace)

    async def run(self, command: Command, output: Output) -> Ending:
        """Run a program and return how it ended, when all its processes are gone. If this call is cancelled, it ends
        the program and its children with SIGTERM and, after a grace period, SIGKILL. Raise `NotStarted` if the program
        cannot be started, and `BadInput` if the command is invalid."""
        check(command)
        request = json.dumps({"argv": command.argv, "env": dict(command.env), "cwd": command.cwd}).encode()
        with _streams(command.stdin, output) as files:
            longest = Longest(LARGEST_ANSWER, 0)
            ending = await self._cages.run(None, command.limits, request, longest, _begun, _nothing_aside, files)
        if ending.answer is not None:
            raise _not_started(command, json.loads(ending.answer))
        if ending.refused is not None:
            raise NotStarted(f"{command.argv[0]} could not be started: {ending.refused}", may_pass=True)
        return ending

    async def close(self) -> None:
        """End every process that is left."""
        await self._cages.close()


def check(command: Command) -> None:
    """Raise `BadInput` for a command that could not arrive unchanged."""
    if not command.argv or not command.argv[0]:
        raise BadInput(what="there is no program to run: the command is empty")
    lengths = [_length(f"argument {place}" if place else "the program", one) for place, one in enumerate(command.argv)]
    for name, value in command.env.items():
        if not name or "=" in name:
            raise BadInput(what=f"{name!r} names no variable of an environment")
        lengths.append(_length(f"the variable {name}", f"{name}={value}", inherited=True))
    if command.cwd is not None:
        _length("the working directory", command.cwd, inherited=True)
    if sum(lengths) > LONGEST_TOGETHER:
        raise BadInput(what=_too_much(sum(lengths)))
    if len(command.stdin) > LARGEST_STDIN:
        raise BadInput(what=f"stdin of {len(command.stdin):,} bytes is over the limit of {LARGEST_STDIN >> 20} MiB")


def _length(what: str, text: str, inherited: bool = False) -> int:
    """Return the length of the text in bytes. Inherited text need not be UTF-8, because it is passed on unchanged."""
    if "\0" in text:
        raise BadInput(what=f"{what} holds a NUL, which no program can be given")
    try:
        length = len(text.encode("utf-8", "surrogateescape" if inherited else "strict"))
    except UnicodeEncodeError as error:
        sign = text[error.start]
        raise BadInput(what=f"{what} holds {sign!r} at {error.start}, half of a character: it is no text") from None
    if length > LONGEST_ARGUMENT:
        most = f"a program can be given {LONGEST_ARGUMENT:,} at most: pass it as stdin, or in a file"
        raise BadInput(what=f"{what} is {length:,} bytes long; {most}")
    return length + 1


def _too_much(length: int) -> str:
    return (
        f"the arguments and the environment are {length:,} bytes together, more than this system passes to a program: "
        "pass large data as stdin, or in a file"
    )


@contextlib.contextmanager
def _streams(stdin: bytes, output: Output) -> Iterator[list[int]]:
    """Yield the file descriptors for the program's standard streams."""
    with contextlib.ExitStack() as stack:
        files = [_filled(stdin)]
        stack.callback(os.close, files[0])
        for kept in (output.stdout, output.stderr):
            stream = Stream(kept, output.heard)
            stack.callback(stream.close)
            files.append(stream.writing)
        yield files


def _filled(stdin: bytes) -> int:
    """Return a file that holds the input, so that no process has to write while the program reads."""
    if not stdin:
        return os.open(os.devnull, os.O_RDONLY)
    with os.fdopen(os.memfd_create("stdin"), "w+b") if ON_LINUX else tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        return os.dup(file.fileno())


def _begun(talk: Talk) -> None:
    """Do nothing: a tool is ended, not asked to stop."""


async def _nothing_aside(asked: bytes) -> Any:
    raise ValueError("a tool asks nothing aside")


def _not_started(command: Command, answer: dict[str, Any]) -> NotStarted:
    program = command.argv[0]
    if answer["stage"] == "before":
        return NotStarted(f"{program} could not be started: {answer['why']}", may_pass=True)
    number = answer["errno"]
    why, may_pass = os.strerror(number), number in _MAY_PASS
    if answer["stage"] == "cwd":
        return NotStarted(f"{program} cannot run in {command.cwd}: {why}", may_pass)
    if number == errno.E2BIG:
        return NotStarted(_too_much(sum(map(len, (*command.argv, *command.env, *command.env.values())))))
    if answer["found"] is None:
        return NotStarted(_not_found(program, answer["tried"]))
    return NotStarted(f"{answer['found']} could not be started: {_MEANINGS.get(number, why)}", may_pass)


_MEANINGS = {
    errno.ENOENT: "what its first line (#!) names, or its loader, is not there",
    errno.EACCES: "it is not executable",
    errno.ENOEXEC: "it is no program; a script begins with a line like #!/bin/sh",
}


def _not_found(program: str, folders: list[str]) -> str:
    if "/" in program:
        return f"there is no program {program}"
    return f"there is no program {program!r}; it was looked for in {', '.join(folders) or 'no folder: PATH has none'}"


# Build the environment of a tool: the variables that programs need, and those that are listed.


USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables that every tool gets if they are set here. None of them is a secret."""


def passed_on(more: Iterable[str] = (), environ: Mapping[bytes, bytes] = os.environb) -> dict[str, str]:
    """Return the variables to pass on, with values that are not UTF-8 preserved."""
    wanted = ((name, environ.get(name.encode())) for name in (*PASSED, *more))
    found = {name: value.decode("utf-8", "surrogateescape") for name, value in wanted if value is not None}
    return {"PATH": USUAL_PATH, **found}
