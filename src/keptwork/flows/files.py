"""Read a flow file and the files of its nested flows, whose paths are relative to the file that names them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keptwork.errors import BadFlow, BadInput
from keptwork.flows import document
from keptwork.flows.definition import Flow
from keptwork.flows.document import Document
from keptwork.flows.validation import checked, ill_given

ENDINGS = (".yaml", ".yml")
"""Endings of a step's `flow:` that name a file. Any other text names a template."""

STDIN = "-"
DEEPEST = 20


@dataclass(frozen=True)
class FlowFile:
    """A flow that was read. `library` has its nested flows by the names that its steps use."""

    flow: Flow
    library: Mapping[str, Flow] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)


def read_flow(file: str | Path) -> Flow:
    """Return the flow in one file, or in stdin for -. Raise `BadFlow` with every problem and its line."""
    return checked(_document(file))


def read(file: str | Path) -> FlowFile:
    """Return the flow in a file with all nested flows, at any depth."""
    folder = Path() if str(file) == STDIN else Path(file).parent
    library: dict[str, Flow] = {}
    return FlowFile(_gathered(_document(file), folder, library, (Path(file).resolve(),)), library, folder.absolute())


def described(data: Mapping[str, Any]) -> FlowFile:
    """Return a flow described as a dict, with all nested flows. Their paths are relative to the working directory."""
    library: dict[str, Flow] = {}
    return FlowFile(_gathered(Document("flow", dict(data), {}), Path(), library, ()), library, Path.cwd())


def _gathered(document: Document, folder: Path, library: dict[str, Flow], around: tuple[Path, ...]) -> Flow:
    """Return the flow in a document. Its steps name nested flows by absolute path, so that each name means one file."""
    flow = checked(document)
    problems, steps = [], list(flow.steps)
    for place, step in enumerate(steps):
        if step.flow is None or not step.flow.endswith(ENDINGS):
            continue
        inner = folder / step.flow
        circle = (*around, inner.resolve())
        wrong = _refusal(inner, circle)
        if wrong is not None:
            problems.append((document.line(("steps", place, "flow")), f"steps[{place + 1}].flow: {wrong}"))
            continue
        if str(inner.resolve()) not in library:
            library[str(inner.resolve())] = _gathered(_document(inner), inner.parent, library, circle)
        for where, what in ill_given(step, library[str(inner.resolve())]):
            problems.append((document.line(("steps", place, *where)), what))
        steps[place] = step.model_copy(update={"flow": str(inner.resolve())})
    if problems:
        raise BadFlow.of(document.source, problems)
    return flow.model_copy(update={"steps": steps})


def _refusal(inner: Path, circle: tuple[Path, ...]) -> str | None:
    if circle[-1] in circle[:-1]:
        shown = " → ".join(path.name for path in circle[circle.index(circle[-1]) :])
        return f"these files are inside one another: {shown}"
    if len(circle) > DEEPEST:
        return f"flows are inside one another more than {DEEPEST} deep"
    return None if inner.is_file() else f"there is no file {inner}"


def _document(file: str | Path) -> Document:
    return document.read(_text(file), "stdin" if str(file) == STDIN else str(file))


def _text(file: str | Path) -> str:
    try:
        return sys.stdin.read() if str(file) == STDIN else Path(file).read_text("utf-8")
    except OSError as error:
        raise BadInput(what=f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInput(what=f"{file} is no text in UTF-8") from None
