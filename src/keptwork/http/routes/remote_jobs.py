"""Routes for a worker without a database that reports the progress and outcome of a job that it holds.

Every call names the worker and the epoch of the claim. If the worker no longer holds the job, the response is 409 and
nothing changes. A report that is repeated because its response was lost gets the first response.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from keptwork import errors
from keptwork.core.durations import moment_us, span_us
from keptwork.core.validation import LONGEST_KEY, check_name, plain_json
from keptwork.errors import BadInput
from keptwork.http.auth import Supervises
from keptwork.http.dependencies import Db, Text, answer, fails, only
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.claimed_jobs import Lease, us
from keptwork.http.routes.jobs import Artifact, ArtifactName, Seconds
from keptwork.jobs import results_artifacts
from keptwork.jobs.outcome import Release, Suspend
from keptwork.outcomes import Cancel, Snooze
from keptwork.store import Store
from keptwork.workers.remote import reports
from keptwork.workers.remote.reports import Failure, Kind

router = APIRouter(prefix="/api/jobs/{id}", tags=["claimed jobs"])

Epoch = Annotated[int, Field(ge=0, le=(1 << 31) - 1, description="Epoch of the claim.")]
JobId = Annotated[str, Field(max_length=LONGEST_KEY)]
StepName = Annotated[Text, Field(min_length=1, max_length=LONGEST_KEY)]


class Settled(BaseModel):
    """The outcome of a report: the move of the job, and its new state."""

    job: str
    epoch: int
    move: str
    state: str


class Mine(Asked):
    """The worker and the epoch that hold a job."""

    model_config = example(worker="w_0199c82c-c000-7000-807a-a2a0b8276ff8", epoch=0)

    worker: str = Field(max_length=LONGEST_KEY)
    epoch: Epoch


class Begin(Mine):
    """The start of the work on a job."""

    lease: Lease | None = Field(default=None, description="Renews the lease in the same call.")


class Save(Mine):
    """The result of a step, stored so that it survives the worker."""

    model_config = example(worker="w_0199c82c-c000-7000-807a-a2a0b8276ff8", epoch=0, name="charge", value={"id": 7})

    name: StepName
    value: Any = None
    code: str | None = Field(
        default=None, pattern="^[!-~]{1,500}$", description="Digest of the code that made the result."
    )
    version: int = Field(default=0, ge=0, le=1 << 30)


class Saved(BaseModel):
    """The stored result of a step. `kept` is false if an earlier result was stored under that name: the first one
    stays."""

    name: str
    kept: bool
    value: Any


class Advance(Mine):
    """The progress of the work."""

    model_config = example(worker="w_0199c82c-c000-7000-807a-a2a0b8276ff8", epoch=0, fraction=0.4, text="page 2 of 5")

    fraction: float = Field(ge=0, le=1, allow_inf_nan=False)
    text: Text = Field(default="", max_length=1_000)


class Noted(BaseModel):
    """A confirmation that progress was stored."""

    job: str
    epoch: int


class Succeed(Mine):
    """The success of a job, with its result."""

    model_config = example(worker="w_0199c82c-c000-7000-807a-a2a0b8276ff8", epoch=0, result={"size": 4})

    result: Any = None


class Fault(BaseModel):
    """An error. `transient` and `timeout` allow a retry, `permanent` fails the job, and `validation` (an invalid
    payload) makes it a dead letter."""

    model_config = {"extra": "forbid", "strict": True}

    message: Text = Field(default="", max_length=4_000)
    type: Text = Field(default="", max_length=200, description="Type of the error, such as TimeoutError.")
    kind: Kind = "transient"
    stage: Literal["fetch", "input", "exec", "output", "commit"] = "exec"
    retry_in: Seconds | None = Field(default=None, description="Seconds until the next attempt, if there is one.")


class Fail(Mine):
    """The failure of an attempt. As for any job, the error and the remaining attempts decide whether it is retried."""

    model_config = example(
        worker="w_0199c82c-c000-7000-807a-a2a0b8276ff8",
        epoch=0,
        error={"type": "TimeoutError", "message": "the shop does not answer", "kind": "transient"},
    )

    error: Fault = Fault()


class Rest(Mine):
    """The duration or the end of a snooze. A snooze spends no attempt."""

    model_config = example(worker="w_0199c82c-c000-7000-807a-a2a0b8276ff8", epoch=0, delay="5m")

    delay: str | Seconds | None = Field(default=None, description="Seconds, or a duration such as 5m.")
    until: Text | None = Field(default=None, max_length=60, description="Time in RFC 3339 format.")


class GiveBack(Mine):
    """The release of an unfinished job, with a reason. A release spends no attempt."""

    model_config = example(worker="w_0199c82c-c000-7000-807a-a2a0b8276ff8", epoch=0, reason="the worker drains")

    reason: Text = Field(default="its worker gave it back", max_length=1_000)
    back_off: bool = Field(
        default=False,
        description=(
            "Whether to add a backoff because this worker cannot run the job, so that another worker can claim it."
        ),
    )


class Keep(Mine):
    """An artifact to store with the job."""

    model_config = example(
        worker="w_0199c82c-c000-7000-807a-a2a0b8276ff8", epoch=0, content="aGVsbG8=", media_type="text/plain"
    )

    content: str = Field(description="Content in Base64.")
    media_type: Text = Field(default="application/octet-stream", max_length=200)


class Outcome(BaseModel):
    """The outcome of a job. Only the fields of that outcome are used."""

    model_config = {"extra": "forbid", "strict": True}

    outcome: Literal["succeed", "fail", "snooze", "release", "cancel"]
    result: Any = None
    error: Fault | None = None
    delay: str | Seconds | None = None
    until: Text | None = Field(default=None, max_length=60)
    reason: Text | None = Field(default=None, max_length=4_000)
    back_off: bool = False
    held_by: Text | None = Field(default=None, max_length=LONGEST_KEY, pattern="^version:")

    @model_validator(mode="after")
    def _one_time(self) -> Outcome:
        if self.delay is not None and self.until is not None:
            raise ValueError("delay and until are two ways to say the same; give one")
        return self


FENCED = fails(errors.NotFound, errors.LeaseLost, errors.KeyReused, errors.RequestInFlight)


@router.post("/start", response_model=Settled, responses=FENCED)
async def start(id: str, asked: Begin, caller: Supervises, does: Does) -> Response:
    """Start the work on a job that was claimed without being started. A started job continues."""

    async def work(store: Store) -> dict[str, Any]:
        lease_us = None if asked.lease is None else us(asked.lease)
        return (await reports.start(store, _claim(id, asked, caller.tenant_id), lease_us))._asdict()

    return await does(asked, work)


@router.get("/checkpoints/{name:path}", response_model=Saved, responses=fails(errors.NotFound))
async def checkpoint_of(
    id: str, name: Annotated[str, Path(max_length=LONGEST_KEY)], caller: Supervises, store: Db
) -> Response:
    """Show the whole result of a step of a job."""
    value = await reports.kept(store, caller.tenant_id, id, name)
    return answer({"name": name, "kept": True, "value": value})


@router.post("/checkpoint", response_model=Saved, responses=FENCED)
async def checkpoint(id: str, asked: Save, caller: Supervises, does: Does) -> Response:
    """Store the result of a step, so that a later attempt finds it. The first result of a name stays."""

    async def work(store: Store) -> dict[str, Any]:
        claim = _claim(id, asked, caller.tenant_id)
        kept, value = await reports.checkpoint(store, claim, asked.name, asked.value, asked.code, asked.version)
        return {"name": asked.name, "kept": kept, "value": value}

    return await does(asked, work)


@router.post("/progress", response_model=Noted, responses=FENCED)
async def progress(id: str, asked: Advance, caller: Supervises, does: Does) -> Response:
    """Report the progress of a job, for users to see."""

    async def work(store: Store) -> dict[str, Any]:
        await reports.progress(store, _claim(id, asked, caller.tenant_id), asked.fraction, asked.text)
        return {"job": id, "epoch": asked.epoch}

    return await does(asked, work)


@router.put("/artifacts/{name}", response_model=Artifact, responses=FENCED)
async def keep(id: str, name: ArtifactName, asked: Keep, caller: Supervises, does: Does) -> Response:
    """Store an artifact with the job. A repeated name replaces the artifact."""
    try:
        content = base64.b64decode(asked.content, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput(what="the content is not in Base64") from None

    async def work(store: Store) -> dict[str, Any]:
        claim = _claim(id, asked, caller.tenant_id)
        kept = await reports.keep_artifact(store, claim, name, content, asked.media_type)
        return only(Artifact, results_artifacts.as_json(kept))

    return await does(asked, work)


@router.post("/succeed", response_model=Settled, responses=FENCED)
async def succeed(id: str, asked: Succeed, caller: Supervises, does: Does) -> Response:
    """Report that a job succeeded."""
    plain_json("the result", asked.result)
    return await _settled(id, asked, caller.tenant_id, does, asked.result)


@router.post("/fail", response_model=Settled, responses=FENCED)
async def fail(id: str, asked: Fail, caller: Supervises, does: Does) -> Response:
    """Report that an attempt failed. The job is retried, fails permanently, or becomes a dead letter."""
    return await _settled(id, asked, caller.tenant_id, does, _failure(asked.error))


@router.post("/snooze", response_model=Settled, responses=FENCED)
async def snooze(id: str, asked: Rest, caller: Supervises, does: Does) -> Response:
    """Snooze a job: return it to the queue for some time."""
    return await _settled(id, asked, caller.tenant_id, does, _rest(asked.delay, asked.until))


@router.post("/release", response_model=Settled, responses=FENCED)
async def release(id: str, asked: GiveBack, caller: Supervises, does: Does) -> Response:
    """Release an unfinished job: return it to the queue."""
    return await _settled(id, asked, caller.tenant_id, does, Release(asked.reason, asked.back_off))


async def _settled(id: str, asked: Mine, tenant_id: int, does: Does, said: Any) -> Response:
    async def work(store: Store) -> dict[str, Any]:
        return (await reports.settle_one(store, _claim(id, asked, tenant_id), said))._asdict()

    return await does(asked, work)


def _claim(id: str, asked: Mine, tenant_id: int) -> reports.Claim:
    return reports.Claim(tenant_id, asked.worker, id, asked.epoch)


# --- conversions from and to outcomes of handlers


def outcome_said(told: Outcome) -> Any:
    """Return an outcome as a handler would return or raise it."""
    match told.outcome:
        case "fail":
            return _failure(told.error or Fault())
        case "snooze":
            return _rest(told.delay, told.until)
        case "release":
            if told.held_by is not None:
                check_name("hold", told.held_by)
            return Release(told.reason or "its worker gave it back", told.back_off, told.held_by)
        case "cancel":
            return Cancel(told.reason or "")
    plain_json("the result", told.result)
    return told.result


def _failure(fault: Fault) -> Failure:
    message = ": ".join(filter(None, (fault.type, fault.message))) or "it did not say why"
    return Failure(message, fault.kind, fault.stage, None if fault.retry_in is None else us(fault.retry_in))


def _rest(delay: str | float | None, until: str | None) -> Snooze | Suspend:
    if until is not None:
        return Suspend("sleep", max(moment_us(until, 0), 0))
    return Snooze(span_us(delay or 0) / 1_000_000)
