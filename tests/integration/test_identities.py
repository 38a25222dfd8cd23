"""Connections that differ, really soaked: what a server hears of each."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import pytest
from programs import SHORT, report, run, speaking, until

N = 40
HOLD = ("-c", str(N), "--hold", "1.2", "--workers", "2", "--out", "run.db", "--quiet")


@pytest.mark.parametrize("named", [False, True])
def test_each_connection_asks_as_itself_on_all_its_heartbeats(tmp_path: Path, named: bool) -> None:
    heard: list[set[bytes]] = []

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: set[bytes] = set()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                asked.add(b" ".join(re.findall(rb"(?:HEAD|X-Meter:) (\S+)", head)))
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        heard.append(asked)
        writer.close()

    (tmp_path / "rows.csv").write_text("".join(["meter,owner\n", *(f"m-{n},owner-{n}\n" for n in range(N))]))
    more = ("--data", "rows.csv", "--header", "X-Meter: {meter}") if named else ("--header", "X-Meter: {n:06d}-{random}")
    with speaking(client) as at:
        done = run(tmp_path, "soak", f"http://{at}/{{n}}?{'{owner}' if named else '{literal}'}", *more, "--seed", "4140", *SHORT, *HOLD)
        # It hears of an end a while after the soak's, and what it has not heard until the block's end it never does.
        until(lambda: len(heard) >= N, "the server has heard all to their end")
    summary = report(tmp_path, "run.db")
    assert (done.err, summary["connections"]["lost"], summary["heartbeats"]["answered"] > N) == ("", 0, True)
    form = "/{0}?owner-{0} m-{0}" if named else "/{0}?{{literal}} {0:06d}-00102c"
    assert sorted(heard, key=str) == sorted(({form.format(n).encode()} for n in range(N)), key=str)
    assert ("data" in summary["plan"]) == named
    if named:
        (tmp_path / "rows.csv").write_text("meter,owner\nm-0,owner-0\n")
        short = run(tmp_path, "check", "http://127.0.0.1:1/{owner}", "--data", "rows.csv", "-c", "2")
        assert (short.status, len(short.err.splitlines())) == (2, 1)
