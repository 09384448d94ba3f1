"""Requests that nobody would write, made from the OpenAPI document: whatever routes there are, they are asked.

Half are as the document says, half are wrong in some way; where an id is asked for, most are ids of things that earlier
answers told of, so that things are changed in every order. `python -m tests.http.fuzz` is the long form.
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
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from requests.adapters import HTTPAdapter
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
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
SECONDS = 60
STREAM = "text/event-stream"
Operation = APIOperation[Any, Any, Any, Any]
ID = re.compile(r"\b[a-z]{2,12}_[0-9a-f]{8}-[0-9a-f-]{27}\b")


@dataclass
class Findings:
    """What was asked, what came back, and what was wrong with it."""

    statuses: Counter[int] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    without_key: int = 0
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        return sum(self.statuses.values())

    def told(self) -> str:
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.asked:,} requests to {len(self.routes)} routes, and {self.without_key:,} without a key\n"
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
        self.schema = schemathesis.openapi.from_dict(document)
        self.schema.config.update(base_url=address)

    def operations(self) -> Iterator[Operation]:
        """Every route that comes to an end."""
        for result in self.schema.get_all_operations():
            assert isinstance(result, Ok), result
            operation = result.ok()
            if STREAM not in str(operation.definition.raw.get("responses", {}).get("200", {})):
                yield operation

    def ask_all(self, requests: int) -> Findings:
        """About so many requests, in rounds over all routes, so that what one has made others meet."""
        chosen = list(self.operations())
        each = 10
        for round in itertools.count():
            for operation, mode in itertools.product(chosen, GenerationMode):
                if self.found.asked >= requests:
                    return self.found
                self._ask(operation, mode, each, round)
        return self.found

    def _ask(self, operation: Operation, mode: GenerationMode, each: int, round: int) -> None:
        @seed(self._seed + round)
        @settings(
            max_examples=each,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
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
        label = case.operation.label
        response = case.call(session=self._session, timeout=SECONDS)
        self.found.statuses[response.status_code] += 1
        self.found.routes[label] += 1
        self._judge(label, lambda: self._check(case, response))
        self._harvest(response)
        if self._random.random() < self._without_key:
            self._judge(f"{label} without a key", lambda: self._check_nobody(case))

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
    with server(given.database) as (address, token):
        found = Fuzzer(address, token, given.seed).ask_all(given.requests)
    print(found.told())
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
