"""What a flow file says about values: `${step.field}` in texts, and the conditions of `when:`.

A text that is one reference alone has the value it refers to, of whatever type; in a longer text values are written
out. Values are data: nothing of them is ever read as an expression or by a shell. `$${` stands for `${`.
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
"""Gives the value of a reference; raises LookupError if there is none."""


class Absent(LookupError):
    """There is no value, and its text says why."""


class NotYet(Absent):
    """There is no value now, and there may be one later."""


class Wrong(ValueError):
    """An expression that makes no sense, or cannot be evaluated; its text says why."""


class Reference(NamedTuple):
    """`${root.field[0]}`: whose value, and the way into it."""

    root: str
    path: tuple[str | int, ...] = ()
    raw: bool = False
    """Whether the output of a program is wanted as it was printed."""

    def __str__(self) -> str:
        steps = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"${{{self.root}{steps}}}"


def reference(text: str) -> Reference:
    """What stands between the braces.

    >>> reference("test.json.items[0]")
    Reference(root='test', path=('json', 'items', 0), raw=False)
    """
    match = _PATH.fullmatch(text.strip())
    if match is None:
        raise Wrong(f"${{{text}}} is no reference; write one like ${{test.stdout}} or ${{inputs.name}}")
    path = tuple(name or int(place) for name, place in _PART.findall(match[2]))
    return Reference(match[1], path)


def references(value: Any) -> Iterator[Reference]:
    """Every reference in a value, however deep."""
    for text in texts(value):
        closed = text[: _closed(text)]
        yield from (reference(match[1]) for match in _REFERENCE.finditer(closed) if match[1] is not None)


def unclosed(value: Any) -> Iterator[str]:
    """What is begun like a reference in a value and has no end, however deep; nothing would be filled in there."""
    for text in texts(value):
        yield from (f"${{{begun}" for begun in text[_closed(text) :].replace("$${", "").split("${")[1:])


def texts(value: Any) -> list[str]:
    """The texts in a value that may hold references, in their order, however deep; of most values there are none."""
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
    """The value with every reference replaced by what it refers to.

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
    """How far a text may hold references: behind its last brace none is closed, and to look for the end of each that is
    begun there would take the square of their number."""
    return text.rfind("}") + 1


def marked(look: Look) -> Look:
    """Return a look for people: in place of a value that there is not, it finds a note that says so."""

    def found(wanted: Reference) -> Any:
        try:
            return look(wanted)
        except NotYet:
            return f"[not known yet: {wanted}]"
        except LookupError as error:
            return f"[no value: {wanted}{_why(error)}]"

    return found


def raw(look: Look) -> Look:
    """Return a look that finds the output of programs as it was printed."""
    return lambda wanted: look(wanted._replace(raw=True))


def as_text(value: Any) -> str:
    """A value inside a longer text: text as it is, everything else as JSON.

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
    """A checked condition: its tree, and the references in it by the names they have there."""

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
    """A condition over references, numbers, quoted texts and lists: `==`, `<`, `in`, `and`, `or`, `not`.

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
    """Whether a condition is true of the values there are now."""
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
