"""`keptwork agent`: run one agent task in this process, with a worker for that task only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import run_session, screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator
from keptwork.cli.tools import File as Config
from keptwork.core.lifecycles import AGENT, JOB
from keptwork.core.lifecycles.agent import COMPLETED
from keptwork.errors import AlreadyDecided, BadInput, InvalidTransition
from keptwork.observability import logs, otel
from keptwork.store.contract.waits import APPROVAL

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.handles_agent import AgentHandle, Ask


LARGEST_SCHEMA = 256 << 10

Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="Task for the agent. Use - to read stdin.")]
Tier = Annotated[
    str | None,
    typer.Option(metavar="TIER", help="Model tier: haiku, sonnet, or opus. Default: chosen by task difficulty."),
]
Skill = Annotated[str | None, typer.Option(metavar="NAME", help="Skill. Default: chosen from the task text.")]
SchemaFile = Annotated[
    Path | None, typer.Option("--schema", metavar="FILE", help="JSON Schema that the answer must match.")
]
Retries = Annotated[int, typer.Option(metavar="N", help="Maximum retries of a failed model call.")]
Resume = Annotated[str | None, typer.Option("--resume", metavar="ID", help="ID of the unfinished agent job to resume.")]
Budget = Annotated[str | None, typer.Option("--budget", metavar="USD", help="Maximum cost in US dollars.")]


def agent(
    text: Text = None,
    tier: Tier = None,
    skill: Skill = None,
    schema: SchemaFile = None,
    max_retries: Retries = 3,
    budget: Budget = None,
    resume: Resume = None,
    config: Config = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Run an agent task. Streams the answer, then shows the model, duration, and cost.

    Exit code 0 if there is an answer, 1 if there is none, 2 for invalid input, 130 if it was interrupted. Ctrl-C
    cancels the task. The answer goes to stdout, everything else to stderr. With --json, one document goes to stdout at
    the end.
    """

    session = Session(db, tenant, config, as_json)
    if resume is not None:
        if text is not None:
            raise BadInput(what="--resume goes on with what was asked before; leave out the text")
        with otel.traced("keptwork-agent"):
            raise typer.Exit(asyncio.run(session.resumed(resume)))
    asked = _text(text)
    ask: Ask = {"tier": tier, "skill": skill, "schema": _schema(schema), "max_retries": max_retries}
    ask |= {"budget_usd": budget, "queue": f"agent-{secrets.token_hex(8)}", "actor": operator()}
    with otel.traced("keptwork-agent"):
        raise typer.Exit(asyncio.run(session.started(asked, ask)))


def _text(given: str | None) -> str:
    """Return the task text. Reject an invalid text before anything is stored."""
    from keptwork.agents.commands import LONGEST_DESCRIPTION, insist_fit

    if given is None:
        raise BadInput(what='say what the agent is to do, as in: keptwork agent "Summarise the changelog"')
    said = sys.stdin.read(LONGEST_DESCRIPTION + 1) if given == "-" else given
    insist_fit(said)
    return said


def _schema(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        if file.stat().st_size > LARGEST_SCHEMA:
            raise BadInput(what=f"{file} is larger than {LARGEST_SCHEMA >> 10} KiB")
        found = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadInput(what=f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(what=f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(what=f"{file} is no JSON Schema: it must be an object")
    return found


# Run one agent job in this process, stream its answer, and show its outcome.


FAILED, INTERRUPTED = 1, 130
LOOK_SECONDS = 0.1
OFFLINE = "offline"


class Session:
    """One agent job, from its start or resumption to the exit code."""

    def __init__(self, db: str | None, tenant: str, config: str | None, as_json: bool) -> None:
        self._where = (db, tenant, config)
        self._as_json = as_json
        self._streams = not as_json and sys.stdout.isatty()
        self._streamed = False
        self._interrupted = False
        self._seen: tuple[int, str | None] = (0, None)
        self._skipped: set[int] = set()

    async def started(self, text: str, ask: Ask) -> int:
        """Start a new agent job, run it, and return the exit code."""
        async with self._app() as app:
            return await self._outcome(app, await app.agent(text, **ask))

    async def resumed(self, id: str) -> int:
        """Resume an unfinished agent job and return the exit code."""
        from keptwork.agents import commands as agents
        from keptwork.handles_agent import AgentHandle

        async with self._app() as app:
            row = await agents.find(await app.open(), app.tenant_id, id)
            return await self._outcome(app, AgentHandle(agents.Started(row["id"], row["job_id"]), app))

    def _app(self) -> Keptwork:
        from keptwork.app import Keptwork

        logs.only_trouble_to_stderr()
        db, tenant, config = self._where
        app = Keptwork(db, tenant=tenant, config=config)
        if self._streams:
            app.heard = self._hear
        return app

    async def _outcome(self, app: Keptwork, agent: AgentHandle) -> int:
        jobs = await (await app.open()).rows(JOB, [agent.job_key], ("queue",))
        held = await self._carried_out(app, agent, jobs[0]["queue"]) if jobs else None
        return await self._told(app, agent, held)

    def _hear(self, job: str, piece: str) -> None:
        self._streamed = screen.write(piece, sys.stdout, end="")

    # --- running the job

    async def _carried_out(self, app: Keptwork, agent: AgentHandle, queue: str) -> str | None:
        """Run the job until it finishes or waits for a budget or a reviewer; return what it waits for, or None."""
        work = asyncio.create_task(app.work(queues=[queue], concurrency=1, lease="10s", name="agent"))
        watch = asyncio.create_task(self._watch(app, agent))
        with self._listening(app, agent):
            await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
            app.stop()
            if work.done() and work.exception():
                watch.cancel()
            await asyncio.wait([work])
        work.result()
        return await watch

    async def _watch(self, app: Keptwork, agent: AgentHandle) -> str | None:
        from keptwork.agents import budget_caps

        store = await app.open()
        while True:
            (job,) = await store.rows(JOB, [agent.job_key], ("completed_at", "held_by", "waits_for", "reason"))
            if job["completed_at"] is not None:
                return None
            await self._note_retry(app, agent)
            held, waits = job["held_by"] or "", job["waits_for"] or ""
            if await budget_caps.full(store, app.tenant_id, [held]):
                more = f"keptwork budgets set {held.rpartition(':')[2]} USD; then: keptwork agent --resume {agent.id}"
                return f"{job['reason']}\nGive it more with: {more}"
            if waits.startswith(APPROVAL) and not await self._answered(app):
                return f"it waits for an approval: keptwork approvals list; then: keptwork agent --resume {agent.id}"
            await asyncio.sleep(LOOK_SECONDS)

    async def _note_retry(self, app: Keptwork, agent: AgentHandle) -> None:
        row = await self._row(app, agent)
        if row["retry_count"] > self._seen[0]:
            self._seen = (row["retry_count"], row["reason"])
            self._say(f"try {row['retry_count']} of {row['max_retries'] + 1} failed: {row['reason']}")

    def _say(self, text: str) -> None:
        if self._streamed:
            self._streamed = False
            screen.write("", sys.stdout)
        screen.complain(text)

    async def _answered(self, app: Keptwork) -> bool:
        """Return whether the user at the terminal has approved or rejected all open requests."""
        if self._as_json or not run_session.at_a_terminal():
            return False
        now = await (await app.open()).now()
        for question in await app.approvals():
            if question.id in self._skipped:
                return False
            decision = await run_session.asked(question, now)
            if decision is None:
                self._skipped.add(question.id)
                return False
            decide = app.approve if decision == "approved" else app.reject
            with contextlib.suppress(AlreadyDecided):
                await decide(question.public_id, by=operator())
        return True

    # --- cancellation

    @contextlib.contextmanager
    def _listening(self, app: Keptwork, agent: AgentHandle) -> Iterator[None]:
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Future[None]]()

        def pressed() -> None:
            again, self._interrupted = self._interrupted, True
            tasks.add(asyncio.ensure_future(self._cancel(app, agent, hard=again)))
            if not again:
                self._say("stopping: the call in flight may end; press Ctrl-C again to cut it off")

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, pressed)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _cancel(self, app: Keptwork, agent: AgentHandle, *, hard: bool) -> None:
        from keptwork.jobs import queries

        with contextlib.suppress(InvalidTransition):
            store, why = await app.open(), "somebody pressed Ctrl-C"
            await queries.cancel(store, app.tenant_id, agent.job_id, hard=hard, reason=why, actor=operator())

    # --- output

    async def _told(self, app: Keptwork, agent: AgentHandle, held: str | None) -> int:
        from keptwork.agents import commands as agents

        row = await self._row(app, agent)
        result = await agent.result() if row["state"] == COMPLETED.name else None
        if self._as_json:
            print(json.dumps({**agents.as_json(row), "result": result, "waits_for": held}, indent=2))
        else:
            self._print(result)
            self._say(_summary(row, result))
        if held is not None:
            screen.complain(held)
        return 0 if result is not None else INTERRUPTED if self._interrupted else FAILED

    def _print(self, result: dict[str, Any] | None) -> None:
        """Print the answer, unless it was streamed."""
        if result is not None and not self._streamed:
            print(result["text"], flush=True)

    async def _row(self, app: Keptwork, agent: AgentHandle) -> dict[str, Any]:
        (row,) = await (await app.open()).rows(AGENT, [agent.key])
        return row


def _summary(row: dict[str, Any], result: dict[str, Any] | None) -> str:
    """Return one line: model, tokens, cost, and duration, or why there is no answer."""
    from keptwork.core.ids import public_id
    from keptwork.core.money import dollars

    id = public_id(AGENT.name, row["id"])
    ended = row["completed_at"] or row["updated_at"]
    spent = f"{row['input_tokens']:,} + {row['output_tokens']:,} tokens, {dollars(row['cost_micros'])}"
    took = screen.took(ended - row["created_at"])
    if result is None:
        return f"{id} is {row['state']}: {row['reason'] or 'it has not ended'} ({spent}, {took})"
    model = f"{result['model']} ({row['tier']}, {row['skill']})"
    offline = " · answered offline: no provider key is set" if row["provider"] == OFFLINE else ""
    return f"{model} · {spent}, {took} · {id}{offline}"
