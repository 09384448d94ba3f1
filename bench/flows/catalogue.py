"""The systems under measurement, and how each is set up."""

from functools import partial

from bench.peers.catalogue import System

_flows = partial(System, program="flows", every_round=("wide", "chain"))

SYSTEMS = (
    _flows("detent", "postgres", 500, note="one worker process with its defaults, as `detent work`; commits durable"),
    _flows("detent", "sqlite", 500, note="as on PostgreSQL"),
    _flows(
        "dbos", "postgres", 100, note="wide: a workflow that awaits all steps at once; chain: one step after another"
    ),
    _flows("dbos", "sqlite", 100, note="as on PostgreSQL"),
    _flows(
        "prefect",
        "server",
        8,
        note="tasks of one flow on its event loop, results persisted to files; its SQLite does not sync every commit",
    ),
    _flows(
        "parsl",
        "processes",
        300,
        note="HighThroughputExecutor of two workers, results checkpointed as each task exits, without a sync; the flow"
        " itself lives in the memory of the program that started it and ends with it",
    ),
    _flows(
        "parsl",
        "threads",
        3_000,
        note="as above in threads of the program itself: no other process takes part, so a crash loses all that runs",
    ),
)
