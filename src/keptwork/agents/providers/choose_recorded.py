"""The provider that answers from recordings, and makes recordings on request.

A directory of cassettes has one JSON file for each request, named by the hash of everything that affects the answer.
Cassettes are meant to be stored with the code that needs them, so they contain no secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keptwork.agents.conversation import Answer, Provider, Request, Stop, Tell, ToolUse, Usage
from keptwork.agents.conversation_spelling import spelled
from keptwork.core.secrets_key import hidden
from keptwork.errors import BadInput, CannotWriteFile, NoRecording

VERSION = 1
LARGEST_FILE = 16 << 20

Redact = Callable[[str], str]
"""A function that removes secrets from text."""


class Recorded:
    """Replays recordings. With `inner`, it records that provider's answers. Failed calls are not recorded."""

    def __init__(self, folder: Path, name: str, inner: Provider | None = None, redact: Redact = hidden) -> None:
        self.name = name
        self._folder = folder
        self._inner = inner
        self._redact = redact

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        file = self.file(request)
        if self._inner is None:
            return _told(self._played(file, request), tell)
        self._write(file.with_name("trial"), "")  # before paying for an answer that cannot be stored
        answer = await self._inner.answer(request, tell)
        said = {"version": VERSION, "request": json.loads(spelled(request)), "answer": asdict(answer)}
        self._write(file, self._redact(json.dumps(said, indent=2, sort_keys=True, ensure_ascii=False)) + "\n")
        return answer

    def file(self, request: Request) -> Path:
        """Return the file of a request's recording. Secrets are not part of its name, so users with other secrets find
        it, too."""
        digest = hashlib.sha256(self._redact(spelled(request)).encode("utf-8", "replace")).hexdigest()
        return self._folder / f"{digest[:32]}.json"

    def _played(self, file: Path, request: Request) -> Answer:
        try:
            with file.open("rb") as opened:
                text = opened.read(LARGEST_FILE + 1)
        except FileNotFoundError:
            raise NoRecording(file=file, model=request.model) from None
        except OSError as error:
            raise BadInput(what=f"{file} cannot be read: {error.strerror or error}") from None
        try:
            return _answer(json.loads(text))
        except (ValueError, TypeError, LookupError, RecursionError):
            raise BadInput(what=f"{file} is no recording; delete it, and make it anew with KEPTWORK_RECORD=1") from None

    def _write(self, file: Path, text: str) -> None:
        """Write the whole file or nothing. With an empty text, only check that the directory is writable."""
        made = file.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            made.write_text(text, "utf-8", "replace")
            if text:
                made.replace(file)
            else:
                made.unlink()
        except OSError as error:
            with suppress(OSError):
                made.unlink(missing_ok=True)
            raise CannotWriteFile(path=file, detail=error.strerror or error) from None


def _told(answer: Answer, tell: Tell | None) -> Answer:
    if tell is not None and answer.text:
        tell(answer.text)
    return answer


def _answer(said: Any) -> Answer:
    if said["version"] != VERSION:
        raise ValueError("another version")
    kept = said["answer"]
    uses = tuple(ToolUse(use["id"], use["name"], use["arguments"]) for use in kept["uses"])
    return Answer(kept["text"], kept["model"], Usage(*kept["usage"]), Stop(kept["stop"]), uses, kept["request_id"])
