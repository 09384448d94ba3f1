"""Cursors: where a list goes on, as text that means nothing to a client.

A cursor names its list and carries a checksum, so that one of another list, or a mistyped one, is refused. It gives no
right to anything: the tenant is in every query.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from keptwork.errors import BadCursor

LONGEST = 200
_CHECK = 6


def sealed(listing: str, place: str | None) -> str | None:
    """The cursor of a place in a list; none where the list ends.

    >>> opened("jobs", sealed("jobs", "job_17"))
    'job_17'
    """
    if place is None:
        return None
    return base64.urlsafe_b64encode(_checksum(listing, place) + place.encode()).rstrip(b"=").decode()


def opened(listing: str, cursor: str | None) -> str | None:
    """The place that a cursor of this list stands for."""
    if not cursor:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        place = raw[_CHECK:].decode()
    except (binascii.Error, ValueError):
        raise BadCursor from None
    if len(cursor) > LONGEST or sealed(listing, place) != cursor:
        raise BadCursor
    return place


def _checksum(listing: str, place: str) -> bytes:
    return hashlib.blake2b(f"{listing}\n{place}".encode(), digest_size=_CHECK).digest()
