"""One run as browsers and Prometheus ask for it: its history, a stream of what is new, its report
to keep, and marks.

It never waits for a browser: a client that does not read is dropped, and gets what it missed when
it comes again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from asyncli.app.mark import mark_run, text_of_mark
from asyncli.live import page_state
from asyncli.live.answers import event, event_stream, json_answer
from asyncli.live.downloads import Downloads
from asyncli.live.exposition import exposition
from asyncli.live.feed import RunFeed
from asyncli.model.errors import PlanError, StoreError
from asyncli.model.text import printable
from asyncli.web.guard import RefusedError

# A browser that has read nothing for so long is gone.
UNREAD_S = 15.0
TURN_S = 1.0
# The status of what comes in a moment, which is no refusal.
_NOT_YET = 503


class _Event(NamedTuple):
    """An event of the stream, and what a client has that was sent it."""

    text: bytes
    sent: page_state.Sent
    has_ending: bool = False


class RunPage:
    """The run in ``path``. ``stop``: ends the run as Ctrl-C does; None where that cannot be done.
    ``in_folder``: there is a list of runs beside it.

    Use: :meth:`read`, then :meth:`run` until cancelled, then :meth:`close`.
    """

    def __init__(
        self,
        path: Path,
        stop: Callable[[], None] | None = None,
        *,
        in_folder: bool = False,
    ) -> None:
        self.path = path
        self._in_folder = in_folder
        self.feed = RunFeed(path)
        #: How many streams of it are read.
        self.readers = 0
        #: When somebody last asked for it (monotonic s).
        self.asked_s = time.monotonic()
        self._stop = stop
        self._turned = asyncio.Condition()
        self._downloads = Downloads(path)
        self._problem = ""
        self._is_read = False
        self._is_closed = False
        # The event of this turn for who has been sent so much: nearly all readers have the same.
        self._events: dict[page_state.Sent, _Event] = {}
        #: Whether a stream has been sent the run's verdict.
        self.is_ending_sent = False

    async def read(self) -> None:
        """Read the run. Raises :class:`~asyncli.model.errors.AsyncliError` for what is no run file,
        or has not begun.
        """
        await asyncio.to_thread(self.feed.open)
        self._is_read = True

    async def run(self, after_turn: Callable[[], None] = lambda: None) -> None:
        """Read what is new once a second, until cancelled; call ``after_turn`` each time."""
        next_s = time.monotonic()
        while True:
            next_s = max(next_s + TURN_S, time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())
            await self.turn()
            after_turn()

    async def turn(self) -> None:
        """Read what is new, and tell the readers."""
        try:
            news = await asyncio.to_thread(self.feed.read)
            self._problem = ""
            self.feed.take(news)
        except StoreError as error:
            self._problem = printable(str(error))
        self._events.clear()
        async with self._turned:
            self._turned.notify_all()

    async def close(self) -> None:
        """End its streams and the process that computes its cost."""
        self._is_closed = True
        self.feed.close()
        async with self._turned:
            self._turned.notify_all()

    def _require_read(self) -> None:
        self.asked_s = time.monotonic()
        if not self._is_read:
            raise RefusedError(_NOT_YET, "the run has not begun", is_logged=False)

    # Answers.

    async def metrics(self, request: web.Request) -> web.Response:
        """The run's numbers for Prometheus."""
        self._require_read()
        if self._problem:
            # What was read before is not what is so now.
            raise RefusedError(_NOT_YET, self._problem, is_logged=False)
        body, content_type = exposition(self.feed, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    def history(
        self,
        reference: dict[str, Any] | None = None,
        why_no_reference: str = "",
        *,
        is_owner: bool,
    ) -> web.Response:
        """The whole run so far, with another one to be laid under it, or why that cannot be.
        ``is_owner``: the client may change the run.
        """
        self._require_read()
        document = page_state.whole(self.feed)
        document["can_stop"] = self._stop is not None
        document["is_owner"] = is_owner
        document["in_folder"] = self._in_folder
        document["reference"] = reference
        document["why_no_reference"] = why_no_reference
        return json_answer(document)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """A stream of events: ``news`` each second, ``again`` where the page must ask for the
        history once more.
        """
        self._require_read()
        response = await event_stream(request)
        sent = page_state.Sent(-1, 0.0, 0.0, 0)
        if request.query.get("edition") == str(self.feed.edition):
            sent = page_state.sent_a_moment_ago(self.feed)
        self.readers += 1
        try:
            while not self._is_closed:
                async with self._turned:
                    await self._turned.wait()
                next_event = self._next_event(sent)
                sent = next_event.sent
                async with asyncio.timeout(UNREAD_S):
                    await response.write(next_event.text)
                self.is_ending_sent |= next_event.has_ending
        except (ConnectionError, TimeoutError):
            return response
        finally:
            self.readers -= 1
            self.asked_s = time.monotonic()
        return response

    def _next_event(self, sent: page_state.Sent) -> _Event:
        if sent not in self._events:
            self._events[sent] = self._made_event(sent)
        return self._events[sent]

    def _made_event(self, sent: page_state.Sent) -> _Event:
        after = page_state.sent_of(self.feed)
        if self._problem:
            return _Event(event("problem", {"error": self._problem}), after)
        if sent.edition != self.feed.edition:
            return _Event(event("again", {}), after)
        news = page_state.news(self.feed, sent)
        return _Event(event("news", news), after, has_ending=self.feed.ending is not None)

    async def mark(self, request: web.Request) -> web.Response:
        """Mark the moment with the request's text."""
        at_s = time.monotonic()
        try:
            said = await request.text()
        except (LookupError, UnicodeDecodeError):
            raise RefusedError(400, "a mark is a text in UTF-8") from None
        except web.RequestPayloadError:
            raise RefusedError(400, "the body of the request cannot be read") from None
        try:
            text = text_of_mark(said)
        except PlanError as error:
            raise RefusedError(400, f"the text of the mark {error}") from None
        marked = await asyncio.to_thread(mark_run, self.path, text, at_s)
        return json_answer(msgspec.to_builtins(marked))

    async def end(self, _: web.Request) -> web.Response:
        """End the run as Ctrl-C does."""
        if self._stop is None:
            raise RefusedError(
                409,
                "this page was not started by the soak, so it cannot end it; press Ctrl-C there",
            )
        self._stop()
        return json_answer({"stopping": True})

    async def download(self, request: web.Request) -> web.Response:
        """The report of the run so far, made by a process of its own."""
        self._require_read()
        return await self._downloads.answer(request.match_info["file"])
