"""Keys of providers: read from the environment or from a private file, and never shown."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from keptwork.core.secrets import Secret
from keptwork.core.secrets_redaction import learn
from keptwork.errors import NoKey

VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
LARGEST_FILE = 16_384
HIDDEN = "[key]"
SHORTEST = 8
"""A shorter value is not a secret, and can appear anywhere."""

_LIKE_A_KEY = re.compile(r"\b(?:sk-|kw_)[\w*.…-]{16,}")


class Key(Secret):
    """The key of a provider."""

    __slots__ = ()

    def hidden_in(self, text: str) -> str:
        """Return the text without the key and anything that looks like a part of one."""
        return hidden(text.replace(self._value, HIDDEN) if len(self._value) >= SHORTEST else text)


def hidden(text: str) -> str:
    """Return the text without anything that looks like a key, and without the keys in the environment."""
    for variable in VARIABLES.values():
        value = os.environ.get(variable, "").strip()
        text = text.replace(value, HIDDEN) if len(value) >= SHORTEST else text
    return _LIKE_A_KEY.sub(HIDDEN, text)


def from_environment(provider: str, environ: Mapping[str, str]) -> Key | None:
    """Return the key of a provider from the environment, or None."""
    value = environ.get(VARIABLES[provider], "").strip()
    return checked(provider, value, VARIABLES[provider]) if value else None


def from_file(provider: str, path: Path) -> Key:
    """Return the key in a file. A file that other users can access is rejected, because they might have read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise NoKey(provider=provider, what=f"{path} cannot be read: {error.strerror or error}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise NoKey(provider=provider, what=f"{path} is open to others, and so is not used; run: chmod 600 {path}")
    return checked(provider, text.decode("ascii", "replace").strip(), str(path))


def checked(provider: str, value: str, where: str) -> Key:
    """Return the key if it is one line of printable ASCII, as a header requires."""
    if not re.fullmatch(r"[!-~]{1,4096}", value):
        raise NoKey(provider=provider, what=f"{where} does not hold one: a key is one line without blanks")
    learn(f"{provider}_KEY", value)
    return Key(value)
