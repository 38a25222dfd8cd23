"""Serves the runs of a folder: a list as its start page, and below it the live page of each run.

``/metrics`` is of the folder (how many runs there are), ``/run/NAME/metrics`` of a run: whoever
scrapes one run would otherwise have all of them read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from aiohttp import web
from prometheus_client.core import GaugeMetricFamily, Metric

from asyncli.live.access import Access
from asyncli.live.answers import asset, event, event_stream, healthy, json_answer, page_file
from asyncli.live.open_runs import OpenRuns
from asyncli.live.page_server import LONGEST_BODY
from asyncli.live.reference import References
from asyncli.live.run_list import RunList
from asyncli.live.run_page import UNREAD_S, RunPage
from asyncli.live.serve import ServedAt, tls_of
from asyncli.live.verdicts import VerdictProcess
from asyncli.model.errors import PlanError, StoreError
from asyncli.model.text import printable
from asyncli.store.run_folder import run_file_in
from asyncli.web.exposition import page_of
from asyncli.web.guard import RefusedError
from asyncli.web.guarded_server import GuardedServer, get

_TURN_S = 1.0
# The list is kept up for so long after it was asked for.
_LISTED_FOR_S = 10.0
# A list that does not change: so often a reader is asked whether it is there.
_STILL_S = 10.0

#: What answers of one run.
_Answer = Callable[[RunPage, web.Request], Awaitable[web.StreamResponse]]


def folder_server_of(folder: Path, place: ServedAt, log: Callable[[str], None]) -> FolderServer:
    """Raises :class:`~asyncli.model.errors.AsyncliError` for a certificate that cannot be used."""
    return FolderServer(
        folder,
        host=place.host,
        port=place.port,
        token=place.token,
        must_have_token=place.must_have_token,
        tls=tls_of(place),
        log=log,
    )


class FolderServer:
    """Serves the runs of ``folder`` at ``host``:``port``; see
    :class:`~asyncli.live.page_server.PageServer` for the rest. It ends no run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str,
        port: int,
        token: str,
        must_have_token: bool,
        tls: ssl.SSLContext | None,
        log: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self.runs = RunList(folder)
        self.open_runs = OpenRuns(log)
        self._references = References()
        self._verdicts = VerdictProcess()
        self._refreshing = asyncio.Lock()
        self._changed = asyncio.Condition()
        #: How many read the list as a stream, and when it was last asked for (monotonic s).
        self._readers = 0
        self._asked_s = -_LISTED_FOR_S
        self._refreshed_s = -_LISTED_FOR_S
        access = Access(token, host, log, must_have_token=must_have_token)
        routes = [
            get("/-/healthy", healthy),
            get("/metrics", self._metrics),
            web.get("/", _folder_page),
            web.get("/assets/{name}", asset),
            get("/runs", self._list),
            get("/events", self._events),
            web.get("/run/{name}", _to_run_page),
            web.get("/run/{name}/", _run_page),
            get("/run/{name}/history", self._of_run(self._history)),
            get("/run/{name}/events", self._of_run(RunPage.events)),
            get("/run/{name}/metrics", self._of_run(RunPage.metrics)),
            get("/run/{name}/download/{file}", self._of_run(RunPage.download)),
            web.post("/run/{name}/mark", self._of_run(RunPage.mark)),
            web.post("/run/{name}/stop", self._of_run(RunPage.end)),
        ]
        self._access = access
        #: What listens.
        self.server = GuardedServer(
            routes,
            access,
            access.guard,
            host=host,
            port=port,
            flag="--web",
            tls=tls,
            longest_body=LONGEST_BODY,
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.server.port

    async def read(self) -> None:
        """Look at the folder. Raises :class:`~asyncli.model.errors.PlanError` where it cannot be
        listed.
        """
        await self._refresh()
        if self.runs.problem:
            raise PlanError(f"{self.runs.problem}; see its permissions")

    async def listen(self) -> None:
        """Listen. Raises :class:`~asyncli.model.errors.HostError` where it cannot."""
        await self.server.open()

    async def run(self) -> None:
        """Keep the list up while somebody reads it, until cancelled."""
        judging = asyncio.create_task(self._judge())
        try:
            while True:
                await asyncio.sleep(_TURN_S)
                if self._is_read:
                    await self._refresh()
                await self.open_runs.sweep()
                self.server.sweep()
                if judging.done():
                    judging.result()
        finally:
            judging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await judging

    async def close(self) -> None:
        await self.open_runs.close()
        await self._verdicts.close()
        await self.server.close()

    @property
    def _is_read(self) -> bool:
        return self._readers > 0 or time.monotonic() < self._asked_s + _LISTED_FOR_S

    async def _refresh(self) -> None:
        async with self._refreshing:
            await asyncio.to_thread(self.runs.refresh)
            self._refreshed_s = time.monotonic()
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _judge(self) -> None:
        """Compute verdicts while somebody reads the list, one after another."""
        while True:
            path = self.runs.next_unjudged() if self._is_read else None
            if path is None:
                await self._verdicts.close()
                await asyncio.sleep(_TURN_S)
                continue
            judged = await self._verdicts.judge(path)
            async with self._refreshing:
                self.runs.judged(path, judged)

    def _of_run(self, answer: _Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """What answers with the run that the request's path names."""

        async def handler(request: web.Request) -> web.StreamResponse:
            path = await self._path_of(request.rel_url.raw_path.split("/")[2])
            if path is None:
                raise RefusedError(404, "there is no such run in this folder", is_logged=False)
            page = await self.open_runs.page_of(path)
            return await answer(page, request)

        return handler

    async def _path_of(self, quoted: str) -> Path | None:
        """The run file with this name, as an address writes it: bytes, which need not be UTF-8."""
        name = os.fsdecode(urllib.parse.unquote_to_bytes(quoted))
        return await asyncio.to_thread(run_file_in, self._folder, name)

    # Answers.

    async def _history(self, page: RunPage, request: web.Request) -> web.Response:
        """The whole run, with the run under it that the query names."""
        reference = None
        why_not = ""
        quoted = _reference_in(request.rel_url.raw_query_string)
        if quoted:
            path = await self._path_of(quoted)
            try:
                reference = await self._references.read(path)
            except StoreError as error:
                why_not = printable(str(error))
        return page.history(reference, why_not, is_owner=self._access.is_owner(request))

    async def _asked(self) -> None:
        """Note that the list is read; look at the folder if nobody did lately."""
        self._asked_s = time.monotonic()
        if self._asked_s > self._refreshed_s + _TURN_S:
            await self._refresh()

    async def _list(self, _: web.Request) -> web.Response:
        await self._asked()
        return json_answer(self.runs.document())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """A stream of events: ``runs`` with the list at first and after each change, ``still`` in
        between.
        """
        await self._asked()
        response = await event_stream(request)
        self._readers += 1
        sent_version = 0
        try:
            while True:
                sent_version = self.runs.version
                async with asyncio.timeout(UNREAD_S):
                    await response.write(event("runs", self.runs.document()))
                while self.runs.version == sent_version:
                    await self._wait_for_change(response, sent_version)
        except (ConnectionError, TimeoutError):
            return response
        finally:
            self._readers -= 1
            self._asked_s = time.monotonic()

    async def _wait_for_change(self, response: web.StreamResponse, version: int) -> None:
        latest_s = time.monotonic() + _STILL_S
        while self.runs.version == version:
            if time.monotonic() > latest_s:
                async with asyncio.timeout(UNREAD_S):
                    await response.write(event("still", {}))
                return
            async with self._changed:
                await self._changed.wait()

    async def _metrics(self, request: web.Request) -> web.Response:
        await self._asked()
        body, content_type = page_of(self._families(), request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    def _families(self) -> Iterator[Metric]:
        files = GaugeMetricFamily(
            "asyncli_run_files", "run files in the folder, by state", labels=["state"]
        )
        for state, count in self.runs.counts().items():
            files.add_metric([state], count)
        yield files
        yield GaugeMetricFamily(
            "asyncli_runs_open", "runs that are looked at, with their history in memory",
            len(self.open_runs),
        )  # fmt: skip


def _reference_in(query: str) -> str:
    """The value of ``reference``, as the query writes it; "": none."""
    for part in query.split("&"):
        key, _, value = part.partition("=")
        if key == "reference":
            return value
    return ""


async def _folder_page(_: web.Request) -> web.Response:
    return page_file("folder.html")


async def _to_run_page(request: web.Request) -> web.Response:
    """The page's own links are below its address. A relative one also holds behind a proxy that
    serves the folder below another path.
    """
    address = request.rel_url
    query = f"?{address.raw_query_string}" if address.raw_query_string else ""
    return web.Response(status=301, headers={"Location": f"./{address.raw_name}/{query}"})


async def _run_page(_: web.Request) -> web.Response:
    return page_file("index.html")
