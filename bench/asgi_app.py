"""The application of bench/server_counts.py on uvicorn: three bytes for each request, and at /metrics
what prometheus_client reports by default.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import make_asgi_app

PAGE = make_asgi_app()
ANSWER = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-length", b"3")],
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    if scope["path"] == "/metrics":
        await PAGE(scope, receive, send)
        return
    await send(ANSWER)
    await send({"type": "http.response.body", "body": b"ok\n"})
