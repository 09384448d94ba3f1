"""Keys to the HTTP API: how one is made and read, what is kept of it, and what it may be for.

A key is `kw_`, 256 random bits and a checksum, in letters and digits. The checksum tells a mistyped key before a
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

from keptwork.errors import BadInput
from keptwork.secret import Secret

PREFIX = "kw_"
BITS = 256
ALPHABET = digits + ascii_letters
BODY_LENGTH, CHECKSUM_LENGTH = 43, 6  # the fewest signs that hold 256 bits, and 32
LENGTH = len(PREFIX) + BODY_LENGTH + CHECKSUM_LENGTH
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{BODY_LENGTH + CHECKSUM_LENGTH}}}")


class Scope(StrEnum):
    """What a key may be for. None includes another, but for `admin`, which includes all. A key that is to answer what
    is asked of somebody (`approval: {by: ops}`) has a scope named for them: `approve:ops`."""

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
    'kw_00000000000000000000000000000000000000000012rpVfq'
    """
    body = PREFIX + _written(random_bits(BITS), BODY_LENGTH)
    return ApiKey(body + _checksum(body))


def parse(text: str) -> ApiKey | None:
    """The key that a text is; none if it is mistyped or is no key at all.

    >>> parse("kw_00000000000000000000000000000000000000000012rpVfq")
    ApiKey(hidden)
    >>> parse("kw_00000000000000000000000000000000000000000022rpVfq") is None
    True
    """
    if not _FORM.fullmatch(text):
        return None
    body, checksum = text[:-CHECKSUM_LENGTH], text[-CHECKSUM_LENGTH:]
    return ApiKey(text) if checksum == _checksum(body) else None


MOST_SCOPES = 50
KNOWN_SCOPES = f"{', '.join(Scope)} or {Scope.APPROVE}:WHO"
_APPROVER = re.compile(rf"{Scope.APPROVE}:[A-Za-z_][\w-]{{0,99}}")


def approver(who: str | None) -> str:
    """The scope it takes to answer what is asked of somebody, or of anyone.

    >>> approver("ops"), str(approver(None))
    ('approve:ops', 'approve')
    """
    return f"{Scope.APPROVE}:{who}" if who else Scope.APPROVE


def answers_somebody(scopes: Iterable[str]) -> bool:
    """Whether one of the scopes is for what is asked of somebody in particular."""
    return any(_APPROVER.fullmatch(scope) for scope in scopes)


def known_scopes(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are scopes, each once: as they are declared, and then whose approvals they are for.

    >>> known_scopes(["approve:ops", "write", "fly", "read", "write"])
    ('read', 'write', 'approve:ops')
    """
    given = set(names)
    return (*(scope.value for scope in Scope if scope in given), *sorted(filter(_APPROVER.fullmatch, given)))


def scopes_of(names: Iterable[str]) -> tuple[str, ...]:
    """The scopes of these names; one that is none, or none at all, is refused.

    >>> scopes_of(["write", "read", "write"])
    ('read', 'write')
    """
    given = set(names)
    known = known_scopes(given)
    if unknown := sorted(given.difference(known)):
        raise BadInput(what=f"{unknown[0]!r} is no scope; a key is for {KNOWN_SCOPES}")
    if not given:
        raise BadInput(what=f"a key is for something; give it scopes of {KNOWN_SCOPES}")
    if len(given) > MOST_SCOPES:
        raise BadInput(what=f"a key has at most {MOST_SCOPES} scopes, not {len(given):,}")
    return known


def _checksum(text: str) -> str:
    return _written(crc32(text.encode("ascii")), CHECKSUM_LENGTH)


def _written(number: int, length: int) -> str:
    """A number in letters and digits, always as long."""
    signs = []
    for _ in range(length):
        number, sign = divmod(number, len(ALPHABET))
        signs.append(ALPHABET[sign])
    return "".join(reversed(signs))
