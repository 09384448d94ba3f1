"""A page that lists every route, made from the OpenAPI document. It has no scripts and no external content."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

docs_router = APIRouter()


@docs_router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return the list as HTML."""
    return Response(page(request.app.openapi()).encode(), media_type="text/html; charset=utf-8")


def page(document: dict[str, Any]) -> str:
    """Return the OpenAPI document as an HTML page."""
    routes = "".join(
        f"<dt><code>{method.upper()} {escape(path)}</code></dt><dd>{escape(said.get('description', ''))}</dd>"
        for path, methods in document["paths"].items()
        for method, said in methods.items()
    )
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(document['info']['title'])}</title>"
    about = f"<h1>{escape(document['info']['title'])}</h1><p>{escape(document['info']['description'])}</p>"
    whole = "<p>The whole description, for programs: <a href='/openapi.json'>/openapi.json</a></p>"
    return f"{head}{about}{whole}<dl>{routes}</dl></html>"
