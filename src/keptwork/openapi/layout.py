"""Python in lines: an expression in one line if it fits, else each part of it on lines of its own, as the formatter of
the project leaves it."""

from __future__ import annotations

from typing import NamedTuple

WIDTH = 120
INDENT = "    "


class Group(NamedTuple):
    """Brackets with parts between them."""

    head: str
    parts: list[Expression]
    tail: str


Expression = str | Group


def flat(expression: Expression) -> str:
    """In one line.

    >>> flat(Group("ask(", ["a", Group("{", ['"b": b'], "}")], ")"))
    'ask(a, {"b": b})'
    """
    if isinstance(expression, str):
        return expression
    return expression.head + ", ".join(map(flat, expression.parts)) + expression.tail


def laid(expression: Expression, indent: str, before: str = "", after: str = "") -> str:
    """In as many lines as it takes, with something before and after it.

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
