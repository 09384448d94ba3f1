"""Signals: what one sends and jobs wait for. Those of a tenant and name form a sequence."""

from __future__ import annotations

from typing import NamedTuple

EVERYONE = 0
"""Instead of a job: whoever waits for it."""


class NewSignal(NamedTuple):
    """A signal to be sent; the same key a second time sends no second one."""

    tenant_id: int
    name: str
    payload: str
    key: str
    job_id: int = EVERYONE


class Signal(NamedTuple):
    """One that was sent: its place in the sequence, and what was said."""

    id: int
    payload: str


class Sent(NamedTuple):
    """What came of sending: the signal's place, whether it is new, and how many jobs are due because of it."""

    id: int
    new: bool
    woken: int
