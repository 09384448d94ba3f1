"""From a document to a flow: everything wrong with it at once, each with its line and what was expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from detent.errors import BadFlow
from detent.flow import graph
from detent.flow.definition import INPUTS, ITEM, RESERVED, Flow, Input, Step
from detent.flow.document import Document, Path, Problem, read
from detent.flow.expression import Reference, Wrong

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "list": (list,),
    "object": (dict,),
}


def load(text: str, source: str) -> Flow:
    """The flow in a text; one that cannot be is `BadFlow`, which names every problem and its line."""
    document = read(text, source)
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
    """A flow that did not come from a file must not contradict itself either."""
    if problems := sorted(set(_contradictions(Document(flow.name, {}, {}), flow))):
        raise BadFlow.of(flow.name, problems)


def _misfits(document: Document, error: ValidationError) -> Iterator[Problem]:
    """What the model refuses, in our words. A value that could have been one of several things is said to be wrong
    once."""
    found: dict[Path, list[Any]] = {}
    for one in error.errors(include_url=False):
        missing = one["loc"][-1:] if one["type"] == "missing" else ()
        found.setdefault((*_inside(document, one["loc"]), *missing), []).append(one)
    for path, several in found.items():
        yield Problem(document.line(path), _said(path, several))


def _inside(document: Document, loc: tuple[str | int, ...]) -> Path:
    """The place in the document. Parts that are not in it are the model's names for alternatives."""
    data: Any = document.data
    path: list[str | int] = []
    for part in loc:
        if isinstance(data, dict) and part in data:
            data = data[str(part)]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def _said(path: Path, several: list[Any]) -> str:
    where, one = _named(path), several[0]
    if one["type"] == "extra_forbidden":
        return f"{where} is no key that is known here{_meant(path)}"
    if one["type"] == "missing":
        return f"{where} is missing"
    if one["type"] == "value_error":
        return f"{where}: {one['ctx']['error']}"
    expected = " or ".join(dict.fromkeys(_expected(each["msg"]) for each in several))
    return f"{where}: it should be {expected}; it is {_shown(one['input'])}"


def _expected(message: str) -> str:
    """From the model's words to what was expected alone."""
    text = message.removeprefix("Input should be ").removeprefix("a valid ").removeprefix("an instance of ")
    text = {"dictionary": "mapping"}.get(text, text)
    article = "an" if text[:1] in "aeiou" else "a"
    return f"{article} {text}" if text.isalpha() else text


def _named(path: Path) -> str:
    """Where, as people read it: steps[2].timeout."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


def _meant(path: Path) -> str:
    """A known key that looks like this one."""
    from difflib import get_close_matches

    model = Step if len(path) > 1 and path[0] == "steps" else Input if path[0] == INPUTS and len(path) > 2 else Flow
    names = [field.alias or name for name, field in model.model_fields.items()]
    close = get_close_matches(str(path[-1]), names, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- what only shows when the parts are looked at together


def _contradictions(document: Document, flow: Flow) -> Iterator[Problem]:
    yield from _ids(document, flow)
    yield from _unknown_dependencies(document, flow)
    yield from _run_rules(document, flow)
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
        line = document.line(("steps", place, "id"))
        if counts[step.id] > 1:
            yield Problem(line, f"{counts[step.id]} steps are called {step.id}; each needs an id of its own")
        if step.id in RESERVED:
            yield Problem(line, f"a step cannot be called {step.id}: ${{{step.id}}} means something else")


def _unknown_dependencies(document: Document, flow: Flow) -> Iterator[Problem]:
    known = {step.id for step in flow.steps}
    for place, step in enumerate(flow.steps):
        line = document.line(("steps", place, "depends_on"))
        for name in step.depends_on:
            if name not in known:
                yield Problem(line, f"{step.id} depends on {name}, and there is no such step")


def _run_rules(document: Document, flow: Flow) -> Iterator[Problem]:
    if flow.kind != "run":
        return
    for place, step in enumerate(flow.steps):
        for key in ("when", "depends_on", "for_each"):
            if key in step.model_fields_set:
                line = document.line(("steps", place, key))
                yield Problem(line, f"{key} has no meaning in a run, whose steps go in order; use kind: workstream")


def _defaults(document: Document, flow: Flow) -> Iterator[Problem]:
    for name, wanted in flow.inputs.items():
        line = document.line((INPUTS, name))
        if wanted.required and wanted.default is not None:
            yield Problem(line, f"the input {name} is required, so its default would never be used")
        if wanted.default is not None and (wrong := misfit(wanted, wanted.default)):
            yield Problem(line, f"the default of the input {name} {wrong}")


def misfit(wanted: Input, value: object) -> str | None:
    """Why a value cannot be given for an input; none if it can."""
    if (isinstance(value, bool) and wanted.type != "boolean") or not isinstance(value, _TYPES[wanted.type]):
        return f"should be of type {wanted.type}; it is {_shown(value)}"
    if wanted.choices is not None and value not in wanted.choices:
        return f"should be one of {', '.join(map(str, wanted.choices))}; it is {_shown(value)}"
    return None


def _references(document: Document, flow: Flow) -> Iterator[Problem]:
    dependencies = flow.dependencies
    for place, step in enumerate(flow.steps):
        line = document.line(("steps", place))
        try:
            found = list(step.references)
        except Wrong as error:
            yield Problem(line, f"{step.id}: {error}")
            continue
        earlier = graph.before(dependencies, step.id) if found else set()
        for reference in dict.fromkeys(found):
            if wrong := _dangling(flow, step, reference, earlier):
                yield Problem(line, f"{step.id} uses {reference}, {wrong}")


def _dangling(flow: Flow, step: Step, reference: Reference, earlier: set[str]) -> str | None:
    if reference.root == INPUTS:
        name = reference.path[0] if reference.path else None
        return None if name in flow.inputs else "and the flow has no such input"
    if reference.root == ITEM:
        return None if step.for_each else "which there is only in a step with for_each"
    if reference.root == "flow":
        return None if reference.path[:1] in (("id",), ("name",)) else "of which there are only id and name"
    if reference.root not in {one.id for one in flow.steps}:
        return "and there is no such step"
    if reference.root not in earlier:
        return f"but does not come after it; add depends_on: [{reference.root}]"
    return (
        None if reference.path else f"which is a whole step; say which of its values, as in ${{{reference.root}.text}}"
    )
