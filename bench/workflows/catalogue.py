"""The workflow systems under measurement, and what was seen of each on a machine of two cores."""

from functools import partial

from bench.peers.catalogue import System

_workflows = partial(System, program="workflows")

SYSTEMS = (
    _workflows("detent", "postgres", 1_500, every_round=("workflows",), note="one process, 200 slots; commits durable"),
    _workflows(
        "absurd",
        "postgres",
        300,
        {"rate": 204},
        every_round=("workflows",),
        note="one process, 8 threads with a connection each, polls every 10 ms; commits durable",
    ),
    _workflows(
        "dbos",
        "postgres",
        97,
        {"rate": 97},
        note="16 threads, started in the process that runs them; a crash is recovered when that process starts again",
    ),
    _workflows("detent", "sqlite", 4_000, every_round=("workflows",), note="one process, 200 slots; commits durable"),
    _workflows("dbos", "sqlite", 97, note="as on PostgreSQL"),
    _workflows(
        "restate",
        "server",
        357,
        {"rate": 357, "p50_ms": 3.0},
        every_round=("workflows",),
        note="handlers in Node, 200 calls at a time; 4 partitions, log with fsync, as it comes on one node",
    ),
    _workflows(
        "prefect",
        "server",
        1.7,
        {"rate": 1.7},
        note="flows called in one process, 10 at a time; its SQLite does not sync every commit, states of tasks reach"
        " it later as events, and a flow whose process dies is not taken up by another",
    ),
)
