"""Connections that differ, really soaked: what a server hears of each."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

from programs import SHORT, report, run, speaking

N = 40
HOLD = ("-c", str(N), "--hold", "1.2", "--workers", "2", "--out", "run.db", "--quiet")


def test_each_connection_asks_as_itself_on_all_its_heartbeats(tmp_path: Path) -> None:
    heard: list[set[bytes]] = []

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: set[bytes] = set()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                asked.add(b" ".join(re.findall(rb"(?:HEAD|X-Meter:) (\S+)", head)))
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        heard.append(asked)
        writer.close()

    with speaking(client) as at:
        done = run(tmp_path, "soak", f"http://{at}/of/{{n}}?{{literal}}", "--header", "X-Meter: {n:06d}-{random}", "--seed", "4140", *SHORT, *HOLD)
    summary = report(tmp_path, "run.db")
    assert (done.err, summary["connections"]["lost"], summary["heartbeats"]["answered"] > N) == ("", 0, True)
    assert sorted(heard, key=str) == sorted(({b"/of/%d?{literal} %06d-00102c" % (n, n)} for n in range(N)), key=str)
