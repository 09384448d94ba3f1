"""The workflow systems under measurement, and what was seen of each on a machine of two cores."""

from functools import partial

from bench.peers.catalogue import System

_workflows = partial(System, program="workflows")

SYSTEMS = (
    _workflows(
        "keptwork", "postgres", 1_500, every_round=("workflows",), note="one process, 200 slots; commits durable"
    ),
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
    _workflows("keptwork", "sqlite", 4_000, every_round=("workflows",), note="one process, 200 slots; commits durable"),
    _workflows("dbos", "sqlite", 97, note="as on PostgreSQL"),
    _workflows(
        "restate",
        "server",
        357,
        {"rate": 357, "p50_ms": 3.0},
        every_round=("workflows",),
        note="handlers in Node, 200 calls at a time; 4 partitions, the log of a single node, with fsync. Its 3 ms,"
        " once seen alone, were not to be had here. No better than this were: the log of a cluster; 1 or 2 partitions;"
        " 1 or 4 threads; commits in the background; RocksDB without statistics or compression; protocol v7; Node 24;"
        " one core for all. Without fsync it is 5.5 ms; with it, its server takes more than 5 ms of a core for a lone"
        " workflow",
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
