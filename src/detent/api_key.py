"""Keys to the HTTP API: how one is made and read, what is kept of it, and what it may be for.

A key is `dk_`, 256 random bits and a checksum, in letters and digits. The checksum tells a mistyped key before a
database is asked. What is kept is its SHA-256 alone: bits that nobody can guess need neither salt nor a slow hash.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from enum import StrEnum
from hashlib import sha256
from string import ascii_letters, digits
from zlib import crc32

from detent.errors import BadInput
from detent.secret import Secret

PREFIX = "dk_"
BITS = 256
ALPHABET = digits + ascii_letters
BODY_LENGTH, CHECKSUM_LENGTH = 43, 6  # the fewest signs that hold 256 bits, and 32
LENGTH = len(PREFIX) + BODY_LENGTH + CHECKSUM_LENGTH
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{BODY_LENGTH + CHECKSUM_LENGTH}}}")


class Scope(StrEnum):
    """What a key may be for. None includes another, but for `admin`, which includes all."""

    READ = "read"
    WRITE = "write"
    APPROVE = "approve"
    SUPERVISE = "supervise"
    ADMIN = "admin"


class ApiKey(Secret):
    """A key that is well-formed; whether it opens anything is for a store to say."""

    __slots__ = ()

    @property
    def hash(self) -> str:
        """What is kept of it, and what it is found by."""
        return hash_of(self.value)

    def matches(self, hash: str) -> bool:
        """Whether that is its hash, in a time that does not tell how much of it is."""
        return hmac.compare_digest(self.hash.encode(), hash.encode("utf-8", "replace"))


def hash_of(text: str) -> str:
    """What would be kept of a text if it were a key."""
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def new(random_bits: Callable[[int], int] = secrets.randbits) -> ApiKey:
    """A key that nobody has.

    >>> new(lambda bits: 1).value
    'dk_00000000000000000000000000000000000000000013cPyzC'
    """
    body = PREFIX + _written(random_bits(BITS), BODY_LENGTH)
    return ApiKey(body + _checksum(body))


def parse(text: str) -> ApiKey | None:
    """The key that a text is; none if it is mistyped or is no key at all.

    >>> parse("dk_00000000000000000000000000000000000000000013cPyzC")
    ApiKey(hidden)
    >>> parse("dk_00000000000000000000000000000000000000000023cPyzC") is None
    True
    """
    if not _FORM.fullmatch(text):
        return None
    body, checksum = text[:-CHECKSUM_LENGTH], text[-CHECKSUM_LENGTH:]
    return ApiKey(text) if checksum == _checksum(body) else None


def scopes_of(names: Iterable[str]) -> tuple[Scope, ...]:
    """The scopes of these names, each once and in the order they are declared; an unknown one, or none, is refused.

    >>> scopes_of(["write", "read", "write"])
    (<Scope.READ: 'read'>, <Scope.WRITE: 'write'>)
    """
    given = set(names)
    if unknown := sorted(given.difference(Scope)):
        raise BadInput(what=f"{unknown[0]!r} is no scope; a key is for {', '.join(Scope)}")
    if not given:
        raise BadInput(what=f"a key is for something; give it scopes of {', '.join(Scope)}")
    return tuple(scope for scope in Scope if scope in given)


def _checksum(text: str) -> str:
    return _written(crc32(text.encode("ascii")), CHECKSUM_LENGTH)


def _written(number: int, length: int) -> str:
    """A number in letters and digits, always as long."""
    signs = []
    for _ in range(length):
        number, sign = divmod(number, len(ALPHABET))
        signs.append(ALPHABET[sign])
    return "".join(reversed(signs))
