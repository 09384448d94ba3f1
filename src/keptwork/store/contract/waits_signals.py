"""Signals, which callers send and jobs wait for. The signals of a tenant and name form a sequence."""

from __future__ import annotations

from typing import NamedTuple

EVERYONE = 0
"""In place of a job ID: every job that waits for the signal."""


class NewSignal(NamedTuple):
    """A signal to send. Using its key again does not send it again."""

    tenant_id: int
    name: str
    payload: str
    key: str
    job_id: int = EVERYONE


class Signal(NamedTuple):
    """A signal that was sent: its position in the sequence and its payload."""

    id: int
    payload: str


class Sent(NamedTuple):
    """The result of sending: the signal's position, whether it is new, and the number of jobs that became due."""

    id: int
    new: bool
    woken: int
