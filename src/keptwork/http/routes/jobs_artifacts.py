"""Routes of artifacts, the files that jobs store with their results."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.responses import Response

from keptwork import errors
from keptwork.http.auth import Reads
from keptwork.http.dependencies import Db, fails
from keptwork.jobs import results_artifacts as service

artifacts_router = APIRouter(prefix="/api/jobs/{id}/artifacts", tags=["jobs"])

ANYTHING = "*/*"
"""The media type that the handler declared."""

ArtifactName = Annotated[str, Path(min_length=1, max_length=service.LONGEST_NAME)]


@artifacts_router.get(
    "/{name}",
    response_class=Response,
    responses={200: {"content": {ANYTHING: {}}}, **fails(errors.NotFound)},
)
async def artifact(id: str, name: ArtifactName, caller: Reads, store: Db) -> Response:
    """Return the content of an artifact, byte for byte. Browsers save it and do not show it."""
    found, kept = await service.content(store, caller.tenant_id, id, name)
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(kept, 200, {**headers, "Content-Type": found.media_type, "ETag": f'"{found.hash}"'})
