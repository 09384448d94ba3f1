"""The pages about flow files and settings: nothing is in a model and not on its page."""

from __future__ import annotations

import doctest
import re

import pytest

from keptwork.flows.definition import KINDS, ONLY_OF, VALUES, Flow, Step
from keptwork.flows.steps.kind import RUN_RETRIES, USUAL_RETRIES
from keptwork.flows.steps.tool import USUAL_TIMEOUT_US
from keptwork.flows.validation import MEANT_FOR
from keptwork.settings import Config
from keptwork.workers.step_runner import LONGEST_BACKOFF_US
from tools import file_reference
from tools.file_reference import FLOW_FILE, SETTINGS, Schema, Table, flow_page, kinds_of, settings_page, tables, words
from tools.variables import VARIABLES

PAGES = {FLOW_FILE: flow_page, SETTINGS: settings_page}
LEFT = "### What a step leaves to others"
TABLES = [(file, table) for file in PAGES for table in tables(file)]


def section(page: str, title: str) -> str:
    """What stands under a heading, with the headings below it."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def line_of(text: str, key: str) -> list[str]:
    """The cells of the one line about a key."""
    (line,) = re.findall(rf"^\| (`{key}` \| .*) \|$", text, re.MULTILINE)
    return str(line).split(" | ")


def test_the_tables_of_both_files_are_all_that_their_models_hold() -> None:
    held = {name for file in (Flow, Config) for name in file.model_json_schema()["$defs"]}
    assert {table.model.__name__ for _, table in TABLES} == {"Flow", "Config"} | held
    assert {"[tools.NAME.breaker]", "[models.prices.NAME]"} <= {table.title.strip("`") for _, table in TABLES}


@pytest.mark.parametrize(("file", "table"), TABLES, ids=lambda table: table.title)
def test_every_key_of_a_model_is_on_its_page(file: Table, table: Table) -> None:
    text = section(PAGES[file](), table.title).partition(LEFT)[0]
    for name, field in table.model.model_fields.items():
        cells = line_of(text, field.alias or name)
        assert all(cells)
        assert cells[-1] == (field.description or "").replace("|", "\\|")
        assert ("required" in cells) == field.is_required()


@pytest.mark.parametrize(("file", "table"), TABLES, ids=lambda table: table.title)
def test_no_key_lacks_a_description(file: Table, table: Table) -> None:
    silent = [name for name, field in table.model.model_fields.items() if not field.description]
    assert silent == []
    assert [
        name for name, field in table.model.model_fields.items() if not (field.description or "").endswith(".")
    ] == []


def test_a_key_of_steps_is_told_with_the_kinds_it_belongs_to() -> None:
    text = section(flow_page(), "`steps`")
    for name, kinds in {**ONLY_OF, **MEANT_FOR}.items():
        key = Step.model_fields[name].alias or name
        assert line_of(text, key)[1] == ", ".join(f"`{kind}`" for kind in kinds)
    assert kinds_of("description") == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_what_steps_leave_to_others_is_told_for_every_kind(kind: str) -> None:
    values = section(flow_page(), "`steps`").partition(LEFT)[2]
    told = line_of(values, kind)[1]
    assert all(f"`{value}`" in told for value in VALUES.get(kind, ("value",)))


def test_the_pages_speak_to_people_and_not_to_python() -> None:
    for page in (flow_page(), settings_page()):
        assert re.findall(r"\b(?:None|True|False|anyOf|pydantic|NoneType|dict\[|list\[)\b", page) == []
        assert "  " not in page


def test_every_link_within_a_page_leads_to_a_heading() -> None:
    for page in (flow_page(), settings_page()):
        headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
        anchors = {re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        links = re.findall(r"\(#([^)]*)\)", page)
        assert links
        assert set(links) <= anchors


def test_a_default_is_shown_as_people_write_it() -> None:
    tool, flow = section(settings_page(), "`[tools.NAME]`"), section(flow_page(), "The file")
    assert line_of(tool, "output")[2] == "`1MiB`"
    assert line_of(tool, "expected_exit_codes")[2] == "`[0]`"
    assert line_of(tool, "retry_on_failure")[2] == "`true`"
    assert line_of(flow, "abandon_after")[2] == "`24h`"
    assert line_of(flow, "timeout")[2] == "–"


def test_the_numbers_that_descriptions_name_are_those_of_the_code() -> None:
    said = {name: field.description or "" for name, field in Step.model_fields.items()}
    assert f"{RUN_RETRIES} times in a run, and elsewhere {USUAL_RETRIES} times" in said["retries"]
    assert f"up to {LONGEST_BACKOFF_US // 60_000_000}m" in said["backoff"]
    assert f"for a command {USUAL_TIMEOUT_US // 3_600_000_000}h" in said["timeout"]


def test_every_variable_is_on_the_page_of_settings() -> None:
    page = section(settings_page(), "Environment")
    for variable in VARIABLES:
        assert line_of(page, variable.name)[1] == variable.meaning


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "any value"),
        ({"type": "boolean"}, "`true` or `false`"),
        ({"enum": ["hold", "fail"]}, "one of `hold`, `fail`"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "a number over 0, up to 1"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}], "gt": 0, "le": 5000}, "a number over 0, up to 5,000"),
        ({"title": "Duration", "type": "string", "examples": ["30s", "1h"]}, "a duration such as `30s`"),
        ({"anyOf": [{"type": "string", "maxLength": 200}, {"type": "null"}]}, "text of up to 200 characters"),
        ({"type": "array", "items": {"type": "string", "maxLength": 9}}, "a list of text"),
        ({"type": "array", "items": {}, "minItems": 1}, "a list of 1 or more elements"),
        ({"anyOf": [{"type": "array", "items": {}}, {"type": "string"}]}, "text or a list"),
        (
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}},
            "a list, each text, a number, `true` or `false`",
        ),
        ({"type": "object", "additionalProperties": True, "maxProperties": 9}, "up to 9 names, each with any value"),
        ({"type": "array", "items": {"$ref": "#/$defs/Step"}}, "a list, each with the keys of THERE"),
    ],
)
def test_a_schema_in_words(schema: Schema, said: str) -> None:
    assert words(schema, "THERE") == said


def test_the_examples_of_the_words_hold() -> None:
    assert doctest.testmod(file_reference).failed == 0
