"""Generate the module of models: a TypedDict for every document in responses and arguments."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tools.client.layout import INDENT
from tools.client.operations import Document, Operation, operations
from tools.client.prose import docstring, imported
from tools.client.spelling import Schema, Spelling, class_name

_NAMED = re.compile(r"models\.(\w+)")
_SPELLING = Spelling()


def module(document: Document) -> str:
    """Return the text of the module."""
    known = {class_name(name): schema for name, schema in document["components"]["schemas"].items()}
    needed = _needed(operations(document), known)
    models = [_model(name, known[name]) for name in sorted(needed)]
    if models and not models[0].startswith("\nclass"):  # two empty lines separate imports from a class
        models[0] = models[0].removeprefix("\n")
    about = docstring("Models of the HTTP API, as read from JSON. Fields that a later server adds are preserved.")
    return "\n".join([about, "", *imported("\n".join(models)), *models])


def _needed(found: list[Operation], known: Mapping[str, Schema]) -> set[str]:
    """Return the models that methods name, and those that these models name in turn."""
    said = [one.answer for one in found] + [one.pages.item for one in found if one.pages]
    said += [argument.type for one in found for argument in one.arguments]
    open_, needed = set(_NAMED.findall(" ".join(said))), set[str]()
    while open_:
        name = open_.pop()
        needed.add(name)
        open_ |= set(_referred(known[name])) - needed
    return needed


def _referred(schema: Any) -> Iterator[str]:
    for reference in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema)):
        yield class_name(reference)


def _model(name: str, schema: Schema) -> str:
    fields = {field: _type(schema, field, said) for field, said in schema.get("properties", {}).items()}
    if "enum" in schema or schema.get("type") != "object" or not fields:
        return f"\n{name} = {_SPELLING.of(schema)}\n"
    if all(field.isidentifier() and not keyword.iskeyword(field) for field in fields):
        return _class(name, schema, fields)
    return _call(name, schema, fields)


def _type(schema: Schema, field: str, said: Schema) -> str:
    spelt = _SPELLING.of(said)
    return spelt if field in schema.get("required", ()) else f"NotRequired[{spelt}]"


def _class(name: str, schema: Schema, fields: Mapping[str, str]) -> str:
    lines = [f"{INDENT}{field}: {type_}" for field, type_ in fields.items()]
    return "\n".join(["", f"class {name}(TypedDict):", docstring(_about(name, schema), INDENT), "", *lines, ""])


def _call(name: str, schema: Schema, fields: Mapping[str, str]) -> str:
    """Return a TypedDict in call syntax, for fields whose names are not valid in Python."""
    lines = [f"{INDENT * 2}{json.dumps(field)}: {_quoted(type_)}," for field, type_ in fields.items()]
    head = [f"{name} = TypedDict(", f'{INDENT}"{name}",', f"{INDENT}{{"]
    return "\n".join(["", *head, *lines, f"{INDENT}}},", ")", docstring(_about(name, schema)), ""])


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'


def _about(name: str, schema: Schema) -> str:
    return str(schema.get("description") or f"{name}.")
