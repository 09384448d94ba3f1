"""The systems under measurement, and how each is set up."""

from functools import partial

from bench.peers.catalogue import System

_flows = partial(System, program="flows", every_round=("wide", "chain"))
_inline = partial(_flows, "keptwork", program="inline", form="inline")
_in_code = partial(_flows, "keptwork", program="steps", form="in code")

SYSTEMS = (
    _flows(
        "keptwork",
        "postgres",
        500,
        note="a flow, each step a job that any worker may take; one worker process with its defaults; commits durable",
    ),
    _flows("keptwork", "sqlite", 500, note="as on PostgreSQL"),
    _inline(
        "postgres",
        3_000,
        note="a flow, too, and as durable; its steps say that they are short and have no effects, so that a job carries"
        " out many of them (inline: true), as Parsl takes it of all its functions",
    ),
    _inline("sqlite", 3_000, note="as on PostgreSQL"),
    _in_code("postgres", 1_000, note="steps that a job awaits, as programs for DBOS and Parsl are written; as durable"),
    _in_code("sqlite", 1_000, note="as on PostgreSQL"),
    _in_code(
        "unsynced",
        3_000,
        note="the same with synchronous=normal: results outlive a killed process, a power cut may take the last",
    ),
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
        note="as above in threads of the program itself, which a crash ends with all that runs; results are not synced",
    ),
)
