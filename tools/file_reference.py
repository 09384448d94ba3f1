"""Generate reference pages for flow files and `keptwork.toml`, with a table of all keys of their models.

The type of a key comes from the model's JSON Schema (described by file_reference.py), and its default and
meaning from
its field. The kinds of steps that a key belongs to come from the rules that check flows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from keptwork.core.durations import size_text
from keptwork.flows.definition import KINDS, OF_EACH, ONLY_OF, VALUES, Flow, Step
from keptwork.flows.validation import MEANT_FOR, NOT_IN_RUNS, NOT_INLINE
from keptwork.process.tool import PASSED
from keptwork.settings import Config
from tools.variables import VARIABLES, Whose

# Describe the values that a JSON Schema allows, in the words of the reference pages.
#
# A type with a title is called by its title. Whether a value can be omitted follows from its default, which is
# described elsewhere.


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


COLUMNS = ("key", "what it is", "default", "what it means")
NONE = "–"


# --- the tables of a file -----------------------------------------------------------------------------------


class Table(NamedTuple):
    """A part of a file with its own keys: its model, its place, and how its title is written.

    NAME in a place stands for names that the user chooses.
    """

    model: type[BaseModel]
    place: str = ""
    form: str = "{}"

    @property
    def title(self) -> str:
        return f"`{self.form.format(self.place)}`" if self.place else "The file"

    @property
    def about(self) -> str:
        return " ".join((self.model.__doc__ or "").split())

    @property
    def link(self) -> str:
        """A link to the heading, with the anchor that GitHub generates."""
        return f"[{self.title}](#{re.sub(r'[^a-z0-9_ -]', '', self.title.lower()).replace(' ', '-')})"

    @property
    def keys(self) -> dict[str, FieldInfo]:
        """The fields by the keys that users write."""
        return {field.alias or name: field for name, field in self.model.model_fields.items()}

    def below(self, key: str) -> Table | None:
        """Return the table that a key leads to, or None."""
        annotation = self.keys[key].annotation
        model = _model_in(annotation)
        place = ".".join(filter(None, (self.place, key, "NAME" if get_origin(annotation) is dict else "")))
        return None if model is None else Table(model, place, self.form)


def tables(first: Table) -> Iterator[Table]:
    """Yield a table and all nested tables."""
    yield first
    for inner in filter(None, map(first.below, first.keys)):
        yield from tables(inner)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


# --- a table in Markdown ------------------------------------------------------------------------------------


class _OwnTitles(GenerateJsonSchema):
    """Uses the titles of types, and generates no titles from the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def cells(table: Table) -> dict[str, tuple[str, ...]]:
    """Return the cells of each key, by column."""
    schemas = table.model.model_json_schema(schema_generator=_OwnTitles)["properties"]
    return {key: _cells(key, field, schemas[key], table.below(key)) for key, field in table.keys.items()}


def _cells(key: str, field: FieldInfo, schema: Schema, inner: Table | None) -> tuple[str, ...]:
    kind = words(schema, "" if inner is None else inner.link)
    return f"`{key}`", kind, _default(field, schema), field.description or ""


def markdown(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    head = list(columns)
    lines = ("| {} |\n".format(" | ".join(cell.replace("|", "\\|") for cell in line)) for line in (head, *rows))
    return next(lines) + "|---" * len(head) + "|\n" + "".join(lines)


def _default(field: FieldInfo, schema: Schema) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", [], {}) or isinstance(value, BaseModel):
        return NONE
    if schema.get("title") == "Amount of memory":
        value = size_text(value).replace(" ", "")
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


# --- flow files ---------------------------------------------------------------------------------------------

FLOW_FILE = Table(Flow)
STEPS = next(table for table in tables(FLOW_FILE) if table.model is Step)


def flow_page() -> str:
    """Return the page with every key of a flow file and the values that steps provide."""
    intro = (
        "Every key that a flow file may have; any other is refused. How to write one is told in\n"
        "[Run flows](../how-to/flows.md). `keptwork flows check FILE` names every problem of a file with its line;\n"
        "`keptwork flows schema` prints what is below as a JSON Schema, for editors and programs.\n"
    )
    parts = (_steps() if table == STEPS else _section(table) for table in tables(FLOW_FILE))
    return f"# Flow files\n\n{intro}\n" + "\n".join(parts)


def _section(table: Table) -> str:
    about = f"{table.about}\n\n" if table.place else ""
    return f"## {table.title}\n\n{about}{markdown(COLUMNS, cells(table).values())}"


def kinds_of(key: str) -> tuple[str, ...]:
    """Return the kinds of steps that a key belongs to."""
    names = {field.alias or name: name for name, field in Step.model_fields.items()}
    if key in KINDS:
        return (key,)
    return MEANT_FOR.get(key) or ONLY_OF.get(names[key]) or KINDS


def _steps() -> str:
    found = cells(STEPS)
    every = [line for key, line in found.items() if kinds_of(key) == KINDS]
    some = [key for key in found if key not in KINDS and kinds_of(key) != KINDS]
    some.sort(key=lambda key: [KINDS.index(kind) for kind in kinds_of(key)])
    only = [(found[key][0], _code(kinds_of(key)), *found[key][1:]) for key in some]
    return (
        f"## {STEPS.title}\n\n{STEPS.about}\n\n{markdown(COLUMNS, (found[kind] for kind in KINDS))}\n"
        f"### Every step\n\n{markdown(COLUMNS, every)}\n{_order()}\n"
        f"### Steps of some kinds\n\n{markdown((COLUMNS[0], 'in a step of kind', *COLUMNS[1:]), only)}\n{_inline()}\n"
        f"### What a step leaves to others\n\n{_values()}"
    )


def _order() -> str:
    return f"In a flow of `kind: run` the steps go in order: {_code(NOT_IN_RUNS)} are refused there.\n"


def _inline() -> str:
    why = "".join(f"- `{key}`: {reason}.\n" for key, reason in NOT_INLINE.items())
    return f"With `inline: true` these are refused:\n\n{why}"


def _values() -> str:
    """Return the table of the values that references to steps can use."""
    returned = "the keys of the dict that the function returned; anything else is `value`"
    of_kinds = [(f"`{kind}`", _code(sorted(VALUES[kind])) if kind in VALUES else returned) for kind in KINDS]
    each = ("any with `for_each`", _code(sorted(OF_EACH)))
    intro = (
        "A step that comes later uses them as `${ID.VALUE}`. `json` is there where stdout is JSON, or where an\n"
        "agent was asked for it.\n"
    )
    return f"{intro}\n{markdown(('kind', 'values'), [*of_kinds, each])}"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- settings -----------------------------------------------------------------------------------------------

SETTINGS = Table(Config, form="[{}]")
_VARIABLES: dict[Whose, tuple[str, str]] = {
    "ours": ("Keptwork's own", ""),
    "others": (
        "Of others",
        "OpenTelemetry's SDK, the driver of PostgreSQL and the SDKs of providers know further ones of their own.\n\n",
    ),
    "told": (
        "What a tool is told",
        f"A tool finds these, beside {_code(PASSED)} of the worker,\n"
        "the names that its profile lists under `env`, and what the step has under `env`.\n\n",
    ),
    "inside": ("Between processes", "A supervisor tells its workers; they are not for you to set.\n\n"),
}


def settings_page() -> str:
    """Return the page with every key of keptwork.toml and every environment variable."""
    intro = (
        "`keptwork.toml` holds the settings that all flows of a project share. Default: `--config FILE`, then\n"
        "`KEPTWORK_CONFIG`, then `./keptwork.toml` if it exists. Unknown keys are refused. Quote text, as\n"
        'TOML requires: `timeout = "5m"`. How to use them: [Run tools](../how-to/tools.md),\n'
        "[Choose models, prices and budgets](../how-to/agents.md), [Serve the HTTP API](../how-to/http.md).\n"
    )
    parts = "\n".join(map(_section, tables(SETTINGS)))
    return f"# Settings\n\n{intro}\n{parts}\n## Environment\n\n" + "\n".join(map(_variables, _VARIABLES))


def _variables(whose: Whose) -> str:
    title, intro = _VARIABLES[whose]
    found = ((f"`{one.name}`", one.meaning) for one in VARIABLES if one.whose == whose)
    return f"### {title}\n\n{intro}{markdown(('variable', 'what it means'), found)}"
