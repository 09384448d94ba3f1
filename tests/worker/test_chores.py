"""What a worker does beside its jobs: it sweeps when it is its turn, and says what it is doing."""

from __future__ import annotations

import json

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB, WORKER
from tests.worker.scene import eventually, only_worker, working


async def test_a_worker_sweeps_what_its_application_does_not_keep(database_url, monkeypatch):
    monkeypatch.setattr("keptwork.maintenance.retention.FIRST_LOOK_SECONDS", 1e6)
    async with Keptwork(database_url, keep_finished=0) as app:

        @app.job()
        async def greet(ctx): ...

        plain, keyed = await greet.enqueue(), await greet.enqueue(_key="order-17")
        await app.work(until_idle=True)
        store = await app.open()

        async def gone() -> bool:
            return await store.get(JOB, plain.key, 1) is None

        monkeypatch.setattr("keptwork.maintenance.retention.FIRST_LOOK_SECONDS", 0.01)
        async with working(app):
            await eventually(gone)
        assert await store.get(JOB, keyed.key, 1)
        assert (await greet.enqueue(_key="order-17")).key == keyed.key


async def test_a_worker_says_what_it_is_doing(app, monkeypatch):
    monkeypatch.setattr("keptwork.workers.heartbeat.BEAT_SECONDS", 0.05)
    store = await app.open()
    async with working(app, concurrency=3):
        id = await only_worker(app)

        async def seen() -> bool:
            return bool(await store.telemetry(WORKER, id, 1))

        await eventually(seen)
        beat = (await store.telemetry(WORKER, id, 1))[0]
    said = json.loads(beat.payload)
    assert (beat.kind, said["in_hand"], said["settled"], said["concurrency"]) == ("worker_heartbeat", 0, 0, 3)
    assert 10 << 20 < said["memory_bytes"] < 1 << 30
