"""Generate the modules of methods: one per tag, with an asynchronous class and a blocking class."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tools.client.layout import INDENT, Expression, Group, laid
from tools.client.operations import Argument, Document, Operation, Unsayable, operations
from tools.client.prose import docstring, imported
from tools.client.spelling import class_name, identifier, union

BODY = INDENT * 2
_KEY_ABOUT = "idempotency_key: Idempotency key. A repeated key runs the request once. Default: a new key for each call."


def modules(document: Document) -> dict[str, str]:
    """Return the text of each module by its name."""
    by_tag: dict[str, list[Operation]] = {}
    for one in operations(document):
        by_tag.setdefault(one.tag, []).append(one)
    made = {tag: _module(tag, found) for tag, found in by_tag.items()}
    return {**made, "__init__": _surface(list(by_tag))}


def _module(tag: str, found: list[Operation]) -> str:
    classes = [_class(tag, found, awaited=True), _class(tag, found, awaited=False)]
    text = "\n".join(classes)
    models = ["from keptwork.client import models"] if "models." in text else []
    about = docstring(f"Methods of the HTTP API: {tag.replace('_', ' ')}.")
    return "\n".join([about, "", *imported(text, *models), *classes])


def _class(tag: str, found: list[Operation], *, awaited: bool) -> str:
    name, wire = (f"Async{class_name(tag)}", "Wire") if awaited else (class_name(tag), "SyncWire")
    says = "asynchronous methods" if awaited else "blocking methods"
    head = [
        "",
        f"class {name}:",
        docstring(f"{tag.replace('_', ' ').capitalize()}: {says}.", INDENT),
        "",
        f"{INDENT}def __init__(self, wire: {wire}) -> None:",
        f"{BODY}self._wire = wire",
    ]
    methods = [text for one in found for text in _methods(one, awaited)]
    return "\n".join([*head, *methods, ""])


def _methods(one: Operation, awaited: bool) -> Iterator[str]:
    if one.kind == "stream":
        yield _stream(one, awaited)
        return
    yield _plain(one, awaited)
    if one.pages is not None:
        yield _all(one, awaited)


def _plain(one: Operation, awaited: bool) -> str:
    """Return the method for one request and its response."""
    wait = "await " if awaited else ""
    arguments = list(one.arguments)
    if one.keyed:
        arguments.append(Argument("idempotency_key", "", "str | None", False, "", "key"))
    call = Group(f"self._wire.{_verb(one)}(", [*_sent(one)], ")")
    return _method(one.name, arguments, one.answer, _told(one, one.keyed), f"return {wait}", call, awaited)


def _verb(one: Operation) -> str:
    if one.method != "GET":
        return "change"
    return "content" if one.kind == "bytes" else "get"


def _sent(one: Operation) -> Iterator[Expression]:
    if one.method != "GET":
        yield from _changed(one)
        return
    if one.kind == "json":
        yield one.answer
    yield from (_address(one), *_query(one))


def _changed(one: Operation) -> Iterator[Expression]:
    if one.kind != "json":
        raise Unsayable(f"{one.method} {one.path} answers no JSON")
    yield from (one.answer, f'"{one.method}"', _address(one))
    if body := one.among("body"):
        yield _mapping(body)
    if query := one.among("query"):
        yield _mapping(query, "query=")
    yield "idempotency_key=idempotency_key" if one.keyed else "repeatable=False"
    if headers := one.among("header"):
        yield _mapping(headers, "headers=")


def _all(one: Operation, awaited: bool) -> str:
    """Return the method that yields the items of all pages."""
    pages = one.pages
    assert pages is not None  # noqa: S101 - checked by the caller
    returned = _generator(pages.item, awaited)
    sent: list[Expression] = [pages.item, f'"{pages.field}"', _address(one), *_query(one)]
    call = Group("self._wire.pages(", sent, ")")
    about = f"{one.about} Reads all pages; `limit` is the page size."
    return _method(
        one.methods[1], list(one.arguments), returned, _told(one, False, about), "return ", call, awaited=False
    )


def _stream(one: Operation, awaited: bool) -> str:
    """Return the method that follows a stream, over any number of connections."""
    returned = _generator(one.answer, awaited)
    query = [argument for argument in one.among("query") if argument.wire != "after"]
    sent: list[Expression] = [one.answer, _address(one), *([_mapping(query)] if query else []), "after=after"]
    call = Group("self._wire.follow(", sent, ")")
    about = f"{one.about} Reconnects after a lost connection, and continues at its position."
    arguments = [argument for argument in one.arguments if argument.place != "header"]
    if not any(argument.name == "after" for argument in arguments):
        arguments.append(Argument("after", "", "str | None", False, "", "query"))
    return _method(one.methods[0], arguments, returned, _told(one, False, about), "return ", call, awaited=False)


# --- parts of a method


def _generator(item: str, awaited: bool) -> str:
    return f"AsyncGenerator[{item}, None]" if awaited else f"Generator[{item}, None, None]"


def _method(
    name: str,
    arguments: list[Argument],
    returned: str,
    told: Callable[[str], str],
    before: str,
    call: Expression,
    awaited: bool,
) -> str:
    definition = Group(f"{'async ' if awaited else ''}def {name}(", [*_signature(arguments)], ")")
    head = laid(definition, INDENT, after=f" -> {returned}:")
    return "\n".join(["", head, told(BODY), laid(call, BODY, before)])


def _signature(arguments: list[Argument]) -> Iterator[str]:
    yield "self"
    path = [one for one in arguments if one.place == "path"]
    yield from (f"{one.name}: {one.type}" for one in path)
    others = [one for one in arguments if one.place != "path"]
    if others:
        yield "*"
    yield from (f"{one.name}: {one.type}" for one in others if one.required)
    yield from (_optional(one) for one in others if not one.required)


def _optional(one: Argument) -> str:
    if one.telling_none:
        return f"{one.name}: {union(one.type, 'Unset')} = UNSET"
    return f"{one.name}: {one.type} = None"


def _told(one: Operation, keyed: bool, about: str | None = None) -> Callable[[str], str]:
    lines = [f"{argument.name}: {argument.about}" for argument in one.arguments if argument.about]
    lines += [_KEY_ABOUT] if keyed else []
    return lambda indent: docstring(about or one.about, indent, lines)


def _address(one: Operation) -> str:
    path = re.sub(r"{(\w+)}", lambda found: f"{{segment({identifier(found[1])})}}", one.path)
    return f'f"{path}"' if "{" in path else f'"{path}"'


def _query(one: Operation) -> Iterator[Expression]:
    if query := one.among("query"):
        yield _mapping(query)


def _mapping(arguments: list[Argument], before: str = "") -> Expression:
    """Return the mapping of arguments to send.

    Required arguments are always sent, others unless they are None. If None has a meaning of its own, an argument is
    sent unless it is UNSET.
    """
    required = [one for one in arguments if one.required]
    optional = [one for one in arguments if not one.required and not one.telling_none]
    telling = [one for one in arguments if one.telling_none]
    parts: list[Expression] = [_dict(optional), *([_dict(telling)] if telling else [])]
    if not required:
        return Group(f"{before}given(", parts, ")")
    more = [Group("**given(", parts, ")")] if optional or telling else []
    return Group(f"{before}{{", [*_items(required), *more], "}")


def _dict(arguments: list[Argument]) -> Expression:
    return Group("{", [*_items(arguments)], "}")


def _items(arguments: list[Argument]) -> list[str]:
    return [f'"{one.wire}": {one.name}' for one in arguments]


# --- the API classes


def _surface(tags: list[str]) -> str:
    """Return the module with the classes that have all tags as attributes."""
    pairs = {tag: sorted((class_name(tag), f"Async{class_name(tag)}")) for tag in sorted(tags)}
    imports = [f"from keptwork.client.api.{tag} import {', '.join(names)}" for tag, names in pairs.items()]
    wires = ["from keptwork.client.sync_wire import SyncWire", "from keptwork.client.wire import Wire"]
    head = docstring("The HTTP API, with an attribute for each tag.")
    lines = [head, "", "from __future__ import annotations", "", *imports, *wires, ""]
    for name, wire, prefix in (("AsyncApi", "Wire", "Async"), ("Api", "SyncWire", "")):
        about = "The API with asynchronous methods." if prefix else "The API with blocking methods."
        lines += [
            "",
            f"class {name}:",
            docstring(about, INDENT),
            "",
            f"{INDENT}def __init__(self, wire: {wire}) -> None:",
        ]
        lines += [f"{BODY}self.{tag} = {prefix}{class_name(tag)}(wire)" for tag in tags]
        lines += [""]
    return "\n".join(lines)
