"""Asks every route, and judges the answers.

First each route as the document says, until it has done what it was asked. Then, by turns, in chains, where each
request takes from answers what the document says that the next one needs, and singly: as the document says, or wrong in
some way, so that things are changed in every order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky, Unsatisfiable
from requests.adapters import HTTPAdapter
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core import NOT_SET
from schemathesis.core.result import Ok
from schemathesis.generation.stateful import APIStateMachine
from schemathesis.schemas import APIOperation

from keptwork.http import problems
from tests.http.declared import ANYWHERE
from tests.http.fuzz.findings import Findings
from tests.http.fuzz.stage import Stage
from tests.http.fuzz.supplies import Supplies
from tests.http.fuzz.things import Things

CHECKED = (
    "not_a_server_error",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
LINKS, MOST_CHAINS = 30, 20
MOST_AT_ONCE = 10
PORTION = 5_000
SECONDS = 60
STREAM_SECONDS = 1
TELL_EVERY = 5_000
SET_EVERY = 1_000
TRIES = 14
LONGEST_WAIT = 0.05
STREAM = "text/event-stream"
Operation = APIOperation[Any, Any, Any, Any]


class Fuzzer:
    """Asks one server, with one key."""

    def __init__(self, address: str, token: str, number: int = 0, without_key: float = 0.05) -> None:
        load_all_checks()
        self._seed, self._without_key = number, without_key
        self._random = random.Random(number)
        self._rounds = itertools.count()
        self._session = _session(_WithKey(f"Bearer {token}"))
        self._nobody = _session(HTTPAdapter())
        self._checks: list[Any] = [CHECKS.get_one(name) for name in CHECKED]
        document = self._session.get(f"{address}/openapi.json", timeout=SECONDS).json()
        self._own_key = self._session.get(f"{address}/api/whoami", timeout=SECONDS).json().get("actor", "")
        self._things = Things(self._random, self._own_key)
        self.supplies = Supplies(self._things, self._random, document)
        self._surely = Supplies(self._things, self._random, document, whim=0, documented=1)
        self._stage = Stage(address, self._session, self._things)
        self.schema = schemathesis.openapi.from_dict(document)
        self.schema.config.update(base_url=address)
        self.found = Findings(frozenset(operation.label for operation in self.operations()))

    def operations(self) -> Iterator[Operation]:
        """Every route."""
        for result in self.schema.get_all_operations():
            assert isinstance(result, Ok), result
            yield result.ok()

    def ask_all(self, requests: int) -> Findings:
        """About so many requests: plainly first, then by turns in chains and singly."""
        self._set_stage()
        self.ask_plainly()
        while self.found.asked < requests:
            portion = min(requests - self.found.asked, PORTION)
            end = self.found.asked + portion
            self.follow(end - portion // 2)
            self.ask_singly(end)
        return self.found

    def ask_plainly(self) -> Findings:
        """Every route as the document says, about one thing after the other, until it has done what it was asked."""
        for operation in self.operations():
            for _ in range(TRIES):
                if operation.label not in self.found.did:
                    self._ask_plainly(operation)
        return self.found

    def _ask_plainly(self, operation: Operation) -> None:
        raw = operation.definition.raw
        needed = {one["name"]: "" for one in raw.get("parameters", ()) if one["in"] == "query" and one.get("required")}
        case = operation.Case(path_parameters={}, query=needed, body={} if "requestBody" in raw else NOT_SET)
        self._surely.fill(case)
        self.answered(case, self.call(case))

    def ask_singly(self, requests: int) -> Findings:
        """Until there were so many, in rounds over all routes, so that what one has made others meet."""
        chosen = list(itertools.product(self.operations(), GenerationMode))
        for round in self._rounds:
            self._random.shuffle(chosen)
            each = min(max((requests - self.found.asked) // len(chosen), 1), MOST_AT_ONCE)
            for operation, mode in chosen:
                if self.found.asked >= requests:
                    return self.found
                self._ask(operation, mode, 1 if _is_stream(operation) else each, round)
        return self.found

    def follow(self, requests: int) -> None:
        """About so many requests in chains: what is made is then shown, moved and ended, by routes that take what the
        answers of others told."""
        machine = _chained(self)
        for round in self._rounds:
            before = self.found.asked
            if before >= requests:
                return
            chains = min(max((requests - before) // LINKS, 1), MOST_CHAINS)
            with suppress(Flaky):  # a chain that is made again is answered differently: there is more by then
                seed(self._seed + round)(machine).run(settings=_usual(max_examples=chains, stateful_step_count=LINKS))
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
        self.supplies.fill(case)
        self.answered(case, self.call(case))

    def call(self, case: Case[Any]) -> Response:
        """The answer; of a stream, how it begins."""
        self._spare_own_key(case)
        _hurry(case)
        seconds = STREAM_SECONDS if _is_stream(case.operation) else SECONDS
        return case.call(session=self._session, timeout=seconds)

    def answered(self, case: Case[Any], response: Response) -> None:
        """Judges an answer, asks the same of the server without a key now and then, and remembers what there is."""
        label = case.operation.label
        self.found.note(label, response.status_code, response.text)
        if self.found.asked % SET_EVERY == 0:
            self._set_stage()
        if self.found.asked % TELL_EVERY == 0:
            print(f"{self.found.asked:,} requests, {len(self.found.wrong)} kinds of wrong answers", flush=True)
        self._judge(label, lambda: self._check(case, response))
        self._remember(case, response)
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

    def _remember(self, case: Case[Any], response: Response) -> None:
        """What the answer tells of can be asked about from then on."""
        if response.status_code >= 400:
            return
        self._things.did(case.operation.label)
        if response.headers.get("content-type") == ["application/json"]:
            self._things.told(case.operation.path, case.path_parameters or {}, response.json())

    def _set_stage(self) -> None:
        self._stage.set()
        self.found.staged, self.found.not_staged = self._stage.asked, self._stage.refused
        self.found.wrong |= self._stage.broken


def _is_stream(operation: Operation) -> bool:
    return STREAM in str(operation.definition.raw.get("responses", {}).get("200", {}))


def _hurry(case: Case[Any]) -> None:
    """Nobody will enqueue anything while the fuzzer waits for the answer to a claim."""
    if isinstance(case.body, dict):
        wait = case.body.get("wait")
        if isinstance(wait, int | float):
            case.body["wait"] = min(wait, LONGEST_WAIT)


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
            fuzzer.supplies.fill(case)
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
