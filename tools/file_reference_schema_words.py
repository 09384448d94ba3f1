"""Describe the values that a JSON Schema allows, in the words of the reference pages.

A type with a title is called by its title. Whether a value can be omitted follows from its default, which is described
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_BOOLEAN = "`true` or `false`"


def words(schema: Schema, link: str = "") -> str:
    """Describe a value. `link` leads to the keys of a table inside it.

    >>> words({"type": "integer", "minimum": 0, "maximum": 5000})
    'a whole number from 0 to 5,000'
    >>> words({"type": "array", "items": {"title": "Name", "type": "string"}, "maxItems": 5})
    'a list of up to 5 elements, each a name'
    """
    match schema:
        case {"anyOf": _}:
            return _either(schema, link)
        case {"$ref": _}:
            return f"the keys of {link}"
        case {"enum": values}:
            return f"one of {', '.join(f'`{value}`' for value in values)}"
        case {"title": title}:
            return _named(title, schema)
        case {"type": "boolean"}:
            return _BOOLEAN
        case {"type": "integer" | "number" as kind}:
            return f"a {'whole ' if kind == 'integer' else ''}number{_bounds(schema)}"
        case {"type": "string"}:
            return "text" + _of(_how_many(schema, "Length"), "characters")
        case {"type": "array"}:
            return _list(schema, link)
        case {"type": "object"}:
            return _names(schema, link)
    return "any value"


def _either(schema: Schema, link: str) -> str:
    """Describe one of several types, lists last. An integer type is omitted if there is a number type."""
    kinds = [one.get("type") for one in schema["anyOf"]]
    passed_over = ("null", "integer") if "number" in kinds else ("null",)
    # pydantic does not move the bounds of a union into its types
    bounds = {key: schema[key] for key in ("gt", "le") if key in schema}
    wanted = [{**one, **bounds} for one in schema["anyOf"] if one.get("type") not in passed_over]
    *first, last = (words(one, link) for one in sorted(wanted, key=lambda one: one.get("type") == "array"))
    return f"{', '.join(first)}{', ' if last == _BOOLEAN else ' or '}{last}" if first else last


def _named(title: str, schema: Schema) -> str:
    article = "an" if title[0] in "AEIO" else "a"
    example = f" such as `{schema['examples'][0]}`" if "examples" in schema else ""
    return f"{article} {title[0].lower()}{title[1:]}{example}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    """Describe the range of a number."""
    most = schema.get("maximum", schema.get("le"))
    if "minimum" in schema and most is not None:
        return f" from {schema['minimum']:,} to {most:,}"
    over = schema.get("exclusiveMinimum", schema.get("gt"))
    return "" if over is None or most is None else f" over {over:,}, up to {most:,}"


def _list(schema: Schema, link: str) -> str:
    many, each = _how_many(schema, "Items"), _of_any_length(schema["items"])
    if not many and words(each) == "text":
        return "a list of text"
    which = f", each {'with ' if '$ref' in each else ''}{words(each, link)}" if each else ""
    return f"a list{_of(many, 'elements')}{which}"


def _names(schema: Schema, link: str) -> str:
    """Describe a table whose keys the user chooses."""
    (each,) = schema.get("patternProperties", {"": schema.get("additionalProperties", True)}).values()
    what = "any value" if each is True else words(_of_any_length(each), link)
    return f"{_how_many(schema, 'Properties')} names, each with {what}".lstrip()


def _of(many: str, what: str) -> str:
    return f" of {many} {what}" if many else ""


def _how_many(schema: Schema, what: str) -> str:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if most is None:
        return "" if least is None else f"{least:,} or more"
    return f"{least:,} to {most:,}" if least else f"up to {most:,}"


def _of_any_length(schema: Schema) -> Schema:
    """Return the schema without the maximum length of each string, which readers do not need."""
    plain = {key: value for key, value in schema.items() if key != "maxLength"}
    return {**plain, "anyOf": [_of_any_length(one) for one in plain["anyOf"]]} if "anyOf" in plain else plain
