"""Lay out Python code: an expression on one line if it fits, otherwise its parts on separate lines.

The result is what the project's formatter would produce.
"""

from __future__ import annotations

from typing import NamedTuple

WIDTH = 120
INDENT = "    "


class Group(NamedTuple):
    """Brackets and the parts between them."""

    head: str
    parts: list[Expression]
    tail: str


Expression = str | Group


def flat(expression: Expression) -> str:
    """Return an expression on one line.

    >>> flat(Group("ask(", ["a", Group("{", ['"b": b'], "}")], ")"))
    'ask(a, {"b": b})'
    """
    if isinstance(expression, str):
        return expression
    return expression.head + ", ".join(map(flat, expression.parts)) + expression.tail


def laid(expression: Expression, indent: str, before: str = "", after: str = "") -> str:
    """Return an expression on as many lines as it needs, with text before and after it.

    >>> print(laid(Group("ask(", ["a" * 60, "b" * 60], ")"), "", "return "))  # doctest: +ELLIPSIS
    return ask(
        a...a,
        b...b,
    )
    """
    line = f"{indent}{before}{flat(expression)}{after}"
    if isinstance(expression, str) or not expression.parts or len(line) <= WIDTH:
        return line
    parts = [laid(part, indent + INDENT, after=",") for part in expression.parts]
    return "\n".join([f"{indent}{before}{expression.head}", *parts, f"{indent}{expression.tail}{after}"])
