"""Names and types of the document in Python syntax."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

ANYTHING = "Any"
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MODULE_NAME = re.compile(r"keptwork__http__(?:routes__)?(\w+?)__(\w+)")


def identifier(name: str) -> str:
    """Return a name as a Python identifier.

    >>> identifier("dead letters"), identifier("Idempotency-Key"), identifier("from")
    ('dead_letters', 'idempotency_key', 'from_')
    """
    made = re.sub(r"\W", "_", name).lower()
    return f"{made}_" if keyword.iskeyword(made) else made


def class_name(name: str) -> str:
    """Return a name as a class name. Models of the same name get the name of their file as a prefix.

    >>> class_name("dead letters"), class_name("keptwork__http__routes__dead_letters__Cancel"), class_name("Job-Input")
    ('DeadLetters', 'DeadLettersCancel', 'JobInput')
    """
    if found := _MODULE_NAME.fullmatch(name):
        return class_name(found[1]) + found[2]
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[\W_]+", name))


def referred(schema: Schema) -> str | None:
    """Return the name of the model that a schema refers to, or None if the schema is more than that."""
    parts = [one for one in schema.get("anyOf", schema.get("allOf", [schema])) if one.get("type") != "null"]
    if len(parts) == 1 and "$ref" in parts[0]:
        return str(parts[0]["$ref"]).rpartition("/")[2]
    return None


class Spelling:
    """Python types of schemas. Arguments can be any mapping or sequence; responses are JSON as read."""

    def __init__(self, module: str = "", *, given: bool = False) -> None:
        self._module = module
        self._list, self._dict = ("Sequence", "Mapping") if given else ("list", "dict")

    def of(self, schema: Schema) -> str:
        """Return the type of a schema."""
        if "$ref" in schema:
            return self._module + class_name(str(schema["$ref"]).rpartition("/")[2])
        if many := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return union(*(self.of(one) for one in many))
        if "const" in schema:
            return f"Literal[{json.dumps(schema['const'])}]"
        if "enum" in schema:
            return f"Literal[{', '.join(map(json.dumps, schema['enum']))}]"
        return self._plain(schema)

    def _plain(self, schema: Schema) -> str:
        kind = schema.get("type")
        if kind == "array":
            return f"{self._list}[{self.of(schema.get('items', {}))}]"
        if kind == "object":
            values = schema.get("additionalProperties", True)
            return f"{self._dict}[str, {self.of(values) if isinstance(values, dict) else ANYTHING}]"
        return _PLAIN.get(str(kind), ANYTHING)


def union(*types: str) -> str:
    """Return a union of types, each once, None last.

    >>> union("None", "str", "int | None")
    'str | int | None'
    """
    parts = dict.fromkeys(one for each in types for one in _alternatives(each))
    if ANYTHING in parts:
        return ANYTHING
    return " | ".join([*(one for one in parts if one != "None"), *(one for one in parts if one == "None")])


def _alternatives(text: str) -> list[str]:
    """Return the parts of a union, without splitting inside brackets."""
    parts, depth, begun = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if sign == "|" and depth == 0:
            parts.append(text[begun:place].strip())
            begun = place + 1
    return [*parts, text[begun:].strip()]
