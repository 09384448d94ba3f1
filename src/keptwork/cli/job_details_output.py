"""`keptwork jobs result|artifacts|artifact`: print the result and the artifacts of a job."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, JobId, Tenant, with_tenant
from keptwork.cli.screen_outfile import bytes_written_whole
from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from keptwork.jobs import results
from keptwork.jobs import results_artifacts as service

if TYPE_CHECKING:
    from rich.table import Table

    from keptwork.store import Artifact, Store

HEAD = 200

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Output file or directory. Use - to write any content to stdout."),
]


def result(
    id: JobId,
    timeout: Annotated[str, typer.Option(metavar="SPAN", help="Maximum time to wait for the job.")] = "0s",
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Print the full result of a successful job as JSON.

    Exit code 1 if the job finished otherwise, 124 if it has not finished.
    """

    async def read(store: Store, tenant_id: int) -> str | None:
        return await results.result_text(store, tenant_id, id, timeout)

    print(asyncio.run(with_tenant(db, tenant, read)) or "null")


def artifacts(id: JobId, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """List a job's artifacts."""

    async def read(store: Store, tenant_id: int) -> list[Artifact]:
        return await service.listed(store, tenant_id, id)

    kept = asyncio.run(with_tenant(db, tenant, read))
    shown = {"artifacts": [service.as_json(artifact) for artifact in kept]}
    screen.emit(shown, lambda: _table(kept) if kept else "No artifacts.", as_json)


def artifact(
    id: JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Artifact name.")],
    out: Out = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Write the content of an artifact to stdout or a file, byte for byte.

    With --json and without --out, this command prints only the metadata of the artifact.
    """

    async def read(store: Store, tenant_id: int) -> tuple[Artifact, bytes]:
        return await service.content(store, tenant_id, id, name)

    kept, content = asyncio.run(with_tenant(db, tenant, read))
    target = out and _file(out, kept.name)
    if target is None and as_json:
        return screen.emit({"artifact": service.as_json(kept)}, str, as_json)
    if target is None and sys.stdout.isatty() and not _is_text(content):
        raise BadInput(what=f"{name!r} is {kept.media_type}, not fit for a terminal; use --out FILE, or --out - anyway")
    with bytes_written_whole(target) as file:
        file.write(content)
    if target is not None and str(target) != "-":
        told = {"artifact": service.as_json(kept), "file": str(target)}
        screen.emit(told, lambda: f"{target} has {screen.size(kept.size)}.", as_json)
    return None


def head(row: dict[str, Any], text: str) -> str:
    """Return a result for display. A result that is stored as a separate blob is shortened."""
    if row["result_hash"] is None:
        return text
    id = public_id(JOB.name, row["id"])
    about = f"{screen.size(len(text.encode()))}, the whole of it with: keptwork jobs result {id}"
    return f"{text[:HEAD]} ...\n({about})"


def _file(out: Path, name: str) -> Path:
    """Return the output file.

    A directory gets a file with the artifact's name, which is checked because any program can store any name.
    """
    if not out.is_dir():
        return out
    service.check_name(name)
    return out / name


def _is_text(content: bytes) -> bool:
    """Return whether content is text without control characters, which could command a terminal."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    return all(sign.isprintable() or sign in "\t\n\r" for sign in text)


def _table(kept: list[Artifact]) -> Table:
    table = screen.table("name", "size", "type", "sha256")
    for artifact in kept:
        table.add_row(artifact.name, screen.size(artifact.size), artifact.media_type, artifact.hash)
    return table
