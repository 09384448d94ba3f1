"""Limit failed authentication by network.

A network that keeps sending wrong keys must wait, and its keys are not looked up. A key that was valid here recently is
always accepted, because all clients behind a proxy can have the same address. The stored data is bounded, and contains
only hashes of keys.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections.abc import Callable
from typing import TypeVar

from keptwork.errors import TooManyWrongKeys
from keptwork.http.rate_limit_buckets import Bucket

K = TypeVar("K")
V = TypeVar("V")

MOST_ADDRESSES = 10_000
MOST_KEYS = 10_000


class Guesses:
    """Rate limiter for failed authentication, by network."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._size, self._rate = per_minute, per_minute / 60
        self._monotonic = monotonic
        self._buckets: dict[str, Bucket] = {}
        self._good: dict[bytes, None] = {}

    def insist_few(self, address: str, token: str) -> None:
        """Reject an unknown key from a network with too many failures."""
        bucket = self._buckets.get(_network(address)) if self._size else None
        if bucket is None or _digest(token) in self._good:
            return
        bucket.fill(self._rate, self._size, self._monotonic())
        if bucket.level < 1:
            raise TooManyWrongKeys(seconds=max(1, bucket.seconds_until(1, self._rate)))

    def wrong(self, address: str) -> None:
        """Record a failed authentication."""
        if self._size:
            now, network = self._monotonic(), _network(address)
            bucket = self._buckets.pop(network, None) or Bucket(self._size, now)
            bucket.take(self._rate, self._size, now)
            _keep(self._buckets, network, bucket, MOST_ADDRESSES)

    def right(self, token: str) -> None:
        """Record a successful authentication."""
        digest = _digest(token)
        if digest not in self._good:
            _keep(self._good, digest, None, MOST_KEYS)


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Store a value. The oldest entry makes room."""
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _network(address: str) -> str:
    """Return the network of an address: its /64 for IPv6, because one client has all of its addresses.

    >>> _network("10.0.0.7"), _network("2001:db8::1") == _network("2001:db8::2")
    ('10.0.0.7', True)
    """
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
