"""Sign webhook messages, and verify their signatures."""

from __future__ import annotations

import hmac

VERSION = "v1"
TOLERANCE_SECONDS = 300


def sign(secret: bytes, timestamp: int, body: bytes) -> str:
    """Return the header `Keptwork-Signature` for a body sent at this time, in seconds.

    >>> sign(b"secret", 1_700_000_000, b"{}")
    'v1=b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163'
    """
    return f"{VERSION}={hmac.new(secret, b'%d.%s' % (timestamp, body), 'sha256').hexdigest()}"


def verify(
    secret: bytes, signature: str, timestamp: str, body: bytes, now: float, tolerance: float = TOLERANCE_SECONDS
) -> bool:
    """Return whether the two headers were made with the secret, and recently.

    They are `Keptwork-Signature` and `Keptwork-Timestamp`. The time limit prevents the later replay of an intercepted
    message.
    """
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
        return False
    recent = abs(now - int(timestamp)) <= tolerance
    expected = sign(secret, int(timestamp), body)
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")) and recent
