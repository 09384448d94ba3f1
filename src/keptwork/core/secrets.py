"""A secret value that is not shown by accident."""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from keptwork.errors import BadInput, NoKey


class Secret:
    """A string that only `value` reveals: printing and logging hide it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @property
    def value(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"


# Removes secrets from text before it is stored or shown: environment values with telling names, keys given to this
# process, and text that looks like a key.
#
# Each secret is replaced by a label that describes it. This happens before anything is stored, and an agent continues
# with what was stored. So a model never gets to use a secret that it has seen.


SHORTEST_SEEN = 6
"""A shorter value is not treated as a secret, because removing it would spoil every text."""

SURE = 16
"""A known value of at least this length does not appear in a text by chance."""

MOST_REMEMBERED, LONGEST_REMEMBERED = 1_000, 8_000
"""A whole conversation is redacted again at every turn. Results for earlier text are cached."""

_TELLING = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|SIGNATURE|COOKIE|DSN|(^|_)(PASS|AUTH|PAT|PIN)$",
    re.I,
)
_ABOUT = re.compile(r"_(FILE|PATH|DIR|SOCK|NAME|ID|URL|COUNT|TYPE|FORMAT|BYTES|LENGTH|TTL|LIMIT|VERSION)$", re.I)
"""Names of facts about a secret, which are not secret themselves. A password in a URL is handled separately."""

_PLAIN = re.compile(r"[a-z]{1,7}|[0-9]{1,7}", re.I)
"""A short word or a small number, as in `GIT_AUTH=agent`. Removing it would leave gaps in every text."""


_BREAK = re.compile(r"[^A-Za-z0-9_./+=~:@%&#*$\\-]")
"""A character that no key contains by its shape, and that ends a word."""


class Shape(NamedTuple):
    """The form of a kind of key. Every such key contains one of the marks, so text without a mark is not searched."""

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
    """Removes secrets from text and values. It knows some secrets by value, under their names, and finds the rest by
    shape."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        forms = {form: name for name, value in secrets.items() for form in _forms(value)}
        self._known = sorted(forms.items(), key=lambda one: -len(one[0]))  # a form can be part of a longer one
        self._broken = [form for form, _ in self._known if _BREAK.search(form)]
        self._before = lru_cache(MOST_REMEMBERED)(self._cleared)

    @classmethod
    def of(cls, environ: Mapping[str, str], keys: Mapping[str, str] | None = None) -> Redactor:
        """Return a redactor with the secrets of an environment and further keys by name."""
        return cls({**_secret(environ), **(keys or {})})

    def text(self, text: str) -> str:
        """Return the text without its secrets.

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
        """Return the label of a secret in the text, or None. It finds fewer secrets than `text` removes, because it
        must not reject prose: a known value counts if it is long, and a shape if it is certain.

        >>> Redactor({}).secret_in("push with ghp_0123456789abcdefghij")
        'GitHub token'
        """
        for form, name in self._known:
            if len(form) >= SURE and form in text:
                return f"value of {name}"
        sure = (one for one in SHAPES if one.label != "credentials" and any(mark in text for mark in one.marks))
        return next((one.label for one in sure if one.pattern.search(text)), None)

    def begun(self, text: str) -> int:
        """Return how many of the last characters can be the start of a secret of several words."""
        lengths = (n for form in self._broken for n in range(1, len(form)) if text.endswith(form[:n]))
        return max(lengths, default=0)

    def value(self, value: Any) -> Any:
        """Return a JSON value without its secrets, including those in names."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(str(key)): self.value(part) for key, part in value.items()}
            case list() | tuple():
                return [self.value(part) for part in value]
        return value

    def content(self, content: bytes) -> bytes:
        """Return bytes without their secrets. Bytes that are not UTF-8 stay unchanged."""
        return self.text(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def label(what: str) -> str:
    """Return the replacement of a secret."""
    return f"[redacted: {what}]"


_learnt: dict[str, str] = {}


def learn(name: str, value: str) -> None:
    """Treat a value as a secret in this process from now on, such as a key read from a file."""
    _learnt[name] = value.strip()


def current() -> Redactor:
    """Return this process's redactor, with its current environment and the learned secrets."""
    return _made(tuple(sorted({**_secret(os.environ), **_learnt}.items())))


@lru_cache(maxsize=4)
def _made(secrets: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(dict(secrets))


def _secret(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secret values of an environment by the names of their variables."""
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
    """Yield the forms of a value: as it is, in JSON, in a URL, and in base64. If it has several lines, also yield each
    long line."""
    if len(value) < SHORTEST_SEEN:
        return
    whole = [value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe="")]
    yield from dict.fromkeys([*whole, base64.b64encode(value.encode("utf-8", "surrogateescape")).decode().rstrip("=")])
    if "\n" in value:
        yield from (
            line for line in value.splitlines() if len(line) >= 4 * SHORTEST_SEEN and not line.startswith("-----")
        )


# Keys of providers: read from the environment or from a private file, and never shown.


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


# Reject definitions and inputs that contain secrets, because they are stored unchanged.
#
# Secrets in conversations and outputs are redacted before they are stored. A definition and its inputs must run exactly
# as they are, so a secret in them is rejected.


def insist(what: str, said: str) -> None:
    """Raise `BadInput` if JSON contains a secret. The message has its path, but not the secret.

    >>> insist("flow ship", '{"steps": [{"id": "push", "command": ["push", "ghp_0123456789abcdefghij"]}]}')
    Traceback (most recent call last):
    ...
    keptwork.errors.BadInput: flow ship holds a secret at steps.push.command.1 (GitHub token) and would be stored with \
it; keep it in the environment of the worker, and name the variable under env of a tool
    """
    redactor = current()
    if redactor.secret_in(said) is None:  # nearly always
        return
    for where, text in _texts(json.loads(said), ()):
        if label := redactor.secret_in(text):
            place = f" at {redactor.text('.'.join(where))}" if where else ""
            raise BadInput(
                what=f"{what} holds a secret{place} ({label}) and would be stored with it; keep it in the environment "
                "of the worker, and name the variable under env of a tool"
            )


def _texts(value: Any, where: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every string of a value with its path, including names. An element with an ID is named by it."""
    match value:
        case str():
            yield where, value
        case Mapping():
            for name, part in value.items():
                yield where, str(name)
                yield from _texts(part, (*where, str(name)))
        case list() | tuple():
            for number, part in enumerate(value):
                called = part.get("id") if isinstance(part, Mapping) else None
                yield from _texts(part, (*where, str(called or number)))
