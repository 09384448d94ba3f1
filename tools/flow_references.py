"""Generate the page about references: each value of each kind of step, in each situation of its step.

Each cell is the result of the engine itself on a sample output. A test compares the page with real flows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from keptwork.core.lifecycles import WORKSTREAM_STEP
from keptwork.flows import compiled, expression
from keptwork.flows.definition import INPUTS, ITEM, KINDS, OF_EACH, VALUES, Flow
from keptwork.flows.expression import Look, Wrong, as_text
from keptwork.flows.plan import NoOutput, looking
from keptwork.flows.program_output import RAW, STREAMS
from keptwork.flows.transaction import no_output
from keptwork.flows.validation import bound
from tools.file_reference import markdown

STEP = "a"
FINISHED, SKIPPED, FAILED, NOT_RUN = "finished", "skipped", "failed", "not run yet"
CUT = {stream: f"{stream} truncated" for stream in STREAMS}
ALLOWED = "stdout truncated, `truncated: allow`"
SITUATIONS = (FINISHED, *CUT.values(), ALLOWED, SKIPPED, FAILED, NOT_RUN)
EACH = "for_each"
LONGEST = 40

PROGRAM: dict[str, Any] = {
    "stdout": '{"n": null}\n',
    "stderr": "one\n",
    "exit_code": 0,
    "json": {"n": None},
    "seconds": 0.25,
    "truncated": False,
    "stdout_truncated": False,
    "stderr_truncated": False,
}
CUT_OUTPUT: Mapping[str, dict[str, Any]] = {
    "stdout": {"stdout": "[0, 1 […] 9]", "json": None},
    "stderr": {"stderr": "on […] e"},
}
SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "tool": PROGRAM,
    "command": PROGRAM,
    "call": {"value": 3},
    "agent": {
        "text": '{"n": 3}',
        "json": {"n": 3},
        "model": "offline-haiku",
        "provider": "offline",
        "tier": "haiku",
        "skill": "testing",
        "cost_micros": 0,
        "cost_usd": 0.0,
        "input_tokens": 10,
        "output_tokens": 5,
    },
    "approval": {"approved_by": "ann", "comment": None},
    "crew": {"id": "crew_…", "shares": [{"value": 0}]},
    "flow": {"id": "ws_…", "steps": {"b": PROGRAM}},
    EACH: {"items": [PROGRAM, None], "count": 2},
}
"""A sample output of each kind of step, as it is stored."""

FURTHER = {
    **dict.fromkeys(("tool", "command"), ("stdout.raw", "stderr.raw", "json.n", "json.other")),
    "call": ("other",),
    "flow": ("steps.b.stdout", "steps.skipped", "steps.skipped.stdout"),
    EACH: ("items[0].stdout", "items[1]", "items[1].stdout", "items[2]"),
}
"""Longer paths into values, and paths that lead nowhere."""


class Row(NamedTuple):
    """A reference to a kind of step, and its result in each situation."""

    kind: str
    reference: str
    cells: tuple[str, ...]


def rows() -> Iterator[Row]:
    """Yield every reference with its cells, in the order of `SITUATIONS`."""
    for kind in (*KINDS, EACH):
        for value in _values(kind):
            reference = f"${{{STEP}.{value}}}"
            yield Row(kind, reference, tuple(cell(reference, look) for look in _looks(kind)))


def _values(kind: str) -> list[str]:
    known = OF_EACH if kind == EACH else VALUES.get(kind, SAMPLES[kind])
    return sorted((*known, *FURTHER.get(kind, ())))


def _looks(kind: str) -> Iterator[Look]:
    sample = SAMPLES[kind]
    yield looking({STEP: sample})
    yield from (looking({STEP: truncated(sample, stream)}) for stream in STREAMS)
    yield looking({STEP: truncated(sample, STREAMS[0])}, cut=True)
    yield from (looking({STEP: output}) for output in absent().values())


def truncated(output: Any, stream: str) -> Any:
    """Return an output in which this stream of each program was truncated."""
    if output == PROGRAM:
        return {**output, **CUT_OUTPUT[stream], "truncated": True, f"{stream}_truncated": True}
    if isinstance(output, Mapping):
        return {key: truncated(part, stream) for key, part in output.items()}
    return [truncated(part, stream) for part in output] if isinstance(output, list) else output


def absent() -> dict[str, NoOutput]:
    """Return the placeholders for the output of a step that has none, by situation."""
    states = {
        SKIPPED: WORKSTREAM_STEP.move("skip").target,
        FAILED: WORKSTREAM_STEP.move("failure").target,
        NOT_RUN: WORKSTREAM_STEP.initial,
    }
    return {name: no_output(compiled.KINDS["workstream"], state.name) for name, state in states.items()}


def cell(text: str, look: Look) -> str:
    """Return the result of a text, as the page shows it."""
    try:
        return shown(expression.filled(text, look))
    except Wrong as error:
        return refused(str(error))


def shown(value: Any) -> str:
    """Return a value for a cell, shortened if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if len(text) <= LONGEST else f"`{text[:LONGEST]}…`"


def refused(error: str) -> str:
    """Return the reason in an error for a cell, without the remedy."""
    reason = error.partition("}")[2].removeprefix(": ").partition(";")[0]
    return f"error: {reason or 'no value'}"


# --- the page


def page() -> str:
    """Return the page in Markdown."""
    return f"""# What references give

What `${{{STEP}.VALUE}}` gives in each situation of the step `{STEP}`. An error fails the step that uses the reference:
`there is no value for ${{{STEP}.VALUE}}`, with the reason below. [Run flows](../how-to/flows.md#values) explains the
values.

An approval shows the steps that it releases. It marks the value of a step that has not run yet as
`{_in_approval(NOT_RUN)}`. In place of any other error it shows the reason, for instance
`{_in_approval(SKIPPED)}`.

The programs in the samples printed {_printed("stdout")} to stdout and {_printed("stderr")} to stderr.

{"".join(_section(title, kind) for title, kind in _TITLES.items())}## Newlines

A reference to `stdout` or `stderr` loses one newline at its end, wherever the program's output is: in a step, in an
item of a list, or in a step of a flow inside. In `stdin` it does not.

{markdown(("printed", "reference", "in `stdin`", f"`.{RAW}`"), _newlines())}
## JSON

{markdown(("printed to stdout", "`json`"), _documents())}
## Inputs, items and the flow

{markdown(("reference", "where", "gives"), _others())}"""


_TITLES = {
    "Programs: `tool` and `command`": "command",
    **{f"`{kind}`": kind for kind in KINDS if kind not in ("tool", "command")},
    "Any step with `for_each`": EACH,
}


def _section(title: str, kind: str) -> str:
    """Return the table of a kind of step, without situations that make no difference to it."""
    found = [row for row in rows() if row.kind == kind]
    columns = list(zip(*(row.cells for row in found), strict=True))
    kept = [n for n, column in enumerate(columns) if n == 0 or column != columns[0]]
    lines = ((f"`{row.reference}`", *(row.cells[n] for n in kept)) for row in found)
    return f"## {title}\n\n{markdown(('reference', *(SITUATIONS[n] for n in kept)), lines)}\n"


def _printed(stream: str) -> str:
    return f"`{json.dumps(PROGRAM[stream])}`"


def _in_approval(situation: str) -> str:
    look = expression.marked(looking({STEP: absent()[situation]}))
    return as_text(expression.filled(f"${{{STEP}.VALUE}}", look))


def _newlines() -> Iterator[tuple[str, ...]]:
    for text in ("go", "go\n", "go\r\n", "go\n\n", ""):
        look = looking({STEP: {**PROGRAM, "stdout": text}})
        wanted = f"${{{STEP}.stdout}}"
        raw = cell(f"${{{STEP}.stdout.{RAW}}}", look)
        yield f"`{json.dumps(text)}`", cell(wanted, look), cell(wanted, expression.raw(look)), raw


def _documents() -> Iterator[tuple[str, ...]]:
    for text, value in (('{"n": 1}\n', {"n": 1}), ("null\n", None), ("ready\n", None), ("", None)):
        look = looking({STEP: {**PROGRAM, "stdout": text, "json": value}})
        yield f"`{json.dumps(text)}`", cell(f"${{{STEP}.json}}", look)


def _others() -> Iterator[tuple[str, ...]]:
    wanted: dict[str, dict[str, Any]] = {"x": {}, "y": {"default": "usual"}, "z": {"default": None}}
    step = {"id": STEP, "command": ["true"]}
    flow = Flow.model_validate({"name": "f", INPUTS: wanted, "steps": [step]})
    known = looking({INPUTS: bound(flow, {}), "flow": {"id": "ws_…", "name": "f"}}, None)
    given = looking({INPUTS: bound(flow, {"x": "given"})})
    x = f"${{{INPUTS}.x}}"
    yield f"`{x}`", "the input was given", cell(x, given)
    yield f"`{x}`", "neither given nor has a default", cell(x, known)
    yield f"`${{{INPUTS}.y}}`", "has a default", cell(f"${{{INPUTS}.y}}", known)
    yield f"`${{{INPUTS}.z}}`", "has `default: null`", cell(f"${{{INPUTS}.z}}", known)
    yield f"`${{{ITEM}}}`", "the item is null", cell(f"${{{ITEM}}}", known)
    yield f"`${{{ITEM}}}`", "outside of a list", cell(f"${{{ITEM}}}", given)
    yield "`${flow.name}`", "always", cell("${flow.name}", known)
