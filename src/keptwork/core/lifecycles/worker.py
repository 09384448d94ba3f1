"""The worker: a process that claims jobs, under a supervisor."""

from keptwork.core.decide import Lifecycle, Move, State, Verb

IDLE = State("IDLE")
RUNNING = State("RUNNING", started=True)
PAUSED = State("PAUSED")
COMPLETED = State("COMPLETED", final=True)
FAILED = State("FAILED", final=True)
TERMINATED = State("TERMINATED", final=True)

WORKER = Lifecycle(
    name="worker",
    table="workers",
    prefix="w",
    states=(IDLE, RUNNING, PAUSED, COMPLETED, FAILED, TERMINATED),
    moves=(
        Move("register", Verb.CREATE, (), IDLE, when="a process or the API creates it"),
        Move("start_task", Verb.START, (IDLE,), RUNNING, when="first claim; has capacity"),
        Move("pause", Verb.PAUSE, (RUNNING,), PAUSED, when="supervisor, or resource exhaustion"),
        Move("resume", Verb.RESUME, (PAUSED,), RUNNING, when="supervisor"),
        Move("complete_tasks", Verb.SUCCEED, (RUNNING,), COMPLETED, when="drained, no pending task"),
        Move("error_unrecoverable", Verb.FAIL, (RUNNING,), FAILED, when="error not retryable"),
        Move(
            "terminate",
            Verb.TERMINATE,
            (IDLE, RUNNING, PAUSED, COMPLETED, FAILED),
            TERMINATED,
            when="supervisor, missed heartbeats, or drained before any work",
            leaves_final=True,
        ),
    ),
)
