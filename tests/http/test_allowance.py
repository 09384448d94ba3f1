"""What a tenant may ask of a server: how often, how much at once, how many streams and waiting jobs; and guesses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from keptwork.access.scopes import Allowance
from keptwork.errors import BadInput, QueueFull, TooManyAtOnce, TooManyRequests, TooManyStreams, TooManyWrongKeys
from keptwork.http import rate_limit as guessing
from keptwork.http.rate_limit import COUNT_SECONDS, FULL_SECONDS, KNOWN_SECONDS, Guesses, Limits, Room, Turnstile
from tests.http.conftest import THEIRS, Keys, Running, serving, two_tenants
from tests.http.limited import limit
from tests.http.wire import connected, head

TOO_MANY = "urn:keptwork:problem:too-many-requests"


class Time:
    """A clock that goes when it is told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def nothing_of_its_own(tenant_id: int) -> str | None:
    return None


# --- over HTTP


def test_a_tenant_that_asks_too_often_is_told_when_to_come_again_and_its_neighbour_is_served(running: Running) -> None:
    limit(running, requests_per_second=1, burst=3)
    with running.client() as client, running.client(THEIRS) as neighbour:
        answers = [client.get("/api/queues") for _ in range(5)]
        assert [one.status_code for one in answers] == [200, 200, 200, 429, 429]
        refused = answers[-1]
        assert refused.json()["type"] == TOO_MANY
        assert refused.headers["Retry-After"] == "1"
        assert neighbour.get("/api/queues").status_code == 200


def test_every_answer_to_a_known_key_says_how_its_tenant_stands(running: Running) -> None:
    limit(running, requests_per_second=10, burst=30)
    with running.client() as client, running.client(None) as nobody:
        answer, missing = client.get("/api/queues"), client.get("/api/jobs/none")
        assert "RateLimit" not in nobody.get("/healthz").headers
    assert answer.headers["RateLimit-Policy"] == '"tenant";q=30;w=3'
    left, full = re.fullmatch(r'"tenant";r=(\d+);t=(\d+)', answer.headers["RateLimit"]).groups()  # type: ignore[union-attr]
    assert (int(left), int(full)) == (29, 1)
    assert missing.headers["RateLimit"].startswith('"tenant";r=2')


def test_a_refused_request_with_a_body_leaves_its_connection_of_use(running: Running) -> None:
    limit(running, requests_per_second=1, burst=1)
    with running.client() as client:
        assert client.get("/api/queues").status_code == 200
        for _ in range(3):
            refused = client.post("/api/jobs", json={"kind": "a", "payload": {"x": "y" * 1_000_000}})
            assert refused.status_code == 429
            assert "close" not in refused.headers.get("Connection", "")
        assert client.get("/healthz").status_code == 429  # it counts, whatever is asked for


def test_requests_that_are_under_way_are_bounded_and_let_others_in_when_they_end(running: Running) -> None:
    limit(running, max_in_flight=2)
    slow = head("POST", "/api/jobs", "Content-Type: application/json", "Content-Length: 13", "Connection: close")
    with connected(running) as first, connected(running) as second, running.client() as client:
        for wire in (first, second):
            wire.sendall(slow)
        guest = running.app.state.turnstile._guests
        while (known := guest.get(running.ours)) is None or known.in_flight < 2:
            asyncio.run(asyncio.sleep(0.01))
        refused = client.get("/api/queues")
        assert (refused.status_code, refused.json()["type"]) == (429, TooManyAtOnce.problem())
        for wire in (first, second):
            wire.sendall(b'{"kind": "a"}')
            assert b" 201 " in wire.recv(65536)
        assert client.get("/api/queues").status_code == 200


def test_streams_are_bounded_and_are_not_requests_under_way(running: Running) -> None:
    limit(running, max_in_flight=1, max_streams=2)
    with running.client() as client:
        with client.stream("GET", "/api/events/stream") as one, client.stream("GET", "/api/events/stream") as two:
            lines = one.iter_lines(), two.iter_lines()  # whoever lets go of them ends the stream
            assert [next(said) for said in lines] == ["retry: 1000"] * 2
            third = client.get("/api/events/stream")
            assert (third.status_code, third.json()["type"]) == (429, TooManyStreams.problem())
            assert client.get("/api/queues").status_code == 200
        guest = running.app.state.turnstile._guests[running.ours]
        while guest.streams or guest.in_flight:
            asyncio.run(asyncio.sleep(0.01))
        with client.stream("GET", "/api/events/stream") as again:
            assert again.status_code == 200


def test_a_tenant_with_too_many_jobs_that_wait_makes_no_more_but_may_cancel_some(running: Running) -> None:
    limit(running, max_queued=3)
    with running.client() as client:
        ids = [client.post("/api/jobs", json={"kind": "a"}).json()["job"]["id"] for _ in range(3)]
        full = client.post("/api/jobs", json={"kind": "a"}, headers={"Idempotency-Key": "k"})
        assert (full.status_code, full.json()["type"]) == (429, QueueFull.problem())
        assert full.headers["Retry-After"] == "1"
        assert client.post(f"/api/jobs/{ids[0]}/cancel").status_code == 200
        assert client.post(f"/api/jobs/{ids[0]}/retry").status_code == 429  # it was counted just now
        asyncio.run(asyncio.sleep(FULL_SECONDS))
        assert client.post("/api/jobs", json={"kind": "a"}, headers={"Idempotency-Key": "k"}).status_code == 201
        assert running.do(lambda store: store.waiting_jobs(running.ours, 100)) == 3


def test_a_bound_on_waiting_jobs_is_overshot_by_little_however_many_come_at_once(running: Running) -> None:
    limit(running, max_queued=20)
    with running.client() as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: client.post("/api/jobs", json={"kind": "a"}).status_code, range(60)))
    assert set(answers) == {201, 429}
    assert 20 <= answers.count(201) <= 20 + 16  # no more than were under way at the last count


# --- guesses


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that hears five wrong keys a minute."""
    limits = Limits(failed_keys_per_minute=5)
    with serving(f"sqlite:///{tmp_path_factory.mktemp('guarded')}/keptwork.db", Keys(), limits) as started:
        two_tenants(started)
        yield started


def test_an_address_that_guesses_keys_is_told_to_wait_and_who_was_known_there_before_is_not(guarded: Running) -> None:
    with guarded.client() as known, guarded.client("kw_guess") as guessing, guarded.client(THEIRS) as new:
        assert known.get("/api/queues").status_code == 200
        answers = [guessing.get("/api/queues") for _ in range(7)]
        assert [one.status_code for one in answers] == [401] * 5 + [429] * 2
        assert answers[-1].json()["type"] == TooManyWrongKeys.problem()
        assert int(answers[-1].headers["Retry-After"]) in range(1, 13)
        assert known.get("/api/queues").status_code == 200
        assert new.get("/api/queues").status_code == 429  # nobody can tell it from a guess without looking it up
        with guarded.client(None) as nobody:
            assert nobody.get("/healthz").status_code == 200
            assert nobody.get("/api/queues").status_code == 401


def test_nobodys_body_is_neither_kept_nor_judged(running: Running) -> None:
    with running.client(None) as nobody:
        for content in (b"{", b"[" * 10_000, b" " * 3_000_000):
            answer = nobody.post("/api/jobs", content=content, headers={"Content-Type": "text/plain"})
            assert answer.status_code == (413 if len(content) > 2_000_000 else 401)


def test_guesses_take_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "MOST_ADDRESSES", 10)
    monkeypatch.setattr(guessing, "MOST_KEYS", 10)
    guesses = Guesses(1, Time())
    for number in range(100):
        guesses.wrong(f"10.0.0.{number}")
        guesses.wrong(f"2001:db8:{number}::1")
        guesses.right(f"kw_{number}")
    assert (len(guesses._buckets), len(guesses._good)) == (10, 10)


def test_addresses_of_one_network_of_ipv6_are_one() -> None:
    clock = Time()
    guesses = Guesses(2, clock)
    for number in range(2):
        guesses.wrong(f"2001:db8::{number}")
    with pytest.raises(TooManyWrongKeys):
        guesses.insist_few("2001:db8::77", "kw_x")
    guesses.insist_few("2001:db8:0:1::77", "kw_x")
    clock.now += 30
    guesses.insist_few("2001:db8::77", "kw_x")


# --- by itself, with a clock of its own


async def test_the_rate_is_what_was_said_in_the_long_run() -> None:
    clock = Time()
    turnstile = Turnstile(Allowance(requests_per_second=10, burst=20), nothing_of_its_own, clock)
    let_in = 0
    for _ in range(1_000):  # a hundred a second, for ten seconds
        clock.now += 0.01
        try:
            (await turnstile.enter(1)).leave()
        except TooManyRequests:
            continue
        let_in += 1
    assert let_in in range(118, 121)


async def test_limits_of_a_tenant_are_read_again_after_a_while_and_a_spoilt_row_locks_nobody_out() -> None:
    clock, own = Time(), {"text": '{"max_in_flight": 1}'}

    async def read(tenant_id: int) -> str | None:
        return own["text"]

    turnstile = Turnstile(Allowance(), read, clock)
    inside = await turnstile.enter(1)
    for spoilt in ("{", '{"max_in_flight": "many"}', '{"max_in_flight": -1}', "[1]"):
        own["text"] = spoilt
        clock.now += KNOWN_SECONDS
        with pytest.raises(TooManyAtOnce):
            await turnstile.enter(1)
    own["text"] = "{}"
    clock.now += KNOWN_SECONDS
    assert (await turnstile.enter(1)).allowance == Allowance()
    inside.leave()


async def test_a_visit_that_leaves_twice_is_counted_once() -> None:
    turnstile = Turnstile(Allowance(), nothing_of_its_own)
    visit = await turnstile.enter(1)
    visit.stay()
    visit.stay()
    visit.leave()
    visit.leave()
    guest = await turnstile.guest(1)
    assert (guest.in_flight, guest.streams) == (0, 0)


async def test_waiting_jobs_are_counted_seldom_while_there_is_room_and_once_a_second_when_there_is_none() -> None:
    clock, waiting, counted = Time(), list[int](), list[int]()

    async def count(tenant_id: int, most: int) -> int:
        counted.append(tenant_id)
        return min(len(waiting), most)

    room = Room(count, clock)
    for number in range(1_000):
        await room.take(1, 1_000)
        waiting.append(number)
    assert len(counted) < 25
    counted.clear()
    for _ in range(100):
        with pytest.raises(QueueFull):
            await room.take(1, 1_000)
    assert len(counted) == 1
    waiting.clear()
    clock.now += FULL_SECONDS
    await room.take(1, 1_000)
    waiting.extend(range(1_000))  # by another way
    clock.now += COUNT_SECONDS
    with pytest.raises(QueueFull):
        await room.take(1, 1_000)
    await room.take(1, 0)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "1", 1 << 60])
def test_a_bound_is_a_whole_number(bad: object) -> None:
    with pytest.raises(BadInput, match="max_queued is"):
        replace(Allowance(), max_queued=bad)  # type: ignore[arg-type]


def test_the_limits_of_another_tenant_are_its_own(running: Running) -> None:
    limit(running, requests_per_second=1, burst=1)
    with running.client(THEIRS) as other:
        assert [other.get("/api/queues").status_code for _ in range(5)] == [200] * 5
