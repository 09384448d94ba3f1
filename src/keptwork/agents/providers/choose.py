"""Chooses the provider by `keptwork.toml` and the environment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from keptwork.agents.conversation import Answer, Limits, Provider, Request, Role, Stop, Tell, ToolUse, Usage, spelled
from keptwork.agents.providers.anthropic import Anthropic
from keptwork.agents.providers.openai import OpenAI
from keptwork.agents.skills import Tier
from keptwork.core.durations import span_us
from keptwork.core.secrets import VARIABLES, Key, from_environment, from_file, hidden
from keptwork.errors import BadInput, CannotWriteFile, NoKey, NoRecording
from keptwork.settings import Config

# The provider that needs neither a key nor a network.


MOST_LINES, LONGEST_LINE = 3, 160
LABEL = "[offline model: no provider key is set]"


class Offline:
    """Answers with the first lines of the prompt, labelled as offline. It costs nothing, calls no tools, and always
    gives the same answer."""

    name = "offline"

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        asked = next((one.text for one in reversed(request.messages) if one.role is Role.USER), "")
        lines = [line.strip() for line in asked.splitlines() if line.strip()] or ["nothing was asked"]
        text = "\n".join([LABEL, *map(_shortened, lines[:MOST_LINES])])
        if tell is not None:
            tell(text)
        return Answer(text, request.model, Usage(len(asked) // 4, len(text) // 4))


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."


# The provider that answers from recordings, and makes recordings on request.
#
# A directory of cassettes has one JSON file for each request, named by the hash of everything that affects the answer.
# Cassettes are meant to be stored with the code that needs them, so they contain no secrets.


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


RECORD = "KEPTWORK_RECORD"
NO_KEY = Key("none")
"""The key for a self-hosted server that requires none."""

_PAID = {"anthropic": Anthropic, "openai": OpenAI}


class Choice(NamedTuple):
    """The provider, its model for each tier, and the reason for the choice."""

    provider: Provider
    models: Mapping[Tier, str]
    why: str


def choose(config: Config, environ: Mapping[str, str] | None = None) -> Choice:
    """Return the provider to use. Raise `NoKey` if it needs a key and has none."""
    environ = os.environ if environ is None else environ
    name, why = _named(config, environ)
    if name == "recorded":
        return _recorded(config, environ)
    provider = Offline() if name == "offline" else _paid(name, config, _key(name, config, environ))
    return Choice(provider, _models(config, name), why)


def _named(config: Config, environ: Mapping[str, str]) -> tuple[str, str]:
    if config.models.provider is not None:
        return config.models.provider, f"{config.path} says so"
    for name, variable in VARIABLES.items():
        if environ.get(variable, "").strip():
            return name, f"{variable} is set"
    return "offline", f"neither {' nor '.join(VARIABLES.values())} is set"


def _paid(name: str, config: Config, key: Key) -> Provider:
    limits = Limits(total=span_us(config.models.timeout) / 1_000_000)
    return _PAID[name](key, config.models.base_url, limits)


def _key(name: str, config: Config, environ: Mapping[str, str]) -> Key:
    """Return the key of a provider. A self-hosted server can do without one."""
    if config.models.key_file is not None:
        return from_file(name, config.beside(os.path.expanduser(config.models.key_file)))
    found = from_environment(name, environ) or (NO_KEY if config.models.base_url is not None else None)
    if found is None:
        raise NoKey(
            provider=name, what=f"set {VARIABLES[name]}, or name a file that holds it: key_file in {config.path}"
        )
    return found


def _recorded(config: Config, environ: Mapping[str, str]) -> Choice:
    """Return a provider that replays recordings, or makes them with the key of the recorded provider."""
    models, folder, whose = config.models, config.beside(config.models.cassettes), config.models.recorded_from
    if models.record or environ.get(RECORD, "").strip() not in ("", "0"):
        key = _key(whose, config, environ)
        recorder = Recorded(folder, whose, _paid(whose, config, key), key.hidden_in)
        return Choice(recorder, _models(config, whose), f"{config.path} says so, and that {folder} is recorded")
    return Choice(Recorded(folder, whose), _models(config, whose), f"{config.path} says so; {folder} is played")


def _models(config: Config, provider: str) -> dict[Tier, str]:
    return {tier: config.models.name(provider, tier) for tier in Tier}
