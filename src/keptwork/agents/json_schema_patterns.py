"""Apply regular expressions under a time limit.

Python's regular expressions cannot be interrupted, and a small pattern can take years on the right text. A separate
process applies them, and is killed if it takes too long. It starts with the first pattern.
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
"""CPU limit of the separate process, in seconds. It ends that process even if this one is killed meanwhile."""

_PROGRAM = f"""
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
for line in sys.stdin:
    pattern, text = json.loads(line)
    found = re.search(pattern, text)
    print(json.dumps(None if found is None else found.span()), flush=True)
"""


class TooSlow(Exception):
    """A pattern exceeded its time limit."""


def check(pattern: str) -> None:
    """Raise `BadInput` for an invalid regular expression, or one that is too long."""
    if len(pattern) > LONGEST_PATTERN:
        raise BadInput(what=f"a pattern of {len(pattern):,} characters is over the limit of {LONGEST_PATTERN:,}")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(what=f"{pattern!r} is no regular expression: {error}") from None


class Patterns:
    """A process that applies patterns. Use it as a context manager, which ends the process."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Patterns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def find(self, pattern: str, text: str) -> tuple[int, int] | None:
        """Return the span of the first match, or None. Only the first mebibyte of the text is searched."""
        check(pattern)
        answer = self._asked(json.dumps([pattern, text[:LONGEST_TEXT]]).encode() + b"\n")
        if not answer:
            self.close()
            raise TooSlow(f"the pattern {pattern!r} takes too long with this text; it was given {self._seconds:g} s")
        span: Any = json.loads(answer)
        return None if span is None else (span[0], span[1])

    def _asked(self, question: bytes) -> bytes:
        """Return the response of the process, or nothing if it does not respond in time or is gone."""
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
        """End the separate process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
