"""The durable steps of one run of a handler: what has been done is not done again, what is waited for holds nothing.

A step's result is kept before the handler sees it. When the job runs again, after a crash, a retry or a wait, the
handler runs from its beginning and each step that has a result returns it. What waits raises `Suspended`: the job goes
back into the queue, and its slot is free.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from keptwork import spans
from keptwork.bounds import check_name
from keptwork.errors import BadInput, LeaseLost
from keptwork.lifecycle import JOB
from keptwork.moments import Span, span_us
from keptwork.outcomes import PermanentError
from keptwork.step_code import same_code, step_code
from keptwork.store import Blob, Job
from keptwork.store.checkpoints import OWN, Checkpoint, Save
from keptwork.worker.journal import Journals
from keptwork.worker.progress import report
from keptwork.worker.settlement import LARGEST_IN_ROW, Raised, Release, Suspend, result_text
from keptwork.worker.versions import held_for


class Suspended(BaseException):
    """The handler cannot go on yet. It passes through `except Exception`; `finally` and `with` run."""

    def __init__(self, suspend: Suspend | Release) -> None:
        super().__init__(suspend.reason if isinstance(suspend, Release) else f"waits for {suspend.waits_for}")
        self.suspend = suspend


def said_by(error: BaseException) -> Any:
    """What follows when a handler ends with this. Of tasks that ended together, what one of them waits for counts once
    nothing else is wrong."""
    if isinstance(error, BaseExceptionGroup):
        waiting, others = error.split(Suspended)
        if waiting is None or others is not None:
            return Raised(others or error)
        return said_by(waiting.exceptions[0])
    return error.suspend if isinstance(error, Suspended) else Raised(error)


class Steps:
    """Those of one run. An ordinary function gets results, an async one something to await."""

    def __init__(self, job: Job, journal: Journals, version: int = 0) -> None:
        self._job = job
        self._journal = journal
        self.version = version
        self.over = False
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        self._recalled: dict[str, Checkpoint] | None = None if job.epoch else {}

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the function: from before, if it has one; the function runs only if not."""
        self.insist_open(name)
        self._take(name)
        if self._journal.awaited:
            return self._step(name, function, args, kwargs)
        found = self._journal.wait(self.recall(name))
        if found is not None:
            return self._journal.wait(self._stored(found, function))
        with spans.step(name):
            value = function(*args, **kwargs)
            if inspect.iscoroutine(value):
                value = self._journal.wait(value)
            return self._journal.wait(self.keep(name, value, step_code(function)))

    async def _step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        found = await self.recall(name)
        if found is not None:
            return await self._stored(found, function)
        with spans.step(name):
            if inspect.iscoroutinefunction(function):
                value = await function(*args, **kwargs)
            else:
                value = await self.in_thread(lambda: function(*args, **kwargs))
                value = await value if inspect.isawaitable(value) else value
            return await self.keep(name, value, step_code(function))

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """What an ordinary function returns or raises, without holding up the event loop."""
        return await self._journal.in_thread(function)

    def sleep(self, span: Span, name: str | None = None) -> Any:
        """Returns when the time is over, however often the job runs until then."""
        return self.waiting(self._sleep(self.own_name("sleep", name), span_us(span)))

    async def _sleep(self, name: str, length_us: int) -> None:
        found = await self.recall(name)
        now = await self._journal.now()
        until = json.loads(found.result) if found else await self.keep(name, now + length_us)
        if until > now:
            raise Suspended(Suspend("sleep", until))

    def progress(self, fraction: float, text: str) -> None:
        """How far the handler has come, for people to see."""
        self._journal.tell(self._job, report(fraction, text))

    # --- for everything that waits

    def waiting(self, work: Any) -> Any:
        """Work of ours, to be awaited on the event loop; done already for a caller that cannot await."""
        return work if self._journal.awaited else self._journal.wait(work)

    def own_name(self, what: str, name: str | None) -> str:
        """What a wait is called: as the user says, or by its place among those of its kind."""
        self.insist_open(what)
        self._counts[what] = self._counts.get(what, 0) + 1
        if name is not None:
            _check_name(name)
        own = f"{OWN}{what} {name or self._counts[what]}"
        self._take(own, ours=True)
        return own

    def insist_open(self, what: str) -> None:
        """Refuse what a task that the handler left running asks for after the end of the job."""
        if self.over:
            raise LeaseLost(lifecycle=JOB.name, id=self._job.public_id, trigger=what)

    async def recall(self, name: str) -> Checkpoint | None:
        """What was kept under a name before this run. What is large is fetched from where it is kept."""
        kept = self._recalled if self._recalled is not None else await self.before()
        if not kept:
            return None
        begun = await self.begun_as()
        if begun is not None and begun != self.version:
            raise Suspended(held_for(self._job.kind, begun, (self.version,)))
        found = kept.get(name)
        if found is None or found.hash is None:
            return found
        return found._replace(result=await self._journal.whole(self._job, found))

    async def before(self) -> dict[str, Checkpoint]:
        """What the job's steps had left before this run, by name; what is large is not among it but where it is."""
        if self._recalled is None:
            self._recalled = {one.name: one for one in await self._journal.recall(self._job)}
        return self._recalled

    async def begun_as(self) -> int | None:
        """Which version of the handler made the first checkpoint of the job; none before there is one."""
        return next((one.version for one in (await self.before()).values()), None)

    def save(self, name: str, text: str) -> Save:
        """What is to be kept, where that is written together with something else."""
        return Save(self._job, name, text, version=self.version)

    def save_whole(self, name: str, text: str, code: str | None = None) -> Save:
        """The same for a text of any length: what is large goes as a blob."""
        blob = Blob.of(text.encode()) if len(text) > LARGEST_IN_ROW else None
        return Save(self._job, name, blob.note if blob else text, blob, code, self.version)

    async def keep(self, name: str, value: Any, code: str | None = None) -> Any:
        """Keeps a value, and returns it as the next run will see it."""
        return json.loads(await self.keep_text(name, _text(name, value), code))

    async def keep_text(self, name: str, text: str, code: str | None = None) -> str:
        """The same with a value as JSON. What another run has kept meanwhile stands."""
        save = self.save_whole(name, text, code)
        if await self._journal.save(save) == save.result:
            return text
        self._recalled = None
        return await self.whole(name)

    async def _stored(self, found: Checkpoint, function: Callable[..., Any]) -> Any:
        if found.changed_at is None and not same_code(found.code, step_code(function)):
            await self._journal.note_change(self._job, found.name)
        return json.loads(found.result)

    # --- for the worker, on behalf of a handler in a process of its own

    async def whole(self, name: str) -> str:
        """A result as it is, also where it is kept apart."""
        found = (await self.before())[name]
        return found.result if found.hash is None else await self._journal.whole(self._job, found)

    async def note_change(self, name: str) -> None:
        """The code of a step is no longer that which made its result."""
        await self._journal.note_change(self._job, name)

    async def now(self) -> int:
        """The database's time."""
        return await self._journal.now()

    def _take(self, name: str, ours: bool = False) -> None:
        if not ours:
            _check_name(name)
        if name in self._taken:
            raise PermanentError(f"two steps of one job are called {name!r}; each needs a name of its own")
        self._taken.add(name)


def _check_name(name: str) -> None:
    try:
        check_name("step", name)
    except BadInput as refusal:
        raise PermanentError(str(refusal)) from None
    if name.startswith(OWN):
        raise PermanentError(f"the step {name!r}: names that begin with {OWN} are kept for waits")


def _text(name: str, value: Any) -> str:
    try:
        return result_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PermanentError(f"the step {name!r} returned what cannot be kept: {error}") from None
