"""Agents for tests: real processes in the test's network namespace, and responses of a fake agent."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from programs import DEADLINE_S, Program, until

TOKEN = "a-token-of-the-tests-0123456789"
SPOKEN = {"Asyncli-Protocol": "1"}


def token_file(folder: Path, token: str = TOKEN) -> Path:
    path = folder / "token"
    path.write_text(f"{token}\n", encoding="ascii")
    path.chmod(0o600)
    return path


class AnAgent(Program):
    """``asyncli agent`` in ``folder``, listening."""

    def __init__(self, folder: Path, *arguments: str | Path, listen: str = "127.0.0.1:0", name: str = "agent") -> None:
        super().__init__(folder, "agent", "--listen", listen, *arguments, name=name)
        try:
            self.url: str = self.until(lambda: re.search(r"listens at (\S+)", self.err), "the agent listens")[1]
        except BaseException:
            self.__exit__()
            raise

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of its answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, body, {**SPOKEN, **named}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def hello(self) -> dict[str, Any]:
        def ask() -> bytes:
            # 429: too many requests.
            status, body = self.ask("/v1/hello")
            assert status in (200, 429)
            return body if status == 200 else b""

        found: dict[str, Any] = json.loads(until(ask, "it answers"))
        return found


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status.encode(), len(body), body)
