"""Signatures of webhooks."""

from __future__ import annotations

import doctest

import pytest

from keptwork import webhooks
from keptwork.webhooks import sign, verify

SECRET, BODY, AT = b"a secret of some length", b'{"n":1}', 1_800_000_000


def test_the_example_in_its_docstring_is_true() -> None:
    assert doctest.testmod(webhooks) == (0, 1)


def test_what_was_signed_is_verified() -> None:
    assert verify(SECRET, sign(SECRET, AT, BODY), str(AT), BODY, AT + 10)


@pytest.mark.parametrize(
    ("secret", "said", "timestamp", "body", "now"),
    [
        (b"another secret", sign(SECRET, AT, BODY), str(AT), BODY, AT),
        (SECRET, sign(SECRET, AT, BODY), str(AT + 1), BODY, AT),
        (SECRET, sign(SECRET, AT, BODY), str(AT), BODY + b" ", AT),
        (SECRET, sign(SECRET, AT, BODY), str(AT), BODY, AT + 301),
        (SECRET, sign(SECRET, AT, BODY), str(AT), BODY, AT - 301),
        (SECRET, sign(SECRET, AT, BODY)[3:], str(AT), BODY, AT),
        (SECRET, "v1=", str(AT), BODY, AT),
        (SECRET, "v1=\udc80é", str(AT), BODY, AT),
        (SECRET, sign(SECRET, AT, BODY), f"{AT}.5", BODY, AT),
        (SECRET, sign(SECRET, AT, BODY), "9" * 400, BODY, AT),
        (SECRET, sign(SECRET, AT, BODY), "", BODY, AT),
    ],
)
def test_anything_else_is_not(secret: bytes, said: str, timestamp: str, body: bytes, now: float) -> None:
    assert not verify(secret, said, timestamp, body, now)
