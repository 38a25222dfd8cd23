"""What the live pages answer with: files of the package, and JSON, each with the headers that keep
a page to itself.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".txt": "text/plain"}

encode = msgspec.json.Encoder().encode


def page_file(name: str) -> web.Response:
    """A file of the page, which the package brings along."""
    folder = importlib.resources.files("asyncli.live") / "assets"
    names = {entry.name for entry in folder.iterdir()}
    if name not in names:
        raise web.HTTPNotFound
    content_type = _TYPES[Path(name).suffix]
    return web.Response(
        body=(folder / name).read_bytes(),
        content_type=content_type,
        charset="utf-8",
        headers=HEADERS,
    )


async def asset(request: web.Request) -> web.Response:
    """A script, a style or a licence."""
    return page_file(request.match_info["name"])


async def healthy(_: web.Request) -> web.Response:
    """That the server is there, and nothing else."""
    return web.Response(status=204)


def json_answer(document: Any, status: int = 200) -> web.Response:
    headers = dict(HEADERS)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        body=encode(document), status=status, content_type="application/json", headers=headers
    )


async def event_stream(request: web.Request) -> web.StreamResponse:
    """A stream of server-sent events that has begun."""
    response = web.StreamResponse(
        headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"}
    )
    await response.prepare(request)
    return response


def event(name: str, document: Any) -> bytes:
    """An event of a stream."""
    return b"event: " + name.encode() + b"\ndata: " + encode(document) + b"\n\n"
