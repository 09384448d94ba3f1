"""Flow files on disk: a file, and the files of the flows inside it, found from where each of them lies."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from detent.errors import BadFlow, BadInput
from detent.flow import document
from detent.flow.check import load
from detent.flow.definition import Flow

ENDINGS = (".yaml", ".yml")
"""What a step's `flow:` ends with that names a file; any other names a template."""

STDIN = "-"
DEEPEST = 20


@dataclass(frozen=True)
class FlowFile:
    """A flow as it was read; `library` holds those of its steps, by what the steps call them."""

    flow: Flow
    library: Mapping[str, Flow] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)


def read_flow(file: str | Path) -> Flow:
    """The flow in one file, - being stdin; one that cannot be is refused with every problem and its line."""
    return load(_text(file), "stdin" if str(file) == STDIN else str(file))


def read(file: str | Path) -> FlowFile:
    """The flow in a file with all that are inside it, however deep."""
    library: dict[str, Flow] = {}
    folder = Path() if str(file) == STDIN else Path(file).parent
    return FlowFile(_gathered(file, folder, library, ()), library, folder.absolute())


def _gathered(file: str | Path, folder: Path, library: dict[str, Flow], around: tuple[Path, ...]) -> Flow:
    """The flow in a file; its steps call those inside it by their whole paths, so that each means one file."""
    text = _text(file)
    source = "stdin" if str(file) == STDIN else str(file)
    flow, here = load(text, source), Path(file).resolve()
    problems, steps = [], list(flow.steps)
    for place, step in enumerate(steps):
        if step.flow is None or not step.flow.endswith(ENDINGS):
            continue
        inner = folder / step.flow
        circle = [*around, here, inner.resolve()]
        wrong = _refusal(inner, circle)
        if wrong is not None:
            line = document.read(text, source).line(("steps", place, "flow"))
            problems.append((line, f"steps[{place + 1}].flow: {wrong}"))
            continue
        name = str(inner.resolve())
        if name not in library:
            library[name] = _gathered(inner, inner.parent, library, (*around, here))
        steps[place] = step.model_copy(update={"flow": name})
    if problems:
        raise BadFlow.of(source, problems)
    return flow.model_copy(update={"steps": steps})


def _refusal(inner: Path, circle: list[Path]) -> str | None:
    if circle[-1] in circle[:-1]:
        shown = " → ".join(path.name for path in circle[circle.index(circle[-1]) :])
        return f"these files are inside one another: {shown}"
    if len(circle) > DEEPEST:
        return f"flows are inside one another more than {DEEPEST} deep"
    return None if inner.is_file() else f"there is no file {inner}"


def _text(file: str | Path) -> str:
    try:
        return sys.stdin.read() if str(file) == STDIN else Path(file).read_text("utf-8")
    except OSError as error:
        raise BadInput(what=f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInput(what=f"{file} is no text in UTF-8") from None
