"""What there is on a server, as far as its answers told: by noun and state, so that each request can be about something
of its own kind, in every state that there is one in."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

Kept = TypeVar("Kept")

KEPT = 30
ID = re.compile(r"([a-z]{1,12})_[0-9a-f]{8}-[0-9a-f-]{27}(:\d+)?")
MESSAGE = "message"
"""The noun of a webhook: its id is that of the flow it tells of, and the number of the move."""


class Claim(NamedTuple):
    """By what right a worker speaks of a job."""

    job: str
    epoch: int
    worker: str


class Things:
    """The newest of each noun and state; of what is named, the newest names."""

    def __init__(self, chance: random.Random, spared: str) -> None:
        self._random, self._spared = chance, spared
        self._ids: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
        self._states: dict[str, str] = {}
        self._names: dict[str, dict[str, None]] = defaultdict(dict)
        self._claims: dict[str, Claim] = {}
        self._parts: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
        self._turns: Counter[str] = Counter()
        self._given: dict[str, str] = {}
        self._good: dict[str, set[str]] = defaultdict(set)
        self.pages: dict[str, str] = {}

    # --- what answers tell

    def told(self, path: str, asked: dict[str, Any], document: Any) -> None:
        """Keeps what an answer tells of: that of a route, asked with these parameters."""
        for one in _objects(document):
            self._object(one)
        if not isinstance(document, dict):
            return
        if isinstance(document.get("name"), str):
            for noun in re.findall(r"/([a-z-]+)", path):
                _newest(self._names[noun], document["name"])
        if isinstance(document.get("next"), str):
            self.pages[path] = document["next"]
        if path.endswith("/claim"):
            self._claimed(asked.get("id", ""), document)

    def _object(self, one: dict[str, Any]) -> None:
        id, state = one.get("id", one.get("job")), one.get("state", "")
        if isinstance(id, str) and isinstance(state, str) and id != self._spared and ID.fullmatch(id):
            self._keep(id, state)
        for noun, listed in one.items():
            for each in listed if isinstance(listed, list) else ():
                if isinstance(each, dict) and isinstance(each.get("name"), str):
                    _newest(self._names[noun.replace("_", "-")], each["name"])
                    _newest(self._parts[noun], (str(id), each["name"]))

    def _keep(self, id: str, state: str) -> None:
        noun = noun_of(id)
        before = self._states.get(id)
        if before is not None and before != state:
            if not state:
                return
            self._ids[noun][before].pop(id, None)
        self._states[id] = state
        for gone in _newest(self._ids[noun][state], id):
            self._states.pop(gone, None)

    def _claimed(self, worker: str, document: dict[str, Any]) -> None:
        for one in document.get("jobs", ()):
            self._claims[one["id"]] = Claim(one["id"], one["epoch"], worker)
        for gone in list(self._claims)[:-KEPT]:
            del self._claims[gone]

    # --- what requests are given

    def one(self, noun: str, asker: str, state: str | None = None) -> str | None:
        """Something of this noun: whoever asks again gets one in another state, in turn, or in one that was good."""
        found = {name: ids for name, ids in self._ids[noun].items() if ids and state in (None, name)}
        if not found:
            return None
        good, turn = self._good[asker] & found.keys(), self._turns[asker]
        self._turns[asker] += 1
        states = sorted(good if good and turn % 2 else found)
        self._given[asker] = states[(turn // 2 if good else turn) % len(states)]
        return self._random.choice(list(found[self._given[asker]]))

    def did(self, asker: str) -> None:
        """What it was given last was in a good state for it."""
        if asker in self._given:
            self._good[asker].add(self._given[asker])

    def part(self, noun: str) -> tuple[str, str] | None:
        """The name of what something keeps, and the id of that."""
        return self._random.choice(list(self._parts[noun])) if self._parts[noun] else None

    def any(self) -> str | None:
        """Something of whatever noun."""
        nouns = [noun for noun, states in self._ids.items() if any(states.values())]
        noun = self._random.choice(nouns) if nouns else ""
        return self.one(noun, noun)

    def name(self, noun: str) -> str | None:
        """The name of something of this noun."""
        return self._random.choice(list(self._names[noun])) if self._names[noun] else None

    def claim(self) -> Claim | None:
        """A job that some worker has, or had."""
        held = [one for one in self._claims.values() if self._states.get(one.job) in ("assigned", "running")]
        return self._random.choice(held or list(self._claims.values()) or [None])

    def states(self, id: str) -> list[str]:
        """The states in which there is something of its noun."""
        return [state for state in self._ids[noun_of(id)] if state]

    def knows(self, id: object) -> bool:
        """Whether an answer told of it."""
        return id in self._states


def noun_of(id: str) -> str:
    """What an id is of."""
    return MESSAGE if ":" in id else id.partition("_")[0]


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(document, dict):
        yield document
        document = list(document.values())
    for one in document if isinstance(document, list) else ():
        yield from _objects(one)


def _newest(kept: dict[Kept, None], one: Kept) -> list[Kept]:
    """Puts it at the end, and drops the oldest of too many."""
    kept.pop(one, None)
    kept[one] = None
    gone = list(kept)[:-KEPT]
    for each in gone:
        del kept[each]
    return gone
