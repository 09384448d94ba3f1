"""Regular expressions, under a time limit.

Python's own cannot be interrupted, and a small one can take years with the right text. They are applied by a process
beside this one, which is ended when it takes too long; it is started with the first pattern.
"""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
from types import TracebackType
from typing import Any, BinaryIO, cast

from keptwork.errors import BadInput

LONGEST_PATTERN = 1_000
LONGEST_TEXT = 1 << 20
SECONDS = 2.0
CPU_SECONDS = 10
"""Should this process be killed meanwhile, the other one ends by itself."""

_PROGRAM = f"""
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
for line in sys.stdin:
    pattern, text = json.loads(line)
    found = re.search(pattern, text)
    print(json.dumps(None if found is None else found.span()), flush=True)
"""


class TooSlow(Exception):
    """A pattern took longer than it may."""


def check(pattern: str) -> None:
    """Refuses what is no regular expression, or too long a one."""
    if len(pattern) > LONGEST_PATTERN:
        raise BadInput(what=f"a pattern of {len(pattern):,} characters is over the limit of {LONGEST_PATTERN:,}")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(what=f"{pattern!r} is no regular expression: {error}") from None


class Patterns:
    """Where patterns are looked for. Used with `with`: then nothing of it is left behind."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Patterns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def find(self, pattern: str, text: str) -> tuple[int, int] | None:
        """From where to where the text has it first; none if nowhere. Only the first mebibyte is looked at."""
        check(pattern)
        answer = self._asked(json.dumps([pattern, text[:LONGEST_TEXT]]).encode() + b"\n")
        if not answer:
            self.close()
            raise TooSlow(f"the pattern {pattern!r} takes too long with this text; it was given {self._seconds:g} s")
        span: Any = json.loads(answer)
        return None if span is None else (span[0], span[1])

    def _asked(self, question: bytes) -> bytes:
        """What the other process answers in time; nothing if it does not, or is gone."""
        if self._process is None:
            command, pipe = [sys.executable, "-I", "-S", "-c", _PROGRAM], subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env={})
        stdin, stdout = cast("BinaryIO", self._process.stdin), cast("BinaryIO", self._process.stdout)
        try:
            stdin.write(question)
            stdin.flush()
            ready, _, _ = select.select([stdout], [], [], self._seconds)
            return stdout.readline() if ready else b""
        except OSError:
            return b""

    def close(self) -> None:
        """Ends the process beside this one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
