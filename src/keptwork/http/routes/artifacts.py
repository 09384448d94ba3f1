"""What jobs keep beside their results."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.responses import Response

from keptwork import errors
from keptwork.http.auth import Reads
from keptwork.http.pages import Db, fails
from keptwork.service import artifacts as service

router = APIRouter(prefix="/api/jobs/{id}/artifacts", tags=["jobs"])

ANYTHING = "*/*"
"""Whatever kind its handler said it is of."""

ArtifactName = Annotated[str, Path(min_length=1, max_length=service.LONGEST_NAME)]


@router.get(
    "/{name}",
    response_class=Response,
    responses={200: {"content": {ANYTHING: {}}}, **fails(errors.NotFound)},
)
async def artifact(id: str, name: ArtifactName, caller: Reads, store: Db) -> Response:
    """The content of one artifact, as it was kept; to be saved, not to be shown by a browser."""
    found, kept = await service.content(store, caller.tenant_id, id, name)
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(kept, 200, {**headers, "Content-Type": found.media_type, "ETag": f'"{found.hash}"'})
