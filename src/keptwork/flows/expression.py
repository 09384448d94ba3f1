"""Evaluate references such as `${step.field}` in texts, and the conditions of `when:`.

A text that is a single reference has the value of the reference, of any type. In a longer text, values are inserted as
text. Values are data: they are never read as an expression or by a shell. `$${` is an escaped `${`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_PATH = re.compile(r"([A-Za-z_][\w-]*)((?:\.[A-Za-z_][\w-]*|\[\d+\])*)")
_PART = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]")
LONGEST_CONDITION = 2_000

Look = Callable[["Reference"], Any]
"""Returns the value of a reference. Raises LookupError if there is no value."""


class Absent(LookupError):
    """A reference without a value. Its text gives the reason."""


class NotYet(Absent):
    """A reference without a value now, which can have one later."""


class Wrong(ValueError):
    """An expression that is invalid or cannot be evaluated. Its text gives the reason."""


class Reference(NamedTuple):
    """A reference `${root.field[0]}`: the name of its root, and the path into the root's value."""

    root: str
    path: tuple[str | int, ...] = ()
    raw: bool = False
    """Whether program output is wanted exactly as it was printed."""

    def __str__(self) -> str:
        steps = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"${{{self.root}{steps}}}"


def reference(text: str) -> Reference:
    """Parse the text between the braces of a reference.

    >>> reference("test.json.items[0]")
    Reference(root='test', path=('json', 'items', 0), raw=False)
    """
    match = _PATH.fullmatch(text.strip())
    if match is None:
        raise Wrong(f"${{{text}}} is no reference; write one like ${{test.stdout}} or ${{inputs.name}}")
    path = tuple(name or int(place) for name, place in _PART.findall(match[2]))
    return Reference(match[1], path)


def references(value: Any) -> Iterator[Reference]:
    """Yield every reference in a value, at any depth."""
    for text in texts(value):
        closed = text[: _closed(text)]
        yield from (reference(match[1]) for match in _REFERENCE.finditer(closed) if match[1] is not None)


def unclosed(value: Any) -> Iterator[str]:
    """Yield the texts in a value, at any depth, that start like a reference but have no closing brace."""
    for text in texts(value):
        yield from (f"${{{begun}" for begun in text[_closed(text) :].replace("$${", "").split("${")[1:])


def texts(value: Any) -> list[str]:
    """Return the texts in a value, in order and at any depth, that might contain references. Most values have none."""
    found, left = [], [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            if "${" in part:
                found.append(part)
        elif isinstance(part, dict):
            left += reversed(part.values())
        elif isinstance(part, list):
            left += reversed(part)
    return found


def filled(value: Any, look: Look) -> Any:
    """Return the value with every reference replaced by its value.

    >>> filled({"n": "${a.n}", "text": "n is ${a.n}"}, lambda reference: 3)
    {'n': 3, 'text': 'n is 3'}
    """
    if isinstance(value, str):
        return _filled_text(value, look)
    if isinstance(value, dict):
        return {key: filled(part, look) for key, part in value.items()}
    return [filled(part, look) for part in value] if isinstance(value, list) else value


def _filled_text(text: str, look: Look) -> Any:
    alone = _REFERENCE.fullmatch(text)
    if alone is not None and alone[1] is not None:
        return _looked_up(reference(alone[1]), look)

    def written(match: re.Match[str]) -> str:
        return "${" if match[1] is None else as_text(_looked_up(reference(match[1]), look))

    end = _closed(text)
    return _REFERENCE.sub(written, text[:end]) + text[end:].replace("$${", "${")


def _closed(text: str) -> int:
    """Return where the part of a text ends that can contain references.

    Behind the last closing brace, no reference is closed. A search for the end of each one that starts there would take
    quadratic time.
    """
    return text.rfind("}") + 1


def marked(look: Look) -> Look:
    """Return a lookup for display, which returns a note in place of a missing value."""

    def found(wanted: Reference) -> Any:
        try:
            return look(wanted)
        except NotYet:
            return f"[not known yet: {wanted}]"
        except LookupError as error:
            return f"[no value: {wanted}{_why(error)}]"

    return found


def raw(look: Look) -> Look:
    """Return a lookup that returns program output exactly as it was printed."""
    return lambda wanted: look(wanted._replace(raw=True))


def as_text(value: Any) -> str:
    """Return a value for insertion into a longer text: a string as it is, any other value as JSON.

    >>> as_text("a b"), as_text(True), as_text([1, "x"])
    ('a b', 'true', '[1, "x"]')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _looked_up(wanted: Reference, look: Look) -> Any:
    try:
        return look(wanted)
    except LookupError as error:
        raise Wrong(f"there is no value for {wanted}{_why(error)}") from None


def _why(error: LookupError) -> str:
    return f": {error.args[0]}" if isinstance(error, Absent) else ""


# --- conditions


class Condition(NamedTuple):
    """A checked condition: its tree, and its references by their names in the tree."""

    text: str
    tree: ast.expr
    references: dict[str, Reference]


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_WORDS = {"true": True, "false": False, "null": None}


def condition(text: str) -> Condition:
    """Parse a condition over references, numbers, quoted strings, and lists: `==`, `<`, `in`, `and`, `or`, `not`.

    >>> met(condition("${test.exit_code} == 0 and not ${inputs.dry}"), lambda r: 0)
    True
    """
    if len(text) > LONGEST_CONDITION:
        raise Wrong(f"a condition of {len(text):,} characters is over the limit of {LONGEST_CONDITION:,}")
    found: dict[str, Reference] = {}

    def named(match: re.Match[str]) -> str:
        if match[1] is None:
            raise Wrong("$${ has no meaning in a condition")
        name = f"_{len(found)}_"
        found[name] = reference(match[1])
        return name

    plain = _REFERENCE.sub(named, text)
    try:
        tree = ast.parse(plain.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Wrong(f"{text!r} is no condition; write one like ${{test.exit_code}} == 0") from None
    for node in ast.walk(tree):
        _insist_plain(node, found)
    return Condition(text, tree, found)


def _insist_plain(node: ast.AST, found: dict[str, Reference]) -> None:
    if isinstance(node, ast.Name):
        if node.id not in found and node.id not in _WORDS:
            raise Wrong(f"{node.id!r} means nothing in a condition; text needs quotes, values come as ${{step.field}}")
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, str | int | float | bool | None):
            raise Wrong("only numbers, quoted texts, true, false and null stand for themselves in a condition")
    elif not isinstance(node, _PLAIN):
        raise Wrong("a condition compares values with ==, !=, <, <=, >, >=, in, and, or, not; nothing else")


_PLAIN = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.List, ast.Tuple, ast.Load,
    *_COMPARISONS,
)  # fmt: skip


def met(wanted: Condition, look: Look) -> bool:
    """Return whether a condition is true of the current values."""
    try:
        return bool(_value(wanted.tree, wanted, look))
    except TypeError as error:
        raise Wrong(f"{wanted.text!r} cannot be decided: {error}") from None


def _value(node: ast.expr, within: Condition, look: Look) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _WORDS[node.id] if node.id in _WORDS else _looked_up(within.references[node.id], look)
        case ast.List() | ast.Tuple():
            return [_value(part, within, look) for part in node.elts]
        case ast.UnaryOp():
            operand = _value(node.operand, within, look)
            return not operand if isinstance(node.op, ast.Not) else -operand
        case ast.BoolOp():
            parts = (bool(_value(part, within, look)) for part in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        case ast.Compare():
            return _compared(node, within, look)
    raise Wrong(f"{within.text!r} cannot be decided")


def _compared(node: ast.Compare, within: Condition, look: Look) -> bool:
    values = [_value(part, within, look) for part in (node.left, *node.comparators)]
    return all(_COMPARISONS[type(op)](a, b) for op, (a, b) in zip(node.ops, pairwise(values), strict=True))
