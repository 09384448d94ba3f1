"""The courier against a real server: one body for each end of a flow, however often it takes to deliver it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store, open_store
from keptwork.store.contract.outbox import Delivery, NewDelivery
from keptwork.webhooks import http_post, outbox
from keptwork.webhooks import http_post as posting
from keptwork.webhooks.address import Endpoint
from keptwork.webhooks.delivery import LEASE_US, Courier
from tests.support.hook_server import CERTIFICATE, HANG, HOST, LOSE, SECRET, HookServer, Reply, hook_server

OURS = 1
SECOND = 1_000_000


@pytest.fixture(autouse=True)
def deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret, this machine allowed, and no pauses between attempts."""
    monkeypatch.setenv("KEPTWORK_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("KEPTWORK_WEBHOOK_ALLOW", "127.0.0.1")
    monkeypatch.setattr(http_post, "FIRST_PAUSE_US", 0)
    monkeypatch.setattr(posting, "CONNECT_SECONDS", 60.0)


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[Store]:
    """What goes over the line has nothing to do with the database; tests of what does take `database_url`."""
    opened = await open_store(sqlite_url)
    yield opened
    await opened.close()


async def told(store: Store, url: str, flow: int = 1, seq: int = 3) -> NewDelivery:
    body = json.dumps({"id": outbox.name_of("run", flow, seq), "n": flow})
    new = NewDelivery(OURS, "run", flow, seq, "run.succeeded", url, body)
    await store.put_delivery(new)
    return new


async def kept(store: Store, flow: int = 1) -> Delivery:
    (found,) = await store.deliveries(OURS, flow=flow)
    return found


def courier(store: Store, **how: Any) -> Courier:
    return Courier(store, Outage(), lambda: 0.5, **how)


def named(*found: str) -> Any:
    """A resolver that gives these answers, one after the other."""
    answers = [answer.split() for answer in found]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return resolve


def failing(times: int, status: int, **headers: str) -> Any:
    return lambda number: Reply(status, headers) if number <= times else Reply(200)


async def test_a_message_is_signed_and_delivered_once(store: Store) -> None:
    with hook_server() as server:
        new = await told(store, server.url())
        assert await courier(store).run_once() == 1
        assert await courier(store).run_once() == 0
    (got,) = server.got
    assert (got.path, got.body.decode()) == ("/hooks?token=abc", new.body)
    assert got.signed_with(SECRET)
    assert not got.signed_with(SECRET + "?")
    assert got.headers["Keptwork-Event"] == "run.succeeded"
    assert got.name == outbox.name_of("run", 1, 3) == json.loads(got.body)["id"]
    assert got.headers["Content-Type"] == "application/json"
    delivery = await kept(store)
    assert (delivery.state, delivery.attempts, delivery.last_error) == ("delivered", 1, None)


@pytest.mark.parametrize("loss", [LOSE, 503])
async def test_until_it_is_answered_the_same_body_comes_again_under_the_same_name(store: Store, loss: int) -> None:
    with hook_server(failing(3, loss)) as server:
        await told(store, server.url())
        assert await courier(store).run_once() == 4
    assert len({(got.name, got.body) for got in server.got}) == 1
    assert len(server.got) == 4
    assert all(got.signed_with(SECRET) for got in server.got)
    assert (await kept(store)).state == "delivered"


async def test_four_couriers_make_each_attempt_once(database_url: str) -> None:
    stores = [await open_store(database_url) for _ in range(4)]
    with hook_server() as server:
        for flow in range(1, 41):
            await told(stores[0], server.url(), flow)
        made = await asyncio.gather(*[courier(one).run_once() for one in stores])
    assert sum(made) == 40
    assert {one.state for one in await stores[0].deliveries(OURS)} == {"delivered"}
    assert set(Counter(got.name for got in server.got).values()) == {1}
    assert len(server.got) == 40
    for opened in stores:
        await opened.close()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "120"}, 120),
        ({"Retry-After": "9999999999"}, 4 * 3600),
        ({"Date": "Mon, 16 Nov 2026 10:00:00 GMT", "Retry-After": "Mon, 16 Nov 2026 10:05:00 GMT"}, 300),
        ({"Retry-After": "soon"}, 0),
    ],
)
async def test_it_waits_as_long_as_it_is_asked_to_but_not_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], seconds: int
) -> None:
    monkeypatch.setattr(http_post, "FIRST_PAUSE_US", 1_000 * SECOND if not seconds else 0)
    with hook_server(lambda number: Reply(503, headers)) as server:
        await told(store, server.url())
        before = await store.now()
        await courier(store).run_once()
        after = await store.now()
    delivery = await kept(store)
    wait_us = seconds * SECOND or 900 * SECOND
    assert before + wait_us <= delivery.next_at <= after + wait_us
    assert (delivery.state, delivery.last_error) == ("pending", "the answer was 503")
    assert len(server.got) == 1


@pytest.mark.parametrize(("status", "attempts"), [(500, 14), (LOSE, 14), (404, 3)])
async def test_what_is_never_accepted_is_given_up_and_that_is_said(
    store: Store, caplog: pytest.LogCaptureFixture, status: int, attempts: int
) -> None:
    caplog.set_level(logging.WARNING, "keptwork")
    with hook_server(lambda number: Reply(status)) as server:
        await told(store, server.url())
        assert await courier(store).run_once() == attempts
    delivery = await kept(store)
    assert (delivery.state, delivery.attempts, len(server.got)) == ("given_up", attempts, attempts)
    assert f"is given up after {attempts} attempts: " in caplog.text
    assert "token" not in caplog.text


async def test_an_operators_retry_starts_all_over_under_the_same_name(store: Store) -> None:
    with hook_server(failing(6, 404)) as server:
        await told(store, server.url())
        for _ in range(2):
            assert await courier(store).run_once() == 3
            await outbox.retry(store, OURS, outbox.name_of("run", 1, 3))
        assert await courier(store).run_once() == 1
    assert len({got.name for got in server.got}) == 1
    assert ((await kept(store)).state, (await kept(store)).attempts) == ("delivered", 7)


async def test_a_server_that_never_answers_is_given_up_in_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "TOTAL_SECONDS", 0.3)
    monkeypatch.setattr(http_post, "FIRST_PAUSE_US", 1_000 * SECOND)
    with hook_server(lambda number: Reply(HANG)) as server:
        await told(store, server.url())
        await courier(store).run_once()
    assert (await kept(store)).last_error == "no answer within 0.3 s"


BROKEN = {
    "no http": b"SSH-2.0-OpenSSH\r\n",
    "a long line": b"HTTP/1.1 200 " + b"a" * 100_000,
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000,
    "only interim": b"HTTP/1.1 103 Early\r\n\r\n" * 50,
    "http 2": b"HTTP/2 200\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_is_none_is_no_delivery(store: Store, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(http_post, "FIRST_PAUSE_US", 1_000 * SECOND)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(BROKEN[name])
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1") as server:
        await told(store, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        await courier(store).run_once()
    delivery = await kept(store)
    assert delivery.state == "pending"
    assert delivery.last_error is not None
    assert delivery.last_error.isprintable()


async def test_interim_answers_are_passed_over(store: Store) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 202 Fine\r\n\r\n"
        )
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1") as server:
        await told(store, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        await courier(store).run_once()
    assert (await kept(store)).state == "delivered"


# --- secrets


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("KEPTWORK_WEBHOOK_SECRET", "", "there is no secret to sign with: set KEPTWORK_WEBHOOK_SECRET"),
        ("KEPTWORK_WEBHOOK_ALLOW", "10.0.0.0/8", "'10.0.0.0/8' is no host to allow"),
    ],
)
async def test_where_the_deployment_is_at_fault_nothing_is_sent_or_given_up_and_it_is_said_what_is_missing(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(http_post, "FIRST_PAUSE_US", 1_000 * SECOND)
    with hook_server() as server:
        await told(store, server.url())
        await courier(store).run_once()
    assert server.connections == 0
    delivery = await kept(store)
    assert delivery.state == "pending"
    assert says in str(delivery.last_error)


# --- addresses


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The certificate of the test's server is one this machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    posting.tls.cache_clear()
    yield
    posting.tls.cache_clear()


async def test_by_https_the_certificate_must_be_the_names(
    store: Store, monkeypatch: pytest.MonkeyPatch, trusted: None
) -> None:
    monkeypatch.setenv("KEPTWORK_WEBHOOK_ALLOW", f"{HOST},other.example")
    with hook_server(tls=True) as server:
        await told(store, server.url(HOST), flow=1)
        await told(store, server.url("other.example"), flow=2)
        await courier(store, resolve=named("127.0.0.1")).run_once()
    (got,) = server.got
    assert got.headers["Host"] == f"{HOST}:{server.port}"
    assert (await kept(store, 1)).state == "delivered"
    assert "the certificate is not valid" in str((await kept(store, 2)).last_error)


async def test_a_certificate_nobody_trusts_gets_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPTWORK_WEBHOOK_ALLOW", HOST)
    posting.tls.cache_clear()
    with hook_server(tls=True) as server:
        await told(store, server.url(HOST))
        await courier(store, resolve=named("127.0.0.1")).run_once()
    assert server.got == []
    assert "the certificate is not valid" in str((await kept(store)).last_error)


@pytest.mark.parametrize("resolved", ["127.0.0.1", "93.184.216.34 ::ffff:127.0.0.1"])
async def test_a_name_with_a_private_address_gets_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, trusted: None, resolved: str
) -> None:
    monkeypatch.delenv("KEPTWORK_WEBHOOK_ALLOW")
    with hook_server(tls=True) as server:
        await told(store, server.url(HOST))
        assert await courier(store, resolve=named(resolved)).run_once() == 3
    assert server.connections == 0
    delivery = await kept(store)
    assert delivery.state == "given_up"
    assert "which is not public" in str(delivery.last_error)


async def test_a_url_that_is_no_longer_allowed_is_refused_where_it_is_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hook_server() as server:
        await told(store, server.url())
        monkeypatch.delenv("KEPTWORK_WEBHOOK_ALLOW")
        await courier(store).run_once()
    assert server.connections == 0
    assert (await kept(store)).state == "given_up"


async def test_a_redirect_to_this_machine_is_not_followed(store: Store) -> None:
    with hook_server(address="127.0.0.2") as private:
        moved = Reply(307, {"Location": private.url()})
        with hook_server(lambda number: moved) as server:
            await told(store, server.url())
            await courier(store).run_once()
    assert (len(server.got), private.connections) == (3, 0)
    assert (await kept(store)).last_error == "the answer was 307"


async def rebound(store: Store, monkeypatch: pytest.MonkeyPatch) -> tuple[HookServer, HookServer]:
    """A name that has a public address when it is looked at and a private one right after. Which of this machine's
    addresses is public is up to this test."""
    monkeypatch.delenv("KEPTWORK_WEBHOOK_ALLOW")
    monkeypatch.setattr(
        "keptwork.webhooks.address.refusal", lambda address: None if address == "127.0.0.2" else "not public"
    )
    with (
        hook_server(tls=True, address="127.0.0.2") as public,
        hook_server(tls=True, address="127.0.0.1", port=public.port) as private,
    ):
        await told(store, public.url(HOST))
        await courier(store, resolve=named("127.0.0.2", "127.0.0.1")).run_once()
    return public, private


async def test_a_name_that_is_bound_to_another_address_meanwhile_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, trusted: None
) -> None:
    public, private = await rebound(store, monkeypatch)
    assert (len(public.got), private.connections) == (1, 0)
    assert (await kept(store)).state == "delivered"


async def test_the_test_above_notices_a_courier_that_resolves_the_name_a_second_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, trusted: None
) -> None:
    shipped, again = posting.post, named("127.0.0.1")

    async def by_name(endpoint: Endpoint, _: Sequence[str], *rest: Any) -> Any:
        return await shipped(endpoint, await again(endpoint.host, endpoint.port), *rest)

    monkeypatch.setattr("keptwork.webhooks.delivery.post", by_name)
    public, private = await rebound(store, monkeypatch)
    assert (len(public.got), len(private.got)) == (0, 1)


async def test_names_are_resolved_by_the_machine_and_a_resolver_that_hangs_holds_up_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "127.0.0.1" in await posting.resolve("localhost", 80)
    with pytest.raises(OSError):  # noqa: PT011 - what it says differs from machine to machine
        await posting.resolve("nobody.invalid", 80)
    forever = threading.Event()

    def hang(*_: object, **__: object) -> list[Any]:
        forever.wait(60)
        return []

    monkeypatch.setattr("socket.getaddrinfo", hang)
    monkeypatch.setattr(posting, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(http_post, "FIRST_PAUSE_US", 1_000 * SECOND)
    await told(store, "https://slow.example/")
    await courier(store).run_once()
    assert await asyncio.to_thread(lambda: True)
    assert (await kept(store)).last_error == "its host cannot be resolved: no answer"
    forever.set()


# --- as a duty of workers


async def test_a_worker_delivers_beside_its_jobs_and_before_it_ends_idle(database_url: str) -> None:
    async with Keptwork(database_url) as app:

        @app.job()
        async def nothing(ctx: Any) -> None:
            """Nothing."""

        with hook_server() as server:
            await told(await app.open(), server.url())
            await app.work(until_idle=True)
    assert len(server.got) == 1


async def test_a_courier_that_is_stopped_ends_what_is_about_to_be_answered(store: Store) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(number: int) -> Reply:
        loop.call_soon_threadsafe(begun.set)
        return Reply(200)

    with hook_server(slow) as server:
        await told(store, server.url())
        duty = asyncio.create_task(courier(store).run())
        async with asyncio.timeout(60):
            await begun.wait()
        duty.cancel()
        await asyncio.wait({duty})
    delivery = await kept(store)
    assert (delivery.state, len(server.got)) == ("delivered", 1)
    assert LEASE_US > 2 * posting.TOTAL_SECONDS * SECOND


async def test_a_timestamp_is_the_databases_time(store: Store) -> None:
    with hook_server() as server:
        await told(store, server.url())
        before = await store.now()
        await courier(store).run_once()
        after = await store.now()
    assert before // SECOND <= int(server.got[0].headers["Keptwork-Timestamp"]) <= after // SECOND
