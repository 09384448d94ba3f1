"""Puts into a request what there is to ask about: ids and names of its own noun, where a list goes on, and a body that
tells of things that are there."""

from __future__ import annotations

import random
import re
from copy import deepcopy
from typing import Any
from urllib.parse import quote, unquote

from schemathesis import Case, GenerationMode
from schemathesis.core import NotSet
from schemathesis.core.parameters import ParameterLocation

from tests.http.fuzz.bodies import FIELDS, Body, flow
from tests.http.fuzz.choices import PARTS, Choices
from tests.http.fuzz.things import Things

NAMED = re.compile(r"([a-z-]+)/\{(\w+)")
ABOUT = ("flow", "job")
"""Parameters of questions that name something by its id."""


class Supplies:
    """Of one fuzzer; `documented` is how often a body is the example of the document."""

    def __init__(
        self,
        things: Things,
        chance: random.Random,
        document: dict[str, Any],
        *,
        whim: float = 0.15,
        documented: float = 0.5,
    ) -> None:
        self._choices = Choices(things, chance, whim)
        self._documented = documented
        self._schemas = document.get("components", {}).get("schemas", {})

    def fill(self, case: Case[Any]) -> None:
        """What is wrong on purpose stays so, and what came from an answer stays, too."""
        if _is_good(case, ParameterLocation.PATH):
            self._fill_address(case)
        if _is_good(case, ParameterLocation.QUERY):
            self._fill_query(case)
        if _is_good(case, ParameterLocation.BODY):
            self._fill_body(case)
        if _is_good(case, ParameterLocation.HEADER) and case.headers and self._choices.mostly():
            case.headers.pop("Idempotency-Key", None)  # the same short keys are made up again and again

    def _fill_address(self, case: Case[Any]) -> None:
        given = dict(case.path_parameters or {})
        for noun, name in NAMED.findall(case.operation.path):
            made_up = str(given.get(name, "0"))
            if not self._choices.things.knows(unquote(made_up)):
                given[name] = self._choices.in_address(noun, case.operation.label, made_up)
            if noun in PARTS and self._choices.mostly():
                given |= self._part(PARTS[noun])
        case.path_parameters = given

    def _part(self, noun: str) -> dict[str, str]:
        """A name that says something only with the id of what has it."""
        found = self._choices.things.part(noun)
        return {} if found is None else {"id": found[0], "name": quote(found[1], safe="")}

    def _fill_query(self, case: Case[Any]) -> None:
        query, path = dict(case.query or {}), case.operation.path
        for name in ABOUT:
            if name in query:
                query[name] = self._choices.given(name, case.operation.label) or query[name]
        if "id" in query:
            query["id"] = self._choices.things.any() or query["id"]
        if "after" in query and path in self._choices.things.pages:
            query["after"] = self._choices.things.pages[path]
        case.query = query

    def _fill_body(self, case: Case[Any]) -> None:
        schema, choices = self._schema(case), self._choices
        body: Body | None = dict(case.body) if isinstance(case.body, dict) else None
        if schema and choices.random.random() < self._documented:
            body = deepcopy(next(iter(schema.get("examples", ())), body))
        if body is None or isinstance(body, NotSet):
            return
        if choices.mostly():
            body.pop("request_id", None)
        for name, supply in FIELDS.items():
            if body.get(name) is not None and choices.mostly():
                supply(choices, case, body)
        if "definition" in schema.get("properties", ()) and choices.mostly():
            flow(choices, case, body)
        case.body = body

    def _schema(self, case: Case[Any]) -> dict[str, Any]:
        """What the document says of the body."""
        content = case.operation.definition.raw.get("requestBody", {}).get("content", {})
        schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
        for one in (schema, *schema.get("anyOf", ())):
            if "$ref" in one:
                return dict(self._schemas.get(one["$ref"].rpartition("/")[2], {}))
        return schema


def _is_good(case: Case[Any], where: ParameterLocation) -> bool:
    """Whether that part of a request is as the document says."""
    part = None if case.meta is None else case.meta.components.get(where)
    return part is None or part.mode is GenerationMode.POSITIVE
