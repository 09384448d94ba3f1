"""Import a command only when it is called, so that `keptwork --help` stays fast with many commands."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


class Entry(NamedTuple):
    """The `module:name` of a Typer app or a function, and the summary of its command."""

    target: str
    summary: str


class LazyGroup(TyperGroup):
    """A group that lists its entries without importing them, and imports the entry that is called."""

    entries: ClassVar[dict[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Placeholders are enough for help, completion, and "did you mean".
        for name, entry in self.entries.items():
            self.add_command(TyperCommand(name, help=entry.summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the requested command and import it in place of its placeholder."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, stand_in and load(str(name), self.entries[str(name)]), rest


def load(name: str, entry: Entry) -> Any:
    """Import a command. A group always gets the name, summary, and look of the other groups."""
    module, _, attribute = entry.target.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return _group(name, entry, found)
    verb = typer.Typer(add_completion=False, rich_markup_mode=None)
    verb.command(name)(found)
    return get_command(verb)


def _group(name: str, entry: Entry, noun: typer.Typer) -> TyperGroup:
    noun.rich_markup_mode = None
    group = get_group(noun)
    group.name, group.help = name, entry.summary
    return group
