"""Serves the live page of one run, and its metrics. Start at :class:`PageServer`.

Everybody who reaches it may look; whoever changes the run must have the token, on loopback too.
Beyond loopback the token is required of everybody. It never waits for a browser: a client that does
not read is dropped, and gets what it missed when it comes again.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from asyncli.app.mark import mark_run
from asyncli.live import page_state
from asyncli.live.exposition import exposition
from asyncli.live.feed import RunFeed
from asyncli.model.errors import AsyncliError, HostError, StoreError
from asyncli.model.own_process import command_of, environment_of
from asyncli.model.text import printable
from asyncli.web.guard import Guard, Handler, RefusedError, quiet_runner
from asyncli.web.listener import GuardedListener, shown

# Requests of one address: a page asks some twenty times when it is opened, then only for marks.
_PER_S = 20.0
_BURST = 200.0
# A mark is a line of text.
_LONGEST_BODY = 4096
# A browser that has read nothing for so long is gone.
_UNREAD_S = 15.0
_TURN_S = 1.0
# The status of what comes in a moment, which is no refusal.
_NOT_YET = 503
# A report of a night takes some seconds, and minutes where the host is busy.
_REPORT_S = 600.0
# On top of the page's own: the report must give way to the soak, and still come on a busy host (a
# process of niceness 19 got 1 % of a core beside eight busy ones, and a report took a minute).
_REPORT_NICENESS = "5"

_HEADERS = {
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
#: What may be downloaded: name -> (option of ``asyncli report``, content type).
_DOWNLOADS = {
    "report.html": ("--html", "text/html"),
    "report.json": ("--json", "application/json"),
}

_encode = msgspec.json.Encoder().encode


class PageServer:
    """Serves the run in ``path`` at ``host``:``port``.

    ``token``: what changes the run needs it. ``must_have_token``: so does looking. ``stop``: ends
    the run as Ctrl-C does; None where that cannot be done. ``with_page``: False: the metrics alone.
    Use: :meth:`read` and :meth:`listen`, then :meth:`run` until cancelled, then :meth:`close`.
    """

    def __init__(
        self,
        path: Path,
        *,
        host: str,
        port: int,
        token: str,
        must_have_token: bool,
        tls: ssl.SSLContext | None,
        log: Callable[[str], None],
        stop: Callable[[], None] | None = None,
        with_page: bool = True,
    ) -> None:
        self.feed = RunFeed(path)
        #: The port it listens on.
        self.port = port
        self._path = path
        self._host = host
        self._tls = tls
        self._stop = stop
        self._with_page = with_page
        # Who may look, and who may change the run.
        looker = token if must_have_token else None
        self._lookers = Guard(looker, host, log, per_s=_PER_S, burst=_BURST)
        self._changers = Guard(token, host, log, per_s=_PER_S, burst=_BURST)
        self._turned = asyncio.Condition()
        self._reporting = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._listener: GuardedListener | None = None
        self._problem = ""
        self._is_read = False

    async def read(self) -> None:
        """Read the run. Raises :class:`~asyncli.model.errors.AsyncliError` for what is no run file,
        or has not begun.
        """
        await asyncio.to_thread(self.feed.open)
        self._is_read = True

    async def listen(self) -> None:
        """Listen; data is refused until the run has been read.

        Raises :class:`~asyncli.model.errors.HostError` where it cannot listen.
        """

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[guard], client_max_size=_LONGEST_BODY)
        app.add_routes([
            web.get("/-/healthy", self._healthy),
            web.get("/metrics", self._metrics, allow_head=False),
        ])  # fmt: skip
        if self._with_page:
            app.add_routes([
                web.get("/", self._page),
                web.get("/assets/{name}", self._asset),
                web.get("/history", self._history, allow_head=False),
                web.get("/events", self._events, allow_head=False),
                web.get("/download/{name}", self._download, allow_head=False),
                web.post("/mark", self._mark),
                web.post("/stop", self._end),
            ])  # fmt: skip
        self._runner = quiet_runner(app, self._lookers)
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = GuardedListener(self._runner.server, self._tls, self._lookers.refuse)
        flag = "--web" if self._with_page else "--metrics"
        try:
            self.port = await self._listener.open(self._host, self.port, flag)
        except HostError:
            await self.close()
            raise

    async def run(self) -> None:
        """Read what is new once a second, until cancelled."""
        assert self._listener is not None
        next_s = time.monotonic()
        while True:
            next_s = max(next_s + _TURN_S, time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())
            try:
                news = await asyncio.to_thread(self.feed.read)
                self._problem = ""
                self.feed.take(news)
            except StoreError as error:
                self._problem = printable(str(error))
            self._listener.sweep()
            async with self._turned:
                self._turned.notify_all()

    async def close(self) -> None:
        self.feed.close()
        if self._listener is not None:
            await self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        address = shown(request.remote or "?")
        client = None
        if self._listener is not None:
            client = self._listener.clients.get(request.protocol)
        if client is None:
            # Evicted meanwhile.
            return web.Response(status=503)
        client.request_started()
        try:
            # A flood of strangers, who may share the address of a tunnel, costs the owner nothing.
            is_owner = self._changers.is_authorized(request)
            self._lookers.check_rate(f"{address} owner" if is_owner else address)
            self._lookers.check_host(request)
            await self._check_access(request)
            if is_owner:
                client.authenticated = True
            return await handler(request)
        except RefusedError as refused:
            status = refused.status
            why = refused.why
        except web.HTTPException as refused:
            status = refused.status
            why = f"{shown(request.method)} {shown(request.path)}: {refused.reason}"
        except AsyncliError as error:
            return _answer({"error": printable(str(error))}, 409)
        finally:
            client.request_ended()
        if status != _NOT_YET:
            self._lookers.refuse(address, why)
        return _answer({"error": why}, status)

    async def _check_access(self, request: web.Request) -> None:
        """The page itself is no secret: it asks for the token, and for the rest with it."""
        if request.method == "POST":
            await self._changers.check_token(request)
            return
        is_open = request.path in ("/", "/-/healthy") or request.path.startswith("/assets/")
        if is_open:
            return
        await self._lookers.check_token(request)
        if not self._is_read:
            raise RefusedError(_NOT_YET, "the run has not begun")

    # Answers.

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = exposition(self.feed, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _page(self, _: web.Request) -> web.Response:
        return _file("index.html")

    async def _asset(self, request: web.Request) -> web.Response:
        return _file(request.match_info["name"])

    async def _history(self, _: web.Request) -> web.Response:
        document = page_state.whole(self.feed)
        document["can_stop"] = self._stop is not None
        return _answer(document)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """A stream of events: ``news`` each second, ``again`` where the page must ask for the
        history once more.
        """
        response = web.StreamResponse(
            headers={**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"}
        )
        await response.prepare(request)
        sent = page_state.Sent(-1, 0.0, 0.0, 0)
        if request.query.get("edition") == str(self.feed.edition):
            sent = page_state.sent_a_moment_ago(self.feed)
        try:
            while True:
                async with self._turned:
                    await self._turned.wait()
                name, document = self._next_event(sent)
                sent = page_state.sent_of(self.feed)
                data = b"event: " + name + b"\ndata: " + _encode(document) + b"\n\n"
                async with asyncio.timeout(_UNREAD_S):
                    await response.write(data)
        except (ConnectionError, TimeoutError):
            return response

    def _next_event(self, sent: page_state.Sent) -> tuple[bytes, dict[str, Any]]:
        if self._problem:
            return b"problem", {"error": self._problem}
        if sent.edition != self.feed.edition:
            return b"again", {}
        return b"news", page_state.news(self.feed, sent)

    async def _mark(self, request: web.Request) -> web.Response:
        at_s = time.monotonic()
        try:
            text = (await request.text()).strip()
        except (LookupError, UnicodeDecodeError):
            raise RefusedError(400, "a mark is a text in UTF-8") from None
        except web.RequestPayloadError:
            raise RefusedError(400, "the body of the request cannot be read") from None
        if not text:
            raise RefusedError(400, "a mark needs a text")
        event = await asyncio.to_thread(mark_run, self._path, text, at_s)
        return _answer(msgspec.to_builtins(event))

    async def _end(self, _: web.Request) -> web.Response:
        if self._stop is None:
            raise RefusedError(
                409,
                "this page was not started by the soak, so it cannot end it; press Ctrl-C there",
            )
        self._stop()
        return _answer({"stopping": True})

    async def _download(self, request: web.Request) -> web.Response:
        """The report of the run so far, made by a process of its own."""
        name = request.match_info["name"]
        if name not in _DOWNLOADS:
            raise web.HTTPNotFound
        option, content_type = _DOWNLOADS[name]
        command = command_of("asyncli", "report", str(self._path), option, "-")
        async with self._reporting:
            process = await asyncio.create_subprocess_exec(
                "nice",
                "-n",
                _REPORT_NICENESS,
                *command,
                env=environment_of(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(_REPORT_S):
                    body, complaint = await process.communicate()
            except TimeoutError:
                process.kill()
                raise RefusedError(503, "the report took too long") from None
        if not body:
            raise RefusedError(503, complaint.decode(errors="replace").strip()[-300:])
        stem = printable(self._path.stem).replace('"', "'")
        file = f"{stem}.{name.partition('.')[2]}"
        headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{file}"'}
        return web.Response(body=body, content_type=content_type, headers=headers)


def _file(name: str) -> web.Response:
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
        headers=_HEADERS,
    )


def _answer(document: Any, status: int = 200) -> web.Response:
    headers = dict(_HEADERS)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        body=_encode(document), status=status, content_type="application/json", headers=headers
    )
