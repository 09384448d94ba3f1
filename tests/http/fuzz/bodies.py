"""Fields of bodies that need more than a schema says: claims that hold, definitions that are flows, states that are
declared."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from schemathesis import Case

from tests.http.flow_stage import GRAPH, SIGNED, TWICE
from tests.http.fuzz.choices import Choices

Body = dict[str, Any]

STARTED: dict[str, tuple[Body, ...]] = {"runs": (SIGNED, TWICE), "workstreams": (GRAPH,)}
"""What is started at each of these addresses."""

ANY = tuple({"kind": kind.removesuffix("s"), **one} for kind, some in STARTED.items() for one in some)


def flow(choices: Choices, case: Case[Any], body: Body) -> None:
    """A definition, or the template of one, of the kind that is started here."""
    address = case.operation.path.rpartition("/")[2]
    for name in ("key", "webhook", "queue"):
        body.pop(name, None)
    chosen = choices.random.choice(STARTED.get(address, ANY))
    if address in STARTED and body.pop("template", None) is not None:
        body.pop("definition", None)
        body["template"] = chosen["name"]
    else:
        body["definition"] = deepcopy(chosen)


def _mine(choices: Choices, case: Case[Any], body: Body) -> None:
    """A job that a worker has."""
    held = choices.things.claim()
    if held is not None:
        case.path_parameters["id"] = held.job
        body |= {"worker": held.worker, "epoch": held.epoch}


def _held(choices: Choices, case: Case[Any], body: Body) -> None:
    """What a worker says of jobs that it has."""
    held = choices.things.claim()
    if held is not None:
        case.path_parameters["id"] = held.worker
        body["jobs"] = [{**one, "job": held.job, "epoch": held.epoch} for one in body["jobs"]]


def _override(choices: Choices, case: Case[Any], body: Body) -> None:
    """Something, and a state that it can be in."""
    body["id"] = choices.things.any() or body["id"]
    body["to"] = choices.random.choice(choices.things.states(body["id"]) or [body["to"]])


def _reference(name: str) -> Supply:
    def supply(choices: Choices, case: Case[Any], body: Body) -> None:
        body[name] = choices.own(name, case.operation.label) or body[name]

    return supply


def _ids(choices: Choices, case: Case[Any], body: Body) -> None:
    body["ids"] = [choices.own("jobs", case.operation.label) or one for one in body["ids"]]
    body.pop("filter", None)


def _schedule(choices: Choices, case: Case[Any], body: Body) -> None:
    """By a rule that can be kept, of a job or of a template."""
    for name in ("every", "kind", "template", "payload", "inputs", "tz", "catch_up"):
        body.pop(name, None)
    what = {"kind": "staged"} if choices.random.random() < 0.5 else {"template": SIGNED["name"]}
    body |= {"name": f"schedule-{choices.random.getrandbits(40)}", "cron": "0 3 * * *", **what}


def _key(choices: Choices, case: Case[Any], body: Body) -> None:
    """Under a key there is one for ever: a new one."""
    body["key"] = f"key-{choices.random.getrandbits(40)}"


def _scopes(choices: Choices, case: Case[Any], body: Body) -> None:
    body["scopes"] = ["read", "write"]
    body.pop("expires", None)


def _one_of(name: str, *values: Any) -> Supply:
    def supply(choices: Choices, case: Case[Any], body: Body) -> None:
        body[name] = choices.random.choice(values)

    return supply


Supply = Callable[[Choices, Case[Any], Body], None]

FIELDS: dict[str, Supply] = {
    "worker": _mine,
    "jobs": _held,
    "to": _override,
    "job": _reference("job"),
    "parent_id": _reference("parent_id"),
    "ids": _ids,
    "cron": _schedule,
    "every": _schedule,
    "key": _key,
    "scopes": _scopes,
    "inputs": _one_of("inputs", {}),
    "gate": _one_of("gate", None, None, "first", "first", "sign"),
    "from_step": _one_of("from_step", "sign", "after"),
    "quotas": _one_of("quotas", {"1": 8}, {"0": 10, "5": 1}),
    "content": _one_of("content", "aGVsbG8="),
    "usd": _one_of("usd", "2.50"),
}
"""Who sees to each."""
