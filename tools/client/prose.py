"""Write docstrings and imports of generated modules, as the project's formatter would."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from tools.client.layout import INDENT, WIDTH

_FROM = {
    "collections.abc": ("AsyncGenerator", "Generator", "Mapping", "Sequence"),
    "typing": ("Any", "Literal", "NotRequired", "TypedDict"),
    "keptwork.client.unset": ("UNSET", "Unset", "given"),
    "keptwork.client.sync_wire": ("SyncWire",),
    "keptwork.client.wire": ("Wire", "segment"),
}

_DOCSTRINGS = re.compile(r'""".*?"""', re.DOTALL)


def docstring(text: str, indent: str = "", more: Iterable[str] = ()) -> str:
    """Return a folded docstring. Each line of `more` follows the first paragraph, folded too."""
    text, lines = " ".join(text.split()).replace("\\", "\\\\"), list(more)
    if text.endswith('"'):
        text += " "
    if not lines and len(f'{indent}"""{text}"""') <= WIDTH:
        return f'{indent}"""{text}"""'
    if not lines:
        return _folded(f'"""{text}"""', indent, indent)
    parts = [_folded(f'"""{text}', indent, indent), ""]
    parts += [_folded(line, indent, indent + INDENT) for line in lines]
    return "\n".join([*parts, f'{indent}"""'])


def _folded(text: str, first: str, others: str) -> str:
    return "\n".join(
        textwrap.wrap(
            text, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
        )
    )


def imported(text: str, *more: str) -> list[str]:
    """Return the import lines of what a text uses, sorted."""
    lines, code = ["from __future__ import annotations", ""], _DOCSTRINGS.sub("", text)
    ours = list(more)
    for module, names in _FROM.items():
        used = sorted((name for name in names if re.search(rf"(?<![\w.]){name}\b", code)), key=_as_sorted)
        if used:
            line = f"from {module} import {', '.join(used)}"
            (ours if module.startswith("keptwork") else lines).append(line)
    if lines[-1]:
        lines.append("")
    return [*lines, *sorted(ours), ""] if ours else lines


def _as_sorted(name: str) -> tuple[int, str]:
    """Return a sort key: constants, then classes, then functions, as the linter sorts imports."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name
