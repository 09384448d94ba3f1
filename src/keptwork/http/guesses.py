"""Guesses at keys: an address that keeps sending keys which open nothing is told to wait, and none is looked up for it.

A key that was good here a while ago is let through whatever else comes from its address: behind a proxy all clients may
have the same one. What is remembered has a bound, and of keys only their hashes.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections.abc import Callable
from typing import TypeVar

from keptwork.errors import TooManyWrongKeys
from keptwork.http.buckets import Bucket

K = TypeVar("K")
V = TypeVar("V")

MOST_ADDRESSES = 10_000
MOST_KEYS = 10_000


class Guesses:
    """Who has sent wrong keys of late."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._size, self._rate = per_minute, per_minute / 60
        self._monotonic = monotonic
        self._buckets: dict[str, Bucket] = {}
        self._good: dict[bytes, None] = {}

    def insist_few(self, address: str, token: str) -> None:
        """Refuses a key that nobody knows yet, from an address that has guessed too often."""
        bucket = self._buckets.get(_network(address)) if self._size else None
        if bucket is None or _digest(token) in self._good:
            return
        bucket.fill(self._rate, self._size, self._monotonic())
        if bucket.level < 1:
            raise TooManyWrongKeys(seconds=max(1, bucket.seconds_until(1, self._rate)))

    def wrong(self, address: str) -> None:
        """A key from there opened nothing."""
        if self._size:
            now, network = self._monotonic(), _network(address)
            bucket = self._buckets.pop(network, None) or Bucket(self._size, now)
            bucket.take(self._rate, self._size, now)
            _keep(self._buckets, network, bucket, MOST_ADDRESSES)

    def right(self, token: str) -> None:
        """A key opened something."""
        digest = _digest(token)
        if digest not in self._good:
            _keep(self._good, digest, None, MOST_KEYS)


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """The one that was kept first makes room."""
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _network(address: str) -> str:
    """Whoever has one address of IPv6 has as many as there are in its /64.

    >>> _network("10.0.0.7"), _network("2001:db8::1") == _network("2001:db8::2")
    ('10.0.0.7', True)
    """
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
