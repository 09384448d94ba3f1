"""Requests a second of `keptwork serve`, beside the bare server, turn by turn on databases of their own."""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.http import streams
from bench.lifecycle import prepared
from bench.peers.processes import end
from bench.peers.server import free_ports
from keptwork.access import api_keys
from keptwork.store import open_store

MARK = 0.70
CONNECTIONS = 16
WARM_UP = 0.5
JOBS = 200
WIDTH = 110
OPERATIONS = ("enqueue", "show", "list of 50")
UNREACHED = ("--requests-per-second", "1000000", "--burst", "1000000")
"""Requests are counted as ever, but none is refused."""


class Server(NamedTuple):
    """One that answers, and the ids of jobs that it has."""

    port: int
    token: str
    pid: int
    ids: list[str]


class Figures(NamedTuple):
    rate: float
    p50_ms: float
    p99_ms: float


def measure(seconds: float, rounds: int) -> bool:
    """Prints the tables; whether the product reaches the mark everywhere, and holds its streams within bounds."""
    table = Table(
        "store", "request", "bare, req/s", "p50, ms", "p99, ms", "keptwork, req/s", "p50, ms", "p99, ms", "of bare",
        title=f"One server process, {CONNECTIONS} connections",
    )  # fmt: skip
    for column in table.columns[2:]:
        column.justify = "right"
    shares = []
    for store in ("sqlite", "postgres"):
        for operation, (bare, product) in compared(store, seconds, rounds).items():
            shares.append(product.rate / bare.rate)
            cells = [
                f"{figure:,.0f}" if place == 0 else f"{figure:.1f}"
                for one in (bare, product)
                for place, figure in enumerate(one)
            ]
            table.add_row(store, operation, *cells, f"{shares[-1]:.0%}")
            print(f"{store}, {operation}: {shares[-1]:.0%}", file=sys.stderr)
    Console(width=WIDTH).print(table)
    return all([min(shares) >= MARK, streams.measure()])


def compared(store: str, seconds: float, rounds: int) -> dict[str, tuple[Figures, Figures]]:
    """The medians of bare and product."""
    found: dict[str, tuple[list[Figures], list[Figures]]] = {one: ([], []) for one in OPERATIONS}
    with ExitStack() as opened:
        pair = [opened.enter_context(server(store)) for server in (bare, product)]
        for _ in range(rounds):
            for operation in OPERATIONS:
                for one, figures in zip(pair, found[operation], strict=True):
                    figures.append(loaded(one, operation, seconds))
    return {one: (middle(both[0]), middle(both[1])) for one, both in found.items()}


def middle(many: list[Figures]) -> Figures:
    return Figures(*(statistics.median(column) for column in zip(*many, strict=True)))


def loaded(server: Server, operation: str, seconds: float) -> Figures:
    plan = (requests(server, operation), CONNECTIONS, seconds, WARM_UP)
    command = [sys.executable, "-m", "bench.http.load", str(server.port)]
    done = subprocess.run(command, input=json.dumps(plan), check=True, capture_output=True, text=True)
    return Figures(**json.loads(done.stdout))


def requests(server: Server, operation: str) -> list[str]:
    head = f"Host: x\r\nAuthorization: Bearer {server.token}\r\n"
    if operation == "enqueue":
        body = json.dumps({"kind": "fetch", "payload": {"url": "https://example.org/a/page", "depth": 3}})
        more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        return [f"POST /api/jobs HTTP/1.1\r\n{head}{more}"]
    paths = ["/api/jobs?limit=50"] if operation == "list of 50" else [f"/api/jobs/{id}" for id in server.ids]
    return [f"GET {path} HTTP/1.1\r\n{head}\r\n" for path in paths]


# --- the two servers


@contextmanager
def product(store: str) -> Iterator[Server]:
    """`keptwork serve`, for a key of the first tenant."""
    with prepared(store) as (url, _):
        token = asyncio.run(_key(url))
        with _answering(
            [sys.executable, "-m", "keptwork", "serve", *UNREACHED, "--db", url, "--port"], token
        ) as running:
            yield running


@contextmanager
def bare(store: str) -> Iterator[Server]:
    with prepared(store) as (url, _):
        token = asyncio.run(_key(url))
        with _answering([sys.executable, "-m", "bench.http.bare", url], token, token) as running:
            yield running


async def _key(url: str) -> str:
    store = await open_store(url)
    made = await api_keys.create(store, await store.tenant("default"), "bench", ["admin"], by="bench")
    await store.close()
    return made.secret.value


@contextmanager
def _answering(command: list[str], token: str, *more: str) -> Iterator[Server]:
    """A server process once it answers, with some jobs in it."""
    (port,) = free_ports(1)
    process = subprocess.Popen([*command, str(port), *more], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while not _listens(port):
            assert process.poll() is None, f"the server ended with {process.returncode}"
        yield Server(port, token, process.pid, [_enqueued(port, token) for _ in range(JOBS)])
    finally:
        end([process])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        time.sleep(0.05)
        return False
    return True


def _enqueued(port: int, token: str) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", "/api/jobs", json.dumps({"kind": "fetch", "payload": {"n": 1}}), headers)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    id: str = json.load(answer)["job"]["id"]
    connection.close()
    return id
