"""Follow a stream of events over any number of connections, without gaps and duplicates.

The server gives each event an ID, and gives the stream one at its start. A client that reconnects with the last ID
continues right after it, so it receives what a lost connection did not deliver.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from keptwork.client.retry import PASSING
from keptwork.errors import KeptworkError, NoAnswer, StrangeAnswer

if TYPE_CHECKING:
    from keptwork.client.wire import Query, Wire

SILENCE_SECONDS = 60.0
"""Time without data after which a connection is lost. A server sends something every 15 s."""

LAST = "Last-Event-ID"

logger = logging.getLogger("keptwork.client")


async def followed(wire: Wire, path: str, query: Query | None, after: str | None) -> AsyncGenerator[Any, None]:
    """Yield the documents of a stream without end.

    A server that was never reached fails after the usual retries. A server that was reached is waited for.
    """
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
        else:  # the server has ended the stream, as it does at shutdown
            await asyncio.sleep(wire.patience.first_pause * (0.5 + wire.dice() / 2))


async def _connection(
    wire: Wire, path: str, query: Query | None, last: str | None
) -> AsyncGenerator[tuple[str, Any], None]:
    """Yield the ID and the document, if any, of each frame of one connection. Partial frames are ignored."""
    import httpx2  # the import of the wire has checked that it is installed

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
