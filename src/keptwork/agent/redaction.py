"""Secrets, taken out of a text before it is kept or shown: what the environment holds under a telling name, what this
process was given as a key, and what looks like one.

What is taken out is replaced by a label that says what it was. It is done before anything is stored, and what was
stored is what an agent goes on with: a model never gets to use a secret it has seen.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

SHORTEST = 6
"""What is shorter is no secret, and taking it out would ruin every text."""

SURE = 16
"""A known value as long as this is in no text by chance."""

MOST_REMEMBERED, LONGEST_REMEMBERED = 1_000, 8_000
"""A conversation passes here as a whole with every turn; what was seen before is not searched again."""

_TELLING = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|SIGNATURE|COOKIE|DSN|(^|_)(PASS|AUTH|PAT|PIN)$",
    re.I,
)
_ABOUT = re.compile(r"_(FILE|PATH|DIR|SOCK|NAME|ID|URL|COUNT|TYPE|FORMAT|BYTES|LENGTH|TTL|LIMIT|VERSION)$", re.I)
"""Names that tell of something about a secret, which is not itself one. What is in a URL is looked at apart."""

_PLAIN = re.compile(r"[a-z]{1,7}|[0-9]{1,7}", re.I)
"""A short word or a small number, as in `GIT_AUTH=agent`: taken out, it would leave holes in every text."""


_BREAK = re.compile(r"[^A-Za-z0-9_./+=~:@%&#*$\\-]")
"""What is in no key by its shape, and ends a word."""


class Shape(NamedTuple):
    """What a kind of key looks like. One of the marks is in every such key: where none is, nothing is searched."""

    label: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]


def _shape(label: str, marks: str, pattern: str, flags: int = 0) -> Shape:
    return Shape(label, tuple(marks.split(" ")), re.compile(pattern, flags))


SHAPES = (
    _shape(
        "private key",
        "PRIVATE",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)",
        re.DOTALL,
    ),
    _shape("API key", "sk- sk_ rk_", r"\b(?:sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,})"),
    _shape("AWS key", "AKIA ASIA", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    _shape(
        "GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,})",
    ),
    _shape("GitLab token", "glpat-", r"\bglpat-[\w-]{16,}"),
    _shape("Slack token", "xox", r"\bxox[abeoprs]-[\w-]{10,}"),
    _shape("Google key", "AIza", r"\bAIza[\w-]{30,}"),
    _shape("registry token", "npm_ pypi- hf_", r"\b(?:npm_[A-Za-z0-9]{20,}|pypi-[\w-]{16,}|hf_[A-Za-z0-9]{20,})"),
    _shape("Keptwork key", "kw_", r"\bkw_[\w-]{16,}"),
    _shape("JSON web token", "eyJ", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    _shape("credentials", "earer asic EARER ASIC", r"(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]{8,}"),
    _shape("password", "://", r"(?<=://)[^\s:/@\"'<>]{0,200}:[^\s/@\"'<>]{1,500}(?=@)"),
)


class Redactor:
    """Takes secrets out of texts and values. It knows some by value, by what they are called, and the rest by shape."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        forms = {form: name for name, value in secrets.items() for form in _forms(value)}
        self._known = sorted(forms.items(), key=lambda one: -len(one[0]))  # a part of another one comes after it
        self._broken = [form for form, _ in self._known if _BREAK.search(form)]
        self._before = lru_cache(MOST_REMEMBERED)(self._cleared)

    @classmethod
    def of(cls, environ: Mapping[str, str], keys: Mapping[str, str] | None = None) -> Redactor:
        """With what an environment holds, and further keys by name."""
        return cls({**_secret(environ), **(keys or {})})

    def text(self, text: str) -> str:
        """The text without its secrets.

        >>> Redactor({"API_KEY": "s3cr3t!"}).text("with s3cr3t! and ghp_0123456789abcdefghij")
        'with [redacted: API_KEY] and [redacted: GitHub token]'
        """
        return self._before(text) if len(text) <= LONGEST_REMEMBERED else self._cleared(text)

    def _cleared(self, text: str) -> str:
        for form, name in self._known:
            if form in text:
                text = text.replace(form, label(name))
        for shape in SHAPES:
            if any(mark in text for mark in shape.marks):
                text = shape.pattern.sub(label(shape.label), text)
        return text

    def secret_in(self, text: str) -> str | None:
        """What a text gives away, by its label; none if it is clean. It is stricter than taking out, because a text
        that is refused for a word of prose helps nobody: known values count if they are long, shapes if they are sure.

        >>> Redactor({}).secret_in("push with ghp_0123456789abcdefghij")
        'GitHub token'
        """
        for form, name in self._known:
            if len(form) >= SURE and form in text:
                return f"value of {name}"
        sure = (one for one in SHAPES if one.label != "credentials" and any(mark in text for mark in one.marks))
        return next((one.label for one in sure if one.pattern.search(text)), None)

    def begun(self, text: str) -> int:
        """How many of the last signs of a text may be the beginning of a secret of several words."""
        lengths = (n for form in self._broken for n in range(1, len(form)) if text.endswith(form[:n]))
        return max(lengths, default=0)

    def value(self, value: Any) -> Any:
        """The same of what JSON can hold, names included."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(str(key)): self.value(part) for key, part in value.items()}
            case list() | tuple():
                return [self.value(part) for part in value]
        return value

    def content(self, content: bytes) -> bytes:
        """The same of bytes; those that are no text stay as they are."""
        return self.text(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def label(what: str) -> str:
    """What stands in the place of a secret."""
    return f"[redacted: {what}]"


_learnt: dict[str, str] = {}


def learn(name: str, value: str) -> None:
    """From now on this process takes that value out as well: a key that came from a file, say."""
    _learnt[name] = value.strip()


def current() -> Redactor:
    """For this process: with its environment as it is now, and all it has learnt."""
    return _made(tuple(sorted({**_secret(os.environ), **_learnt}.items())))


@lru_cache(maxsize=4)
def _made(secrets: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(dict(secrets))


def _secret(environ: Mapping[str, str]) -> dict[str, str]:
    """What an environment holds that is secret, by the names of variables."""
    found = {}
    for name, value in environ.items():
        if _TELLING.search(name) and not _ABOUT.search(name) and not _PLAIN.fullmatch(value):
            found[name] = value.strip()
        elif "://" in value and (password := _password(value)):
            found[name] = password
    return found


def _password(url: str) -> str | None:
    try:
        return urlsplit(url).password
    except ValueError:
        return None


def _forms(value: str) -> Iterable[str]:
    """How a value may be written: as it is, in JSON, in a URL, in base64; and each long line of one with many."""
    if len(value) < SHORTEST:
        return
    whole = [value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe="")]
    yield from dict.fromkeys([*whole, base64.b64encode(value.encode("utf-8", "surrogateescape")).decode().rstrip("=")])
    if "\n" in value:
        yield from (line for line in value.splitlines() if len(line) >= 4 * SHORTEST and not line.startswith("-----"))
