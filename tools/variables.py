"""The environment variables that Keptwork reads or sets for programs, each with its meaning.

Each variable is read in one place. This list is the source of the reference of settings, and a test compares it with
the code.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Whose = Literal["ours", "others", "told", "inside"]


class Variable(NamedTuple):
    """A variable: its name, its group, and its meaning.

    Users set `ours`. `others` are shared conventions that Keptwork honors. A tool receives `told`. Keptwork's processes
    pass `inside` to each other.
    """

    name: str
    whose: Whose
    meaning: str


VARIABLES = (
    Variable("KEPTWORK_DB", "ours", "The database where no `--db` names one; else `sqlite:///keptwork.db`."),
    Variable("KEPTWORK_CONFIG", "ours", "The configuration where no `--config` names one; else `./keptwork.toml`."),
    Variable("KEPTWORK_SKILLS", "ours", "The folder of your own skills, instead of `skills` under `[agents]`."),
    Variable(
        "KEPTWORK_CONNECT_TIMEOUT",
        "ours",
        "Seconds after which a PostgreSQL server that is silent is given up; else 10.",
    ),
    Variable(
        "KEPTWORK_LOG", "ours", "How to log where no `--log` says so: `text` or `json`. With `json`, errors are JSON."
    ),
    Variable("KEPTWORK_LOG_LEVEL", "ours", "From which level on others than Keptwork are logged: `debug` to `error`."),
    Variable("KEPTWORK_DEBUG", "ours", "With `1`, an error of the command line comes with its traceback."),
    Variable("KEPTWORK_RECORD", "ours", "With `1`, the provider `recorded` asks and keeps the answers, like `record`."),
    Variable("KEPTWORK_SERVER", "ours", "The address of the HTTP API, for the client of the library."),
    Variable("KEPTWORK_KEY", "ours", "The key to the HTTP API, for that client and for `keptwork work --server`."),
    Variable(
        "KEPTWORK_KEY_FILE", "ours", "A file with that key that only you can read, where `KEPTWORK_KEY` is not set."
    ),
    Variable(
        "KEPTWORK_WEBHOOK_SECRET",
        "ours",
        "The secret that messages to webhooks are signed with, 16 bytes or more; a flow may name another variable that "
        "begins with `KEPTWORK_WEBHOOK_SECRET_`. With `_FILE` after its name: the file that holds it.",
    ),
    Variable(
        "KEPTWORK_WEBHOOK_ALLOW", "ours", "Hosts of webhooks that may be private and without TLS: `host[:port],…`."
    ),
    Variable(
        "KEPTWORK_SEAL_KEY",
        "ours",
        "The secret that the event log is sealed with. Of several, separated by commas, the first seals, and all are "
        "known when seals are checked.",
    ),
    Variable(
        "ANTHROPIC_API_KEY", "others", "The key to Anthropic; where it is set and no provider is named, it is asked."
    ),
    Variable("OPENAI_API_KEY", "others", "The key to OpenAI, or to a server like it; the same, after Anthropic."),
    Variable("NO_COLOR", "others", "No colours, and `keptwork run` writes lines instead of a picture."),
    Variable("COLUMNS", "others", "How wide the output is made, also where it is no terminal."),
    Variable(
        "PGTARGETSESSIONATTRS", "others", "Which of several PostgreSQL servers is taken; else one that accepts writes."
    ),
    Variable("PGOPTIONS", "others", "Options for the sessions of `pg_dump` and `pg_restore`, beside our own."),
    Variable("PATH", "others", "Where `pg_dump` and `pg_restore` are looked up first."),
    Variable("OTEL_SDK_DISABLED", "others", "With `true`, no spans are recorded."),
    Variable("OTEL_TRACES_EXPORTER", "others", "Where spans go: `otlp`, `console` (stderr) or `none`."),
    Variable("OTEL_EXPORTER_OTLP_ENDPOINT", "others", "The collector; where it is set, spans go there."),
    Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "others", "The same for spans alone; it wins."),
    Variable("OTEL_EXPORTER_OTLP_PROTOCOL", "others", "Only `http/protobuf` is known; with another, nothing is sent."),
    Variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "others", "The same for spans alone; it wins."),
    Variable(
        "OTEL_SERVICE_NAME",
        "others",
        "The name of the service; else `keptwork-server`, `keptwork-worker` and the like.",
    ),
    Variable("OTEL_RESOURCE_ATTRIBUTES", "others", "Attributes of the service, its name (`service.name=`) among them."),
    Variable("KEPTWORK_JOB_ID", "told", "The job that runs it."),
    Variable("KEPTWORK_IDEMPOTENCY_KEY", "told", "The same in every attempt, to tell a repetition by."),
    Variable("KEPTWORK_FENCING_TOKEN", "told", "Grows with every claim of the job: a sink can refuse a lower one."),
    Variable("KEPTWORK_CORRELATION_ID", "told", "What the job belongs to."),
    Variable("KEPTWORK_TRACE_ID", "told", "The trace it belongs to, if any."),
    Variable("TRACEPARENT", "told", "The header that continues that trace (W3C Trace Context)."),
    Variable("KEPTWORK_SUPERVISOR", "inside", "The supervisor that started a worker."),
    Variable("KEPTWORK_SUPERVISOR_PID", "inside", "Its process."),
    Variable("KEPTWORK_SUPERVISOR_FD", "inside", "The pipe to it."),
)
