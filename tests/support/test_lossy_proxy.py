"""The line that loses answers: whoever hears nothing may ask again at once."""

from __future__ import annotations

from contextlib import closing

import asyncpg
import pytest

from tests.support.lossy_proxy import LossyProxy

ROUNDS = 50


async def test_when_an_answer_is_lost_inside_a_transaction_the_server_has_undone_it(postgres_url: str) -> None:
    hand = await asyncpg.connect(postgres_url)
    await hand.execute("CREATE TABLE rows AS SELECT 1 AS id")
    with closing(LossyProxy(postgres_url)) as proxy:
        for _ in range(ROUNDS):
            caller = await asyncpg.connect(proxy.url)
            await caller.execute("BEGIN")
            proxy.lose(1)
            with pytest.raises(asyncpg.ConnectionDoesNotExistError):
                await caller.execute("UPDATE rows SET id = 2")
            assert await hand.fetchval("SELECT id FROM rows FOR UPDATE SKIP LOCKED") == 1
        assert proxy.lost == ROUNDS
    await hand.close()
