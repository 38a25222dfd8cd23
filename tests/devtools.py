"""A real Chromium without a window, driven by its DevTools protocol (chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from programs import DEADLINE_S


def find_chromium() -> str | None:
    """A Chromium of this host, or None."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


class Tab:
    """One page, with its requests, log entries and dialogs."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = asyncio.Event()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **params)

    async def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def show(self, page: Path | str, *, width: int, dark: bool = False, printed: bool = False) -> None:
        """Load the page at this width, in light or dark, on a screen or as on paper."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", media="print" if printed else "screen", features=[scheme])
        self.loaded.clear()
        await self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        await asyncio.wait_for(self.loaded.wait(), DEADLINE_S)

    def hear(self, event: dict[str, Any]) -> None:
        method, params = event["method"], event["params"]
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded.set()
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening", "Log.entryAdded"):
            self.complaints.append(f"{method}: {params}")


class Browser:
    """The browser process and its DevTools socket."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="asyncli-chromium-", ignore_cleanup_errors=True)
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu")
        arguments = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self._folder.name}", *quiet, *root, "about:blank"]
        self._process = subprocess.Popen([self._binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        address = Path(self._folder.name) / "DevToolsActivePort"
        async with asyncio.timeout(DEADLINE_S):
            while not (address.exists() and (lines := address.read_text().split())):
                assert self._process.poll() is None, "chromium has ended"
                await asyncio.sleep(0.02)
        self._client = aiohttp.ClientSession()
        self._socket = await self._client.ws_connect(f"ws://127.0.0.1:{lines[0]}{lines[1]}", max_msg_size=0)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reading.cancel()
        await self._client.close()
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        self._folder.cleanup()

    async def tab(self) -> Tab:
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        self._tabs[session] = Tab(self, session)
        return self._tabs[session]

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        return await asyncio.wait_for(answer, DEADLINE_S)

    async def _read(self) -> None:
        async for message in self._socket:
            event = message.json()
            waiting = self._waiting.pop(event.get("id", 0), None)
            if waiting is not None and "error" in event:
                waiting.set_exception(AssertionError(str(event["error"])))
            elif waiting is not None:
                waiting.set_result(event["result"])
            elif event.get("sessionId") in self._tabs:
                self._tabs[event["sessionId"]].hear(event)
