"""Cursors: opaque text for the position at which a list continues.

A cursor has a checksum over its list and its position, so that a mistyped cursor or one of another list is rejected. It
grants no access, because every query filters by tenant.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from keptwork.errors import BadCursor

LONGEST = 200
_CHECK = 6


def sealed(listing: str, place: str | None) -> str | None:
    """Return the cursor of a position in a list, or None at the end of the list.

    >>> opened("jobs", sealed("jobs", "job_17"))
    'job_17'
    """
    if place is None:
        return None
    return base64.urlsafe_b64encode(_checksum(listing, place) + place.encode()).rstrip(b"=").decode()


def opened(listing: str, cursor: str | None) -> str | None:
    """Return the position of a cursor of this list, or None without a cursor."""
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
