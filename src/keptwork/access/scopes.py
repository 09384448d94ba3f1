"""API keys: their creation, parsing, stored form, and scopes.

A key is `kw_`, 256 random bits, and a checksum, in letters and digits. The checksum detects a mistyped key without a
database query. Only the SHA-256 of a key is stored: random bits that cannot be guessed need neither a salt nor a slow
hash.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from hashlib import sha256
from string import ascii_letters, digits
from zlib import crc32

from keptwork.core.secrets import Secret
from keptwork.errors import BadInput

PREFIX = "kw_"
BITS = 256
ALPHABET = digits + ascii_letters
BODY_LENGTH, CHECKSUM_LENGTH = 43, 6  # the fewest characters that hold 256 bits, and 32
LENGTH = len(PREFIX) + BODY_LENGTH + CHECKSUM_LENGTH
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{BODY_LENGTH + CHECKSUM_LENGTH}}}")


class Scope(StrEnum):
    """The permissions of a key. Only `admin` includes others: it includes all.

    A key that can decide requests for a named reviewer (`approval: {by: ops}`) has a scope with that name:
    `approve:ops`.
    """

    READ = "read"
    WRITE = "write"
    APPROVE = "approve"
    SUPERVISE = "supervise"
    ADMIN = "admin"


class ApiKey(Secret):
    """A well-formed key. Only a store knows whether it is valid."""

    __slots__ = ()

    @property
    def hash(self) -> str:
        """The stored hash, by which the key is found."""
        return hash_of(self.value)

    def matches(self, hash: str) -> bool:
        """Return whether this is the key's hash, in constant time."""
        return hmac.compare_digest(self.hash.encode(), hash.encode("utf-8", "replace"))


def hash_of(text: str) -> str:
    """Return the hash that a key with this text would have."""
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def new(random_bits: Callable[[int], int] = secrets.randbits) -> ApiKey:
    """Return a new key.

    >>> new(lambda bits: 1).value
    'kw_00000000000000000000000000000000000000000012rpVfq'
    """
    body = PREFIX + _written(random_bits(BITS), BODY_LENGTH)
    return ApiKey(body + _checksum(body))


def parse(text: str) -> ApiKey | None:
    """Return the key in a text, or None if it is mistyped or not a key.

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
    """Return the scope that decides requests for this reviewer, or for any reviewer.

    >>> approver("ops"), str(approver(None))
    ('approve:ops', 'approve')
    """
    return f"{Scope.APPROVE}:{who}" if who else Scope.APPROVE


def answers_somebody(scopes: Iterable[str]) -> bool:
    """Return whether one of the scopes is for a named reviewer."""
    return any(_APPROVER.fullmatch(scope) for scope in scopes)


def known_scopes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the valid scopes among the names, each once: those of `Scope` in order, then those for reviewers.

    >>> known_scopes(["approve:ops", "write", "fly", "read", "write"])
    ('read', 'write', 'approve:ops')
    """
    given = set(names)
    return (*(scope.value for scope in Scope if scope in given), *sorted(filter(_APPROVER.fullmatch, given)))


def scopes_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes of these names. Raise `BadInput` for an unknown scope, or if there is none.

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
    """Return a number in letters and digits, padded to the length."""
    signs = []
    for _ in range(length):
        number, sign = divmod(number, len(ALPHABET))
        signs.append(ALPHABET[sign])
    return "".join(reversed(signs))


# Tenant limits on a server: request rate, concurrency, and queued jobs.
#
# A server has settings (`[server]` in keptwork.toml). A tenant can have its own limits, which are stored in the
# database and apply on every server.


LARGEST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of one tenant. 0 means no limit. Each server process counts for itself, except for `max_queued`."""

    requests_per_second: int = 1_000
    burst: int = 2_000
    max_in_flight: int = 100
    max_streams: int = 1_000
    max_queued: int = 1_000_000

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or not 0 <= value <= LARGEST:
                raise BadInput(what=f"{name} is {value!r}; it must be a whole number from 0 (no bound) to {LARGEST}")

    def of_tenant(self, own: str | None) -> Allowance:
        """Return the limits of a tenant that overrides these with its own.

        Limits that a newer program stored, and this one does not know, are ignored.

        >>> Allowance().of_tenant('{"max_queued": 5, "colour": "red"}').max_queued
        5
        """
        return replace(self, **{name: value for name, value in own_limits(own).items() if name in NAMES})


NAMES = tuple(one.name for one in fields(Allowance))


def own_limits(text: str | None) -> dict[str, int]:
    """Return a tenant's own limits."""
    found = json.loads(text) if text else {}
    if not isinstance(found, dict):
        raise BadInput(what=f"the limits of a tenant are {text}; they must be a JSON object")
    return found


def changed(text: str | None, changes: Mapping[str, int | None]) -> str | None:
    """Return a tenant's own limits with these changes. None leaves a limit unchanged.

    >>> changed('{"burst": 5}', {"max_queued": 7, "burst": None})
    '{"burst": 5, "max_queued": 7}'
    """
    own = own_limits(text) | {name: value for name, value in changes.items() if value is not None}
    Allowance(**{name: value for name, value in own.items() if name in NAMES})
    return json.dumps(own) if own else None
