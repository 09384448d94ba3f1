"""The bare server: FastAPI routes that issue the SQL of the product's through the driver, and nothing else.

Uses nothing of the product: the statements stand here and in `bench/floor_*.py` in full (a test holds them to the
product's own), the database was prepared beforehand. It checks one token, takes the same bodies and gives the same
fields, under the same settings of the same server. Usage: python -m bench.http.bare URL PORT TOKEN.
"""

import asyncio
import hmac
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

Row = dict[str, Any]

LISTED = (
    "id, tenant_id, state, queue, kind, priority, attempts, max_attempts, key, reason, error, created_at, updated_at, "
    "started_at, completed_at, run_at, lease_until, owner, held_by, cancel_requested_at, correlation_id, trace_id, "
    "redriven_from, detail, epoch, seq"
)
EVENT = (
    "id, tenant_id, entity, entity_id, seq, epoch, type, trigger, ts, actor, correlation_id, trace_id, cause, reason, "
    "from_state, to_state, payload, version"
)
TIMES = frozenset(
    {"created_at", "updated_at", "started_at", "completed_at", "run_at", "lease_until", "cancel_requested_at", "ts"}
)
SHOWN = [name for name in LISTED.split(", ") if name not in ("tenant_id", "detail")]
TENANT = 1


class Database(Protocol):
    """What the routes ask of it, once for each kind of database."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def enqueue(self, job: "NewJob") -> Row: ...

    async def listed(self, limit: int) -> list[Row]: ...

    async def story(self, key: int) -> tuple[Row, list[Row], list[Row], list[Row], list[Row], list[Row]]: ...


class NewJob(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str = Field(min_length=1, max_length=200)
    payload: dict[str, Any] = Field(default_factory=dict)
    queue: str = Field(default="default", min_length=1, max_length=200)
    priority: int = 0
    key: str | None = None
    run_in: str | float = "0s"
    max_attempts: int = Field(default=4, ge=1)
    correlation_id: str | None = None


def shown(row: Row, names: list[str]) -> Row:
    return {name: moment(row[name]) if name in TIMES else row[name] for name in names}


def moment(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()


def job(row: Row) -> Row:
    return {**shown(row, SHOWN), "id": f"job_{row['id']}", "status": row["state"]}


def application(database: Database, token: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await database.open()
        yield
        await database.close()

    async def checked(authorization: str = Header()) -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401)

    app = FastAPI(lifespan=lifespan, dependencies=[Depends(checked)])

    @app.post("/api/jobs", status_code=201)
    async def enqueue(asked: NewJob) -> JSONResponse:
        return JSONResponse({"job": job(await database.enqueue(asked)), "created": True}, 201)

    @app.get("/api/jobs")
    async def listing(limit: int = 50) -> JSONResponse:
        rows = await database.listed(limit + 1)
        last = f"job_{rows[limit - 1]['id']}" if len(rows) > limit else None
        return JSONResponse({"jobs": [job(row) for row in rows[:limit]], "next": last})

    @app.get("/api/jobs/{id}")
    async def show(id: str) -> JSONResponse:
        row, events, later, artifacts, steps, said = await database.story(int(id.removeprefix("job_")))
        return JSONResponse(
            {
                **job(row),
                "payload": row["payload"],
                "result": row["result"],
                "waits_for": row["waits_for"],
                "progress": said or None,
                "steps": steps,
                "artifacts": artifacts,
                "redriven_as": later,
                "events": [shown(event, EVENT.split(", ")) for event in reversed(events)],
            }
        )

    return app


def main(url: str, port: int, token: str) -> None:
    """As the product's server has it."""
    database: Database
    if url.startswith("sqlite:"):
        from bench.http.bare_sqlite import Sqlite

        database = Sqlite(url.removeprefix("sqlite:///"))
    else:
        from bench.http.bare_postgres import Postgres

        database = Postgres(url)
    config = uvicorn.Config(
        application(database, token),
        port=port,
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=30,
    )
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
