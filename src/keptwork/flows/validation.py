"""Turn a document into a flow, or report all of its problems, each with its line and what was expected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from keptwork.core.durations import span_us
from keptwork.core.validation import Path, misfits, shown
from keptwork.errors import BadFlow, BadInput
from keptwork.flows import document, graph, program_output
from keptwork.flows.definition import INPUTS, ITEM, RESERVED, Flow, Input, Step, variable
from keptwork.flows.document import Document, Problem, read
from keptwork.flows.expression import Reference, Wrong, references

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "list": (list,),
    "object": (dict,),
}


def load(text: str, source: str) -> Flow:
    """Return the flow in a text. Raise `BadFlow`, with every problem and its line, if it is invalid."""
    return checked(read(text, source))


def checked(document: Document) -> Flow:
    """Return the flow that a document describes. Raise `BadFlow` if it is invalid."""
    source = document.source
    if not isinstance(document.data, dict):
        raise BadFlow.of(source, [Problem(1, "a flow is a mapping with a name and steps")])
    try:
        flow = Flow.model_validate(document.data)
    except ValidationError as error:
        raise BadFlow.of(source, sorted(set(_misfits(document, error)))) from None
    if problems := sorted(set(_contradictions(document, flow))):
        raise BadFlow.of(source, problems)
    return flow


def insist(flow: Flow) -> None:
    """Raise `BadFlow` if a flow that did not come from a file contradicts itself."""
    if problems := sorted(set(_contradictions(Document(flow.name, {}, {}), flow))):
        raise BadFlow.of(flow.name, problems)


def _misfits(document: Document, error: ValidationError) -> Iterator[Problem]:
    for path, what in misfits(document.data, error, _known):
        yield Problem(document.line(path), what)


def _known(path: Path) -> Iterable[str]:
    """Return the keys that are allowed in this place."""
    model = Step if len(path) > 1 and path[0] == "steps" else Input if path[0] == INPUTS and len(path) > 2 else Flow
    return (field.alias or name for name, field in model.model_fields.items())


# --- problems that involve several parts


def _contradictions(document: Document, flow: Flow) -> Iterator[Problem]:
    yield from _ids(document, flow)
    yield from _unknown_dependencies(document, flow)
    yield from _run_rules(document, flow)
    yield from _settings(document, flow)
    yield from _kind_rules(document, flow)
    yield from _inline_rules(document, flow)
    yield from _defaults(document, flow)
    circle = graph.cycle(flow.dependencies)
    if circle is not None:
        place = next(n for n, step in enumerate(flow.steps) if step.id == circle[0])
        yield Problem(
            document.line(("steps", place, "depends_on")), f"these steps wait for one another: {' → '.join(circle)}"
        )
    else:
        yield from _references(document, flow)


def _ids(document: Document, flow: Flow) -> Iterator[Problem]:
    counts = Counter(step.id for step in flow.steps)
    for place, step in enumerate(flow.steps):
        path = ("steps", place, "id")
        if counts[step.id] > 1:
            what = f"{counts[step.id]} steps are called {step.id}; each needs an id of its own"
            yield Problem(document.line(path), what)
        if step.id in RESERVED:
            what = f"a step cannot be called {step.id}: ${{{step.id}}} means something else"
            yield Problem(document.line(path), what)


def _unknown_dependencies(document: Document, flow: Flow) -> Iterator[Problem]:
    known = {step.id for step in flow.steps}
    for place, step in enumerate(flow.steps):
        for name in step.depends_on:
            if name not in known:
                line = document.line(("steps", place, "depends_on"))
                yield Problem(line, f"{step.id} depends on {name}, and there is no such step")


NOT_IN_RUNS = ("when", "depends_on", "for_each")
"""Keys that are not allowed in a run, because its steps run in strict order."""


def _run_rules(document: Document, flow: Flow) -> Iterator[Problem]:
    if flow.kind != "run":
        return
    for place, step in enumerate(flow.steps):
        for key in NOT_IN_RUNS:
            if key in step.model_fields_set:
                line = document.line(("steps", place, key))
                yield Problem(line, f"{key} has no meaning in a run, whose steps go in order; use kind: workstream")


def _settings(document: Document, flow: Flow) -> Iterator[Problem]:
    """Yield settings of steps that no program could run with."""
    for place, step in enumerate(flow.steps):
        if step.timeout is not None and (wrong := no_time(step.timeout)):
            yield Problem(document.line(("steps", place, "timeout")), f"steps[{place + 1}].timeout: {wrong}")
        for name in step.env:
            if wrong := _no_variable(name):
                yield Problem(document.line(("steps", place, "env", name)), f"steps[{place + 1}].env: {wrong}")


def no_time(span: str) -> str | None:
    """Return the problem with a timeout of zero, or None."""
    return None if span_us(span) else f"{span!r} leaves no time at all; write a duration like 30s, 10m, 1h30m or 7d"


def _no_variable(name: str) -> str | None:
    try:
        variable(name)
    except ValueError as error:
        return str(error)
    return None


_ELSEWHERE = {
    ("approval", "timeout"): "approval: {expires: …} says how long it waits",
    ("flow", "timeout"): "the flow itself has a timeout",
    ("flow", "retries"): "the flow itself has max_retries",
    ("flow", "budget_usd"): "write it at the top of the outermost flow, whose budget holds for all flows inside it",
}
_OF_JOBS = ("tool", "command", "call", "agent")
MEANT_FOR = {
    "timeout": _OF_JOBS,
    "backoff": _OF_JOBS,
    "retries": (*_OF_JOBS, "crew"),
    "queue": (*_OF_JOBS, "crew"),
    "budget_usd": ("agent",),
}
"""The kinds of steps that allow a key. Other keys are allowed in all kinds."""


def _kind_rules(document: Document, flow: Flow) -> Iterator[Problem]:
    """Yield keys that a step of this kind would ignore.

    These rules are not part of the model, so that stored definitions stay valid.
    """
    for place, step in enumerate(flow.steps):
        for key in _said(step, MEANT_FOR):
            if step.kind not in MEANT_FOR[key]:
                hint = _ELSEWHERE.get((step.kind, key))
                line = document.line(("steps", place, key))
                yield Problem(line, f"{key} has no meaning in a step of kind {step.kind}{f'; {hint}' if hint else ''}")


NOT_INLINE = {
    "for_each": "an element of a list is a step of its own",
    "timeout": "a function that takes longer than a second gets a job of its own anyway",
    "queue": "it goes with the other steps of its flow",
}
"""Keys that are not allowed in a step with `inline: true`, with the reasons."""


def _inline_rules(document: Document, flow: Flow) -> Iterator[Problem]:
    """Yield keys that an inline step would ignore, because it has no job of its own."""
    for place, step in enumerate(flow.steps):
        if step.inline:
            for key in _said(step, NOT_INLINE):
                line = document.line(("steps", place, key))
                yield Problem(line, f"{key} has no meaning in a step with inline: true; {NOT_INLINE[key]}")


def _said(step: Step, keys: Mapping[str, object]) -> Iterable[str]:
    """Return which of these keys a step sets. Most steps set none."""
    said = step.model_fields_set
    return () if said.isdisjoint(keys) else sorted(said & keys.keys())


def _defaults(document: Document, flow: Flow) -> Iterator[Problem]:
    for name, wanted in flow.inputs.items():
        line = document.line((INPUTS, name))
        if wanted.required and wanted.default is not None:
            yield Problem(line, f"the input {name} is required, so its default would never be used")
        if wanted.default is not None and (wrong := misfit(wanted, wanted.default)):
            yield Problem(line, f"the default of the input {name} {wrong}")


def misfit(wanted: Input, value: object) -> str | None:
    """Return why an input cannot have this value, or None.

    Null is allowed if the input declares `default: null`.
    """
    if value is None and wanted.default is None and "default" in wanted.model_fields_set:
        return None
    if (isinstance(value, bool) and wanted.type != "boolean") or not isinstance(value, _TYPES[wanted.type]):
        how = "; write true or false" if wanted.type == "boolean" else ""
        return f"should be of type {wanted.type}; it is {shown(value)}{how}"
    if wanted.choices is not None and value not in wanted.choices:
        return f"should be one of {', '.join(map(str, wanted.choices))}; it is {shown(value)}"
    return None if _is_json(value) else f"should be something that JSON can hold; it is {shown(value)}"


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _references(document: Document, flow: Flow) -> Iterator[Problem]:
    # Created at the first reference: it is slow for thousands of steps, and most have no references.
    earlier = cache(lambda: graph.Before(flow.dependencies))
    known = {step.id: step for step in flow.steps}
    for place, step in enumerate(flow.steps):
        if step.refers:
            for wrong in _wrong_in(flow, step, known, earlier):
                yield Problem(document.line(("steps", place)), wrong)


def _wrong_in(flow: Flow, step: Step, known: Mapping[str, Step], earlier: Callable[[], graph.Before]) -> Iterator[str]:
    try:
        found = step.references
    except Wrong as error:
        yield f"{step.id}: {error}"
        return
    for reference in dict.fromkeys(found):
        if wrong := _dangling(flow, step, reference, known, earlier):
            yield f"{step.id} uses {reference}, {wrong}"
    if step.for_each is not None and any(one.root == ITEM for one in references(step.for_each.items)):
        yield f"{step.id} uses ${{{ITEM}}} in the items of for_each, where no item is known yet; name the list itself"
    for begun in step.unclosed:
        yield f"{step.id}: {shown(begun)} has no closing brace; where ${{ is meant, write $${{"


def ill_given(step: Step, inner: Flow) -> Iterator[tuple[Path, str]]:
    """Yield the problems, with their places, in the inputs that a step passes to its flow, as far as they are known."""
    for name, value in step.with_.items():
        if name not in inner.inputs:
            known = ", ".join(inner.inputs) or "none"
            yield (
                ("with", name),
                f"{step.id} gives {name}, and the flow {inner.name} has no such input; it has: {known}",
            )
        elif not any(references(value)) and (wrong := misfit(inner.inputs[name], value)):
            yield ("with", name), f"{step.id} gives {name}, which {wrong}"
    for name, wanted in inner.inputs.items():
        if wanted.required and name not in step.with_:
            yield (), f"{step.id} gives no {name}, which the flow {inner.name} needs"


def _dangling(
    flow: Flow, step: Step, reference: Reference, known: Mapping[str, Step], earlier: Callable[[], graph.Before]
) -> str | None:
    if reference.root == INPUTS:
        name = reference.path[0] if reference.path else None
        return None if name in flow.inputs else "and the flow has no such input"
    if reference.root == ITEM:
        return None if step.for_each else "which there is only in a step with for_each"
    if reference.root == "flow":
        return None if reference.path[:1] in (("id",), ("name",)) else "of which there are only id and name"
    if reference.root not in known:
        return "and there is no such step"
    if not earlier().comes(reference.root, step.id):
        return f"but does not come after it; add depends_on: [{reference.root}]"
    if not reference.path:
        return f"which is a whole step; say which of its values, as in ${{{reference.root}.text}}"
    return _unknown_value(known[reference.root], reference.path[0]) or _inside_text(known[reference.root], reference)


def _inside_text(step: Step, reference: Reference) -> str | None:
    """Return the problem with a path into the output of a program, which is text, or None."""
    stream, rest = reference.path[0], reference.path[1:]
    if (
        step.kind not in ("tool", "command")
        or stream not in program_output.STREAMS
        or rest in ((), (program_output.RAW,))
    ):
        return None
    whole = f"${{{step.id}.{stream}"
    ways = f"{whole}}}, {whole}.{program_output.RAW}}} or, where stdout is JSON, ${{{step.id}.json}}"
    return f"and {stream} is text; write {ways}"


def _unknown_value(step: Step, name: str | int) -> str | None:
    """Return the problem with a value that a step never has, or None."""
    if step.values is None or name in step.values:
        return None
    whose = "a step with for_each" if step.for_each else f"a step of kind {step.kind}"
    return f"and {whose} has no such value; it has: {', '.join(sorted(step.values))}"


# Check the inputs that a flow is started with against its definition.


def bound(flow: Flow, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every input: the given value or the default. Raise `BadInput` for an invalid value.

    An input without a value and a default is left out.

    >>> flow = Flow.model_validate({"name": "f", "inputs": {"n": {"type": "integer", "default": 3}},
    ...     "steps": [{"id": "a", "command": ["true"]}]})
    >>> bound(flow, {})
    {'n': 3}
    """
    unknown = sorted(set(given) - set(flow.inputs))
    if unknown:
        known = ", ".join(flow.inputs) or "none"
        raise BadInput(what=f"the flow {flow.name} has no input {', '.join(unknown)}; it has: {known}")
    for name, wanted in flow.inputs.items():
        _insist(flow, name, wanted, given)
    usual = {name: wanted.default for name, wanted in flow.inputs.items() if "default" in wanted.model_fields_set}
    values = {**usual, **given}
    return {name: values[name] for name in flow.inputs if name in values}


def _insist(flow: Flow, name: str, wanted: Input, given: Mapping[str, Any]) -> None:
    if name not in given:
        if wanted.required:
            raise BadInput(what=f"the flow {flow.name} needs the input {name}: give it with -i {name}=VALUE")
    elif wrong := misfit(wanted, given[name]):
        raise BadInput(what=f"the input {name} of the flow {flow.name} {wrong}")


def from_text(wanted: Input | None, text: str) -> Any:
    """Return a value from a command line, with the type that the flow expects.

    Words are read as in a flow file, lists and objects as JSON. A text that cannot be read that way stays a string.

    >>> from_text(Input(type="integer"), "3"), from_text(None, "3"), from_text(Input(type="list"), '["no"]')
    (3, '3', ['no'])
    """
    if wanted is None or wanted.type == "string":
        return text
    try:
        return json.loads(text) if wanted.type in ("list", "object") else document.scalar(text)
    except ValueError:
        return text
