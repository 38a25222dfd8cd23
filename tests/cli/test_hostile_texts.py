"""Hostile texts of a server, of its processes and of a foreign run file: none ends a soak or controls a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

from fault_table import require_as_written
from made_runs import a_run
from programs import SHORT, here, report, serving
from recording import write_run

from asyncli.store.reader import read_run

_PAGE = b"Active connections: 1 \nserver accepts handled requests\n 1 1 1 \nReading: 0 Writing: 1 Waiting: 0 \n"


def status_page(good: int, reason: bytes) -> Callable[[int], bytes]:
    """nginx's page for the first ``good`` polls, then 503 with ``reason``; the server's name sets a terminal title."""

    def answer(poll: int) -> bytes:
        head, body = (b"200 OK", _PAGE) if poll <= good else (b"503 " + reason, b"")
        server = b"Server: fake\x1b]0;own\x07/1.0\xe9"
        return b"HTTP/1.1 %s\r\n%s\r\nContent-Length: %d\r\n\r\n%s" % (head, server, len(body), body)

    return answer


def test_a_status_page_whose_words_are_no_text_is_a_gap(tmp_path: Path) -> None:
    reason = b"surcharg\xe9 \x1b]0;own\x07"
    with serving() as server, serving(answer=status_page(3, reason)) as status:
        soak = ("soak", server.url, "-c", "5", *SHORT, "--hold", "3s", "--status-url", status.url, "--out", "run.db")
        done = here(tmp_path, *soak, "--log-json")
    assert done.status in (0, 4), done.err
    assert "\x1b" not in done.out + done.err
    (lost,) = (one for one in read_run(tmp_path / "run.db").findings if one.code == "status_lost")
    require_as_written("test_a_status_page_whose_words_are_no_text_is_a_gap", report(tmp_path, "run.db"))
    told = [json.loads(line) for line in done.out.splitlines()]
    assert [one["evidence"] for one in told if one.get("code") == "status_lost"] == [lost.evidence]
    assert read_run(tmp_path / "run.db").environment["server"]["version"] == "fake?]0;own?/1.0?"


def test_refused_status_page_does_not_control_the_terminal(tmp_path: Path) -> None:
    with serving() as server, serving(answer=status_page(0, b"\x1b]0;own\x07\x1b[2J")) as status:
        done = here(tmp_path, "soak", server.url, "--status-url", status.url)
    assert done.status == 2
    assert "503 ?]0;own??[2J" in done.err
    assert "\x1b" not in done.err


def test_server_executable_path_is_not_text(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9\x1b"
    os.mkdir(folder)
    shutil.copy(os.fsencode(str(shutil.which("sleep"))), folder + b"/served")
    with serving() as server, subprocess.Popen([folder + b"/served", "600"]) as process:
        try:
            soak = ("soak", server.url, "-c", "5", *SHORT, "--hold", "0.2s", "--server-pid", str(process.pid))
            done = here(tmp_path, *soak, "--out", "run.db", "--json", "run.json")
        finally:
            process.kill()
    assert done.status in (0, 4), done.err
    exe = json.loads((tmp_path / "run.json").read_text())["environment"]["server"]["exe"]
    assert exe == f"{tmp_path}/caf??/served"


def test_foreign_run_file_does_not_control_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]0;own\x07\x1b[2J"
    whole = a_run(1000)
    whole.ticks[-5][1].failures = {f"ref{hostile}used": 3}
    write_run(whole, tmp_path / "good.db", run_id="a")
    write_run(whole, tmp_path / "bad.db", run_id=f"b{hostile}")
    with sqlite3.connect(tmp_path / "bad.db") as bad:
        environment = json.loads(bad.execute("SELECT value FROM meta WHERE key = 'environment'").fetchone()[0])
        environment |= {"host": hostile, "kernel": hostile, "python": hostile, "cpu_model": hostile}
        environment["server"] = {"label": hostile, "version": hostile, "pid": 1, "exe": hostile, "config_hash": hostile}
        bad.execute("UPDATE meta SET value = ? WHERE key = 'environment'", (json.dumps(environment),))
        fields = json.dumps({hostile: hostile}).encode()
        bad.execute("INSERT INTO findings VALUES (1.0, ?, 'error', ?, ?, ?)", (hostile, hostile, hostile, fields))
        check = {"code": hostile, "what": hostile, "verdict": "short", "unit": hostile, "detail": hostile, "remedy": hostile}
        bad.execute("INSERT INTO checks VALUES (99, ?)", (json.dumps(check),))
        bad.execute("INSERT INTO metrics VALUES (999, ?)", (f"kernel.slab.{hostile}",))
        bad.execute("INSERT INTO samples SELECT max(t_s), 999, 5.0 FROM samples")
    bad.close()
    for arguments in (("report", "bad.db"), ("runs",), ("compare", "good.db", "bad.db"), ("watch", "bad.db"), ("watch", "bad.db", "--log-json")):
        done = here(tmp_path, *arguments)
        assert done.status == 0, done
        said = done.out + done.err
        assert not [char for char in said if not char.isprintable() and char != "\n"], arguments
        assert "\\u001b" not in said
    with sqlite3.connect(tmp_path / "bad.db") as bad:
        plan = json.loads(bad.execute("SELECT value FROM meta WHERE key = 'plan'").fetchone()[0])
        bad.execute("UPDATE meta SET value = ? WHERE key = 'plan'", (json.dumps({**plan, "server_name": hostile}),))
    bad.close()
    done = here(tmp_path, "report", "bad.db")
    assert (done.status, done.out) == (2, "")
    assert "\x1b" not in done.err
