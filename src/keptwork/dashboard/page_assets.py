"""Styles and scripts: read once, named by their content, and cached by browsers until they change."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from keptwork.errors import NotFound

FOLDER = Path(__file__).parent / "static"
PREFIX = "/ui/static"
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
FOR_GOOD = "public, max-age=31536000, immutable"

router = APIRouter(prefix=PREFIX)


@cache
def files() -> dict[str, bytes]:
    """Return the content of every file by its name."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in KINDS}


@cache
def address(name: str) -> str:
    """Return the URL of a file, which changes with its content."""
    return f"{PREFIX}/{name}?v={sha256(files()[name]).hexdigest()[:12]}"


@router.get("/{name}", include_in_schema=False)
async def asset(name: str) -> Response:
    """Return one file. It needs no key."""
    if name not in files():
        raise NotFound(what="file", id=name)
    return Response(files()[name], 200, {"Cache-Control": FOR_GOOD}, KINDS[Path(name).suffix])
