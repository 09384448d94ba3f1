"""Puts into a request what there is to ask about: ids and names of its own noun, claims that hold, definitions that
are flows. Mostly, that is; with what was made up instead, refusals stay covered."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any
from urllib.parse import quote, unquote

from schemathesis import Case, GenerationMode
from schemathesis.core.parameters import ParameterLocation

from tests.http.flow_stage import GRAPH, SIGNED, TWICE
from tests.http.fuzz.things import MESSAGE, Things

NOUNS = {
    "jobs": ("job",),
    "dead-letters": ("job",),
    "workers": ("w",),
    "runs": ("run",),
    "workstreams": ("ws",),
    "steps": ("step",),
    "approvals": ("apr",),
    "crews": ("crew",),
    "webhooks": (MESSAGE,),
    "agent-jobs": ("agent",),
    "keys": ("key",),
    "why": ("job", "run", "ws", "step", "crew", "agent"),
    "flow": ("run", "ws"),
    "job": ("job",),
    "parent_id": ("crew",),
}
"""What the id after each word of an address is of, and that in each parameter and field."""

FIXED = {"budgets": ("tenant", "today"), "lifecycles": ("job", "worker", "run-step")}
"""Names that no list tells."""

DEFINITIONS: dict[str, tuple[dict[str, Any], ...]] = {"runs": (SIGNED, TWICE), "workstreams": (GRAPH,)}
FLOWS = tuple({"kind": kind[:-1], **one} for kind, some in DEFINITIONS.items() for one in some)

Body = dict[str, Any]


class Supplies:
    """Of one fuzzer. On a whim something is of another noun, or as it was made up; `documented` is how often a body is
    the example of the document."""

    def __init__(
        self,
        things: Things,
        chance: random.Random,
        document: dict[str, Any],
        whim: float = 0.15,
        documented: float = 0.5,
    ) -> None:
        self._things, self._random = things, chance
        self._whim, self._documented = whim, documented
        self._schemas = document.get("components", {}).get("schemas", {})

    def fill(self, case: Case[Any]) -> None:
        """What is wrong on purpose stays so, and what came from an answer stays, too."""
        noted = dict(case.path_parameters or {})
        for noun, parameter in re.findall(r"([a-z-]+)/\{(\w+)", case.operation.path):
            if not self._things.knows(unquote(str(noted.get(parameter)))):
                noted[parameter] = self._named(noun, case.operation.label, noted.get(parameter))
        case.path_parameters = noted
        self._fill_query(case)
        if _is_good(case, ParameterLocation.BODY) and (case.body or isinstance(case.body, dict)):
            self._fill_body(case)
        if _is_good(case, ParameterLocation.HEADER) and case.headers and self._mostly():
            case.headers.pop("Idempotency-Key", None)

    def _mostly(self) -> bool:
        return self._random.random() >= self._whim

    # --- addresses and questions

    def _named(self, noun: str, asker: str, made_up: Any) -> Any:
        found = None
        if self._mostly():
            found = self._own(noun, asker)
        elif self._random.random() < 0.5:
            found = self._things.any()
        return made_up if found is None else quote(found, safe="")

    def _own(self, noun: str, asker: str) -> str | None:
        if noun in FIXED and self._random.random() < 0.8:
            return self._random.choice(FIXED[noun])
        if noun == "budgets":
            return self._own("flow", asker)
        if noun in NOUNS:
            state = "dead_lettered" if noun == "dead-letters" else None
            return self._things.one(self._random.choice(NOUNS[noun]), asker, state)
        return self._things.name(noun.removesuffix("s") if noun == "checkpoints" else noun)

    def _fill_query(self, case: Case[Any]) -> None:
        query = dict(case.query or {})
        if not _is_good(case, ParameterLocation.QUERY):
            return
        for name in ("flow", "job") & query.keys():
            query[name] = unquote(str(self._named(name, case.operation.label, query[name])))
        if "id" in query:
            query["id"] = self._things.any() or query["id"]
        if "after" in query and case.operation.path in self._things.pages:
            query["after"] = self._things.pages[case.operation.path]
        case.query = query

    # --- bodies

    def _fill_body(self, case: Case[Any]) -> None:
        body = case.body if isinstance(case.body, dict) else {}
        if self._random.random() < self._documented:
            body = deepcopy(self.example(case)) or body
        body = {**body}
        if self._mostly():
            body.pop("request_id", None)
        for named, supply in SUPPLIES:
            if named & body.keys() and self._mostly():
                supply(self, case, body)
        if "definition" in _fields(self._schema(case)) and self._mostly():
            self._flow(case, body)
        case.body = body

    def example(self, case: Case[Any]) -> Body | None:
        """The body that the document has for an example."""
        examples = self._schema(case).get("examples")
        return examples[0] if examples else None

    def _schema(self, case: Case[Any]) -> dict[str, Any]:
        """What the document says of the body."""
        content = case.operation.definition.raw.get("requestBody", {}).get("content", {})
        schema = next(iter(content.values()), {}).get("schema", {})
        choices = [schema, *schema.get("anyOf", ())]
        for one in choices:
            if "$ref" in one:
                found: dict[str, Any] = self._schemas.get(one["$ref"].rpartition("/")[2], {})
                return found
        return dict(schema)

    def _flow(self, case: Case[Any], body: Body) -> None:
        """A definition, or the template of one: of the kind that is started here."""
        kind = case.operation.path.rpartition("/")[2]
        for name in ("inputs", "key", "webhook", "queue"):
            body.pop(name, None)
        body["definition"] = deepcopy(self._random.choice(DEFINITIONS.get(kind, FLOWS)))
        if body.pop("template", None) and kind in DEFINITIONS:
            body["template"] = body.pop("definition")["name"]

    def _mine(self, case: Case[Any], body: Body) -> None:
        """A job that a worker has."""
        held = self._things.claim()
        if held is not None:
            case.path_parameters["id"] = held.job
            body |= {"worker": held.worker, "epoch": held.epoch}

    def _held(self, case: Case[Any], body: Body) -> None:
        """Several."""
        held = self._things.claim()
        if held is not None and isinstance(body["jobs"], list):
            case.path_parameters["id"] = held.worker
            body["jobs"] = [
                {**one, "job": held.job, "epoch": held.epoch} for one in body["jobs"] if isinstance(one, dict)
            ]

    def _key(self, case: Case[Any], body: Body) -> None:
        """One flow for ever under a key: a new one."""
        body["key"] = f"key-{self._random.getrandbits(40)}"

    def _override(self, case: Case[Any], body: Body) -> None:
        body["id"] = self._things.any() or body["id"]
        body["to"] = self._random.choice(self._things.states(body["id"]) or [body["to"]])

    def _references(self, case: Case[Any], body: Body) -> None:
        for name in ("job", "parent_id") & body.keys():
            if body[name] is not None:
                body[name] = self._own(name, case.operation.label) or body[name]

    def _ids(self, case: Case[Any], body: Body) -> None:
        if body["ids"]:
            body["ids"] = [self._own("jobs", case.operation.label) or one for one in body["ids"]]
            body.pop("filter", None)

    def _inputs(self, case: Case[Any], body: Body) -> None:
        """None of our flows has any."""
        body["inputs"] = {}

    def _gate(self, case: Case[Any], body: Body) -> None:
        body["gate"] = self._random.choice(("sign", "first", "second"))

    def _from_step(self, case: Case[Any], body: Body) -> None:
        body["from_step"] = "sign"
        body.pop("inputs", None)

    def _schedule(self, case: Case[Any], body: Body) -> None:
        """By a rule, of a job or of a template."""
        for name in ("every", "kind", "template", "payload", "inputs"):
            body.pop(name, None)
        what = {"kind": "staged"} if self._random.random() < 0.5 else {"template": SIGNED["name"]}
        body |= {"name": f"schedule-{self._random.getrandbits(40)}", "cron": "0 3 * * *", "tz": "UTC", **what}
        body |= {"catch_up": "latest"} if "catch_up" in body else {}

    def _scopes(self, case: Case[Any], body: Body) -> None:
        body["scopes"] = ["read", "write"]
        body.pop("expires", None)

    def _quotas(self, case: Case[Any], body: Body) -> None:
        body["quotas"] = {"1": self._random.randint(1, 8)}

    def _content(self, case: Case[Any], body: Body) -> None:
        body["content"] = "aGVsbG8="

    def _dollars(self, case: Case[Any], body: Body) -> None:
        body["usd"] = "2.50"


Supply = Callable[[Supplies, Case[Any], Body], None]
SUPPLIES: tuple[tuple[frozenset[str], Supply], ...] = tuple(
    (frozenset(named.split()), supply)
    for named, supply in (
        ("worker epoch", Supplies._mine),
        ("jobs", Supplies._held),
        ("key", Supplies._key),
        ("to", Supplies._override),
        ("job parent_id", Supplies._references),
        ("ids", Supplies._ids),
        ("inputs", Supplies._inputs),
        ("gate", Supplies._gate),
        ("from_step", Supplies._from_step),
        ("cron every", Supplies._schedule),
        ("scopes", Supplies._scopes),
        ("quotas", Supplies._quotas),
        ("content", Supplies._content),
        ("usd", Supplies._dollars),
    )
)
"""The fields of bodies that need more than a schema says, and who sees to them."""


def _fields(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema.get("properties", {})
    return found


def _is_good(case: Case[Any], where: ParameterLocation) -> bool:
    """Whether that part of a request is as the document says."""
    part = None if case.meta is None else case.meta.components.get(where)
    return part is None or part.mode is GenerationMode.POSITIVE
