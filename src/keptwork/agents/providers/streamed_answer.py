"""An answer as it arrives piece by piece, and the checks that make it usable.

A model's output is untrusted data. Text that cannot be stored, and arguments that are not valid JSON, stop here.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from keptwork.agents.conversation import Answer, BusinessFailure, Request, Stop, SystemFailure, Tell, ToolUse, Usage

MOST_TOKENS = 10**9
MOST_USES = 200
LONGEST_NAME = 200

_NAME = re.compile(r"[ -~]{1,200}")
_LOG = logging.getLogger("keptwork")


class Malformed(Exception):
    """A reply does not have the required form. The message names the part."""


class Draft:
    """The answer so far. Call `answer` when no more will arrive."""

    def __init__(self, provider: str, request: Request, tell: Tell | None = None) -> None:
        self.provider = provider
        self.model = request.model
        self.usage: Usage | None = None
        self.stop: Stop | None = None
        self.request_id: str | None = None
        self.asked = request
        self._tell = tell
        self._text: list[str] = []
        self._uses: dict[int, _Use] = {}

    def say(self, text: object) -> None:
        """Add a piece of text."""
        if not isinstance(text, str):
            raise Malformed("a piece of text")
        if not text:
            return
        self._text.append(text)
        if self._tell is not None:
            try:
                self._tell(clean(text))
            except Exception as error:  # a listener's error must not spoil a paid answer
                _LOG.warning("what a model says is no longer shown: %s", type(error).__name__)
                self._tell = None

    def use(self, at: object, id: object = None, name: object = None, piece: object = None) -> None:
        """Add a piece of the tool use at this index."""
        if not isinstance(at, int) or at < 0 or (at not in self._uses and len(self._uses) >= MOST_USES):
            raise Malformed("the use of a tool")
        self._uses.setdefault(at, _Use()).add(id, name, piece)

    def name(self, model: object, request_id: object = None) -> None:
        """Set the answering model and the provider's ID of the call. Unprintable values are ignored."""
        self.model = model if isinstance(model, str) and _NAME.fullmatch(model) else self.model
        known = isinstance(request_id, str) and _NAME.fullmatch(request_id)
        self.request_id = str(request_id) if known else self.request_id

    def count(self, input: object, output: object, cache_read: object = None, cache_write: object = None) -> None:
        """Set the provider's token counts so far. A missing count stays unchanged."""
        before = self.usage or Usage()
        said = (input, output, cache_read, cache_write)
        self.usage = Usage(*(_counted(now, then) for now, then in zip(said, before, strict=True)))

    @property
    def text(self) -> str:
        return clean("".join(self._text))

    def answer(self) -> Answer:
        """Return the whole answer, or raise if it is unusable."""
        if self.stop is None:
            raise SystemFailure(f"{self.provider} broke off in the middle of its answer", **self.told)
        if self.stop is Stop.LENGTH:
            self._refuse(
                f"the answer was cut off after {self.asked.max_tokens:,} tokens; raise max_tokens or ask for less"
            )
        if self.stop is Stop.REFUSED:
            self._refuse("the model refused to answer")
        uses = tuple(self._used(use) for _, use in sorted(self._uses.items()))
        if len({use.id for use in uses}) < len(uses):
            self._refuse("the model asks for two tools under one id")
        if not uses and not self.text.strip():
            self._refuse("the answer is empty")
        stop = Stop.TOOLS if uses else Stop.END
        return Answer(self.text, self.model, self.usage or Usage(), stop, uses, self.request_id)

    @property
    def told(self) -> dict[str, Any]:
        """The fields that a failure reports about the call."""
        return {"usage": self.usage, "model": self.model}

    def _refuse(self, why: str) -> NoReturn:
        raise BusinessFailure(why, **self.told)

    def _used(self, use: _Use) -> ToolUse:
        try:
            return use.whole()
        except Malformed as error:
            self._refuse(f"the model asks for a tool in a way that cannot be understood: {error}")


class _Use:
    """A tool use as it arrives."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._name: str | None = None
        self._pieces: list[str] = []

    def add(self, id: object, name: object, piece: object) -> None:
        for said in (id, name, piece):
            if said is not None and not isinstance(said, str):
                raise Malformed("the use of a tool")
        self._id = self._id or (clean(id) if isinstance(id, str) else None)
        self._name = self._name or (clean(name) if isinstance(name, str) else None)
        self._pieces += [piece] if isinstance(piece, str) else []

    def whole(self) -> ToolUse:
        if not self._name or not self._id or max(len(self._name), len(self._id)) > LONGEST_NAME:
            raise Malformed("it has no name or no id, or too long ones")
        return ToolUse(self._id, self._name, arguments("".join(self._pieces)))


def arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a tool: a JSON object that can be stored. Empty text is an empty object."""
    try:
        given = json.loads(text or "{}", parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Malformed("its arguments are no JSON") from None
    if not isinstance(given, dict):
        raise Malformed("its arguments are no JSON object")
    if any(one != clean(one) for one in _strings(given)):
        raise Malformed("its arguments hold signs that no text can have")
    return given


def clean(text: str) -> str:
    """Return the text with unpaired surrogates and NULs replaced, since neither can be stored."""
    if text.isascii():
        return text.replace("\0", "\ufffd")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a value, at any depth."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _counted(now: object, then: int) -> int:
    if now is None:
        return then
    if isinstance(now, bool) or not isinstance(now, int) or not 0 <= now <= MOST_TOKENS:
        raise Malformed("its count of tokens")
    return now
