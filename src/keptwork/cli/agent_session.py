"""Run one agent job in this process, stream its answer, and show its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keptwork.cli import run_session_prompt, screen
from keptwork.cli.database import operator
from keptwork.core.lifecycles import AGENT, JOB
from keptwork.core.lifecycles.agent import COMPLETED
from keptwork.errors import AlreadyDecided, InvalidTransition
from keptwork.observability import logs
from keptwork.store.contract.waits import APPROVAL

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.handles_agent import AgentHandle, Ask

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
        if self._as_json or not run_session_prompt.at_a_terminal():
            return False
        now = await (await app.open()).now()
        for question in await app.approvals():
            if question.id in self._skipped:
                return False
            decision = await run_session_prompt.asked(question, now)
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
    from keptwork.core.ids_entities import public_id
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
