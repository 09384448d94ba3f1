"""The operations of an OpenAPI document: their arguments and responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tools.client.spelling import Schema, Spelling, identifier, referred, union

KEY_HEADER = "Idempotency-Key"
_BY_THE_WIRE = frozenset({KEY_HEADER, "Last-Event-ID"})
"""Headers that the client sends automatically."""

_JSON, _STREAM = "application/json", "text/event-stream"

Document = Mapping[str, Any]


class Unsayable(Exception):
    """The document contains something that the generator does not support."""


class Argument(NamedTuple):
    """An argument of a method: its names in Python and on the wire, its type, and whether it is required."""

    name: str
    wire: str
    type: str
    required: bool
    about: str
    place: str
    """Its place in the request: path, query, header, or body."""
    telling_none: bool = False
    """Whether None differs from an omitted argument."""


class Pages(NamedTuple):
    """A paginated list: the field of its items, and their type."""

    field: str
    item: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation."""

    tag: str
    name: str
    method: str
    path: str
    about: str
    arguments: tuple[Argument, ...]
    keyed: bool
    answer: str
    """The type of its response, or of one item of a stream."""
    kind: str
    """The kind of its response: json, bytes, or stream."""
    pages: Pages | None

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of its methods: its own, and for a paginated list the one that reads all pages."""
        if self.kind == "stream":
            return ("follow" if self.name == "stream" else f"follow_{self.name}",)
        every = "all" if self.name == "list" else f"all_{self.name}"
        return (self.name, every) if self.pages else (self.name,)

    def among(self, *places: str) -> list[Argument]:
        return [one for one in self.arguments if one.place in places]


def operations(document: Document) -> list[Operation]:
    """Return every operation, in the order of the document."""
    found: dict[tuple[str, str], Operation] = {}
    for made in _each(document):
        known = found.setdefault((made.tag, made.name), made)
        if known is not made:
            raise Unsayable(
                f"{made.method} {made.path} and {known.method} {known.path} are both called {made.tag}_{made.name}; "
                f"give their functions different names, or their routers different tags"
            )
    return list(found.values())


def _each(document: Document) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        if f"/api{path}" in document["paths"]:
            continue  # a second path of the same route
        for method, said in methods.items():
            tag = identifier(said["tags"][0])
            yield _operation(document, tag, method.upper(), path, said)


def _operation(document: Document, tag: str, method: str, path: str, said: Schema) -> Operation:
    headers = {one["name"] for one in said.get("parameters", ())}
    keyed = KEY_HEADER in headers
    kind, schema = _answer(said)
    return Operation(
        tag=tag,
        name=identifier(said["operationId"].removeprefix(f"{tag}_")),
        method=method,
        path=path,
        about=said.get("description", ""),
        arguments=tuple(_arguments(document, said, keyed)),
        keyed=keyed,
        answer="bytes" if kind == "bytes" else _answer_type(schema),
        kind=kind,
        pages=_pages(document, said, schema),
    )


# --- arguments


def _arguments(document: Document, said: Schema, keyed: bool) -> Iterator[Argument]:
    parameters = [one for one in said.get("parameters", ()) if one["name"] not in _BY_THE_WIRE]
    by_place = {place: [_parameter(one) for one in parameters if one["in"] == place] for place in _PLACES}
    yield from by_place["path"]
    taken = {one.name for group in by_place.values() for one in group}
    body = [_renamed(one, taken) for one in _fields(document, said, keyed)]
    yield from sorted([*body, *by_place["query"], *by_place["header"]], key=lambda one: not one.required)


_PLACES = ("path", "query", "header")
_GIVEN = Spelling("models.", given=True)


def _parameter(said: Schema) -> Argument:
    required = bool(said.get("required", False))
    type_ = _GIVEN.of(said.get("schema", {}))
    return _argument(said["name"], said["schema"], type_, required, said["in"], said.get("description", ""))


def _fields(document: Document, said: Schema, keyed: bool) -> Iterator[Argument]:
    """Yield the arguments of the body. Its idempotency key is passed as the header."""
    if "requestBody" not in said:
        return
    name = referred(said["requestBody"]["content"].get(_JSON, {}).get("schema", {}))
    if name is None:
        raise Unsayable(f"the body of {said['operationId']} is no JSON object with a model of its own")
    model = document["components"]["schemas"][name]
    for field, schema in model.get("properties", {}).items():
        if not (keyed and field == "request_id"):
            required = field in model.get("required", ())
            yield _argument(field, schema, _GIVEN.of(schema), required, "body", schema.get("description", ""))


def _argument(wire: str, schema: Schema, type_: str, required: bool, place: str, about: str) -> Argument:
    telling = not required and type_.endswith("| None") and schema.get("default") is not None
    about = " ".join(about.split())
    if (default := schema.get("default")) not in (None, False):
        about = f"{about or 'Default'}{'. Default' if about else ''}: {default!r}.".replace("..", ".")
    return Argument(
        identifier(wire), wire, type_ if required else union(type_, "None"), required, about, place, telling
    )


def _renamed(one: Argument, taken: set[str]) -> Argument:
    return one._replace(name=f"{one.name}_") if one.name in taken else one


# --- responses


def _answer(said: Schema) -> tuple[str, Schema]:
    good = next(answer for status, answer in said["responses"].items() if status.startswith("2"))
    content = good.get("content", {})
    if _STREAM in content:
        message = content[_STREAM].get("itemSchema", {}).get("properties", {})
        return "stream", message.get("data", {}).get("contentSchema", {})
    if _JSON in content and content[_JSON].get("schema"):
        return "json", content[_JSON]["schema"]
    return "bytes", {}


def _answer_type(schema: Schema) -> str:
    return Spelling("models.").of(schema) if schema else "dict[str, Any]"


def _pages(document: Document, said: Schema, schema: Schema) -> Pages | None:
    """Return the pagination of a list that has `next` in its response and `after` as an argument, or None."""
    name = referred(schema)
    asked = {one["name"] for one in said.get("parameters", ())}
    if name is None or "after" not in asked:
        return None
    fields = document["components"]["schemas"][name].get("properties", {})
    lists = [(field, one) for field, one in fields.items() if one.get("type") == "array"]
    if "next" not in fields or len(lists) != 1:
        return None
    return Pages(lists[0][0], Spelling("models.").of(lists[0][1]["items"]))
