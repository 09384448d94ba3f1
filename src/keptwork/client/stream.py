"""Following a stream of events: over as many connections as it takes, nothing missed and nothing told twice.

The server gives each event an id, and the stream one when it begins; whoever comes back with the last of them goes on
right after it. So what is lost with a connection is asked for again on the next.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from keptwork.client.patience import PASSING
from keptwork.errors import KeptworkError, NoAnswer, StrangeAnswer

if TYPE_CHECKING:
    from keptwork.client.wire import Query, Wire

SILENCE_SECONDS = 60.0
"""A server says something every 15 s."""

LAST = "Last-Event-ID"

logger = logging.getLogger("keptwork.client")


async def followed(wire: Wire, path: str, query: Query | None, after: str | None) -> AsyncGenerator[Any, None]:
    """What the stream tells, without end. A server that was never reached is given up as any request is; one that was
    is waited for."""
    last, reached, failed = after, False, 0
    while True:
        try:
            async for id, document in _connection(wire, path, query, last):
                last, reached, failed = id or last, True, 0
                if document is not None:
                    yield document
        except KeptworkError as error:
            if not _may_pass(error):
                raise
            failed += 1
            pause = wire.patience.pause(failed, wire.dice)
            if pause is None and not reached:
                raise
            logger.info("the stream %s is taken up again: %s", path, error)
            await asyncio.sleep(wire.patience.longest_pause if pause is None else pause)
        else:  # the server has ended it, as one does that is shutting down
            await asyncio.sleep(wire.patience.first_pause * (0.5 + wire.dice() / 2))


async def _connection(
    wire: Wire, path: str, query: Query | None, last: str | None
) -> AsyncGenerator[tuple[str, Any], None]:
    """The frames of one connection: the id of each, and what it tells, if anything. Half a frame tells nothing."""
    import httpx2  # the wire is here already, and has looked whether it can be

    headers = {} if last is None else {LAST: last}
    async with wire.listening(path, query, headers, silence=SILENCE_SECONDS) as response:
        async for frame in httpx2.EventSource(response):
            yield frame.id, _document(wire, path, frame.data)


def _document(wire: Wire, path: str, data: str) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        raise StrangeAnswer(server=wire.server, asked=f"GET {path}", found="an event that is no JSON") from None


def _may_pass(error: KeptworkError) -> bool:
    return isinstance(error, NoAnswer) or (error.status in PASSING and not isinstance(error, StrangeAnswer))
