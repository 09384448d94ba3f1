"""Requests that nobody would write, made from the OpenAPI document: whatever routes there are, they are asked.

Half of them are chains, where each request takes from answers what the document says that the next one needs. The
other half comes singly: as the document says, or wrong in some way, and with ids of things that earlier answers told
of, so that things are changed in every order. `python -m tests.http.fuzz` is the long form.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky, Unsatisfiable
from requests.adapters import HTTPAdapter
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.generation.stateful import APIStateMachine
from schemathesis.schemas import APIOperation

from detent.http import problems
from tests.http.declared import ANYWHERE

CHECKED = (
    "not_a_server_error",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
KNOWN_IDS = 300
LINKS = 30
SECONDS = 60
STREAM_SECONDS = 1
TELL_EVERY = 5_000
STREAM = "text/event-stream"
Operation = APIOperation[Any, Any, Any, Any]
ID = re.compile(r"\b[a-z]{2,12}_[0-9a-f]{8}-[0-9a-f-]{27}\b")


@dataclass
class Findings:
    """What was asked, what came back, and what was wrong with it."""

    statuses: Counter[int] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    did: set[str] = field(default_factory=set)
    chains: int = 0
    without_key: int = 0
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        return sum(self.statuses.values())

    def note(self, label: str, status: int) -> None:
        """An answer came."""
        self.statuses[status] += 1
        self.routes[label] += 1
        if status < 400:
            self.did.add(label)

    def told(self) -> str:
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.asked:,} requests to {len(self.routes)} routes, {self.chains:,} chains among them, and"
            f" {self.without_key:,} without a key; {len(self.did)} routes did what they were asked\n"
            f"answers: {statuses}\n{len(self.wrong)} kinds of wrong answers"
            + "".join(f"\n\n{where}\n{what}" for where, what in self.wrong.items())
        )


class Fuzzer:
    """Asks one server, with one key."""

    def __init__(self, address: str, token: str, number: int = 0, without_key: float = 0.05) -> None:
        load_all_checks()
        self._seed, self._without_key = number, without_key
        self._random = random.Random(number)
        self._session = _session(_WithKey(f"Bearer {token}"))
        self._nobody = _session(HTTPAdapter())
        self._checks: list[Any] = [CHECKS.get_one(name) for name in CHECKED]
        self._ids: list[str] = []
        self.found = Findings()
        document = self._session.get(f"{address}/openapi.json", timeout=SECONDS).json()
        self._own_key = self._session.get(f"{address}/api/whoami", timeout=SECONDS).json().get("actor", "")
        self.schema = schemathesis.openapi.from_dict(document)
        self.schema.config.update(base_url=address)

    def operations(self) -> Iterator[Operation]:
        """Every route."""
        for result in self.schema.get_all_operations():
            assert isinstance(result, Ok), result
            yield result.ok()

    def ask_all(self, requests: int) -> Findings:
        """About so many requests: in chains first, and then singly."""
        self.follow(requests // 2)
        return self.ask_singly(requests)

    def ask_singly(self, requests: int) -> Findings:
        """Until there were so many, in rounds over all routes, so that what one has made others meet."""
        chosen = list(self.operations())
        for round in itertools.count():
            for operation, mode in itertools.product(chosen, GenerationMode):
                if self.found.asked >= requests:
                    return self.found
                self._ask(operation, mode, 1 if _is_stream(operation) else 10, round)
        return self.found

    def follow(self, requests: int) -> None:
        """About so many requests in chains: what is made is then shown, moved and ended, by routes that take what the
        answers of others told."""
        machine = _chained(self)
        for round in itertools.count():
            if self.found.asked >= requests:
                return
            before = self.found.asked
            with suppress(Flaky):  # a chain that is made again is answered differently: there is more by then
                seed(self._seed + round)(machine).run(settings=_usual(max_examples=20, stateful_step_count=LINKS))
            assert self.found.asked > before, "no chain can be made from this document"

    def _ask(self, operation: Operation, mode: GenerationMode, each: int, round: int) -> None:
        @seed(self._seed + round)
        @_usual(max_examples=each)
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case[Any]) -> None:
            self.ask(case)

        try:
            ask()
        except Unsatisfiable:
            return  # nothing about this route can be wrong

    def ask(self, case: Case[Any]) -> None:
        """One request, and whether its answer is as it should be."""
        if "id" in (case.path_parameters or {}) and self._ids and self._random.random() < 0.8:
            case.path_parameters["id"] = self._random.choice(self._ids)
        self.answered(case, self.call(case))

    def call(self, case: Case[Any]) -> Response:
        """The answer; of a stream, how it begins."""
        self._spare_own_key(case)
        seconds = STREAM_SECONDS if _is_stream(case.operation) else SECONDS
        return case.call(session=self._session, timeout=seconds)

    def answered(self, case: Case[Any], response: Response) -> None:
        """Judges an answer, asks the same of the server without a key now and then, and remembers what there is."""
        label = case.operation.label
        self.found.note(label, response.status_code)
        if self.found.asked % TELL_EVERY == 0:
            print(f"{self.found.asked:,} requests, {len(self.found.wrong)} kinds of wrong answers", flush=True)
        self._judge(label, lambda: self._check(case, response))
        self._harvest(response)
        if self._random.random() < self._without_key:
            self._judge(f"{label} without a key", lambda: self._check_nobody(case))

    def _spare_own_key(self, case: Case[Any]) -> None:
        """Without the key all that follows would be refused, and tell nothing."""
        if (case.path_parameters or {}).get("id") == self._own_key:
            case.path_parameters["id"] = "spared"

    def _judge(self, label: str, check: Callable[[], None]) -> None:
        try:
            check()
        except (Exception, BaseExceptionGroup) as error:
            kind = f"{label}: {type(error).__name__}"
            self.found.wrong.setdefault(kind, str(error)[:3_000])

    def _check(self, case: Case[Any], response: Response) -> None:
        case.validate_response(response, checks=self._checks)
        declared = case.operation.definition.raw["responses"]
        status, kind = response.status_code, response.headers.get("content-type", [""])[0]
        assert str(status) in declared or status in ANYWHERE, f"{status} is not declared: {response.text[:500]}"
        assert status < 400 or kind == problems.MEDIA_TYPE, f"{status} is no problem document: {response.text[:500]}"

    def _check_nobody(self, case: Case[Any]) -> None:
        """Without a key nothing is told, and nothing judged, but by routes that need none."""
        if not case.operation.definition.raw.get("security"):
            return
        self.found.without_key += 1
        response = case.call(session=self._nobody, timeout=SECONDS)
        assert response.status_code in (401, 405, 413, 431), f"{response.status_code}: {response.text[:500]}"

    def _harvest(self, response: Response) -> None:
        found = set(ID.findall(response.text))
        self._ids = [*self._ids, *(found - set(self._ids))][-KNOWN_IDS:]


def _is_stream(operation: Operation) -> bool:
    return STREAM in str(operation.definition.raw.get("responses", {}).get("200", {}))


def _usual(**more: Any) -> settings:
    return settings(
        deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), **more
    )


def _chained(fuzzer: Fuzzer) -> type[APIStateMachine]:
    """Chains of requests, as many as the document has links for."""

    streams = [operation.path for operation in fuzzer.operations() if _is_stream(operation)]
    linked = fuzzer.schema.exclude(path=streams) if streams else fuzzer.schema

    class Chain(linked.as_state_machine()):  # type: ignore[misc] # made for the document at hand
        def setup(self) -> None:
            fuzzer.found.chains += 1

        def call(self, case: Case[Any], **how: Any) -> Response:
            return fuzzer.call(case)

        def validate_response(self, response: Response, case: Case[Any], *more: Any, **how: Any) -> None:
            fuzzer.answered(case, response)

    return Chain


class _WithKey(HTTPAdapter):
    """Sends a good key with every request: the generator leaves it out of those that are wrong, and what is answered to
    nobody tells nothing of the route."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def send(self, request: requests.PreparedRequest, *more: Any, **how: Any) -> requests.Response:
        request.headers["Authorization"] = self._key
        return super().send(request, *more, **how)


def _session(adapter: HTTPAdapter) -> requests.Session:
    made = requests.Session()
    made.mount("http://", adapter)
    made.trust_env = False
    return made


NO_BOUND_ON_GUESSES = "[server]\nfailed_keys_per_minute = 0\n"


def main() -> int:
    """Asks a server that runs in a process of its own, over a new database."""
    from tests.http.processes import server

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="postgres")
    given = parser.parse_args()
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    print(f"seed {given.seed}, {given.database}", flush=True)
    with server(given.database, NO_BOUND_ON_GUESSES) as (address, token):
        found = Fuzzer(address, token, given.seed).ask_all(given.requests)
    print(found.told())
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
