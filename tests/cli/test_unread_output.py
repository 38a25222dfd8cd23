"""Output without a reader: it blocks neither the run nor its files, and a signal ends the wait for the reader."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import ASYNCLI, DEADLINE_S, SHORT, held, recorded, require_whole, serving, until
from rich.console import Console

from asyncli.cli import stdio as outlets_module
from asyncli.cli.stdio import Outlet
from asyncli.model.exit_status import exit_status
from asyncli.model.plan import Plan
from asyncli.report.live import JsonView, PlainView
from asyncli.report.livestate import LiveState

INTERRUPTED = 130


def stopped_terminal() -> tuple[int, int]:
    """Master and slave of a terminal whose output is stopped, as by Ctrl-S."""
    master, slave = pty.openpty()
    termios.tcflow(slave, termios.TCOOFF)
    return master, slave


def full_pipe() -> tuple[int, int]:
    """Both ends of a full pipe."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    return reader, writer


@contextmanager
def unread(where: str, folder: Path, *arguments: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A soak whose screen, log or whole output is not read, and the descriptor to read it from."""
    reader, writer = stopped_terminal() if where == "screen" else full_pipe()
    words = [*ASYNCLI, "soak", "-c", "3", *SHORT, "--out", folder / "run.db", "--json", folder / "run.json", *arguments]
    process = subprocess.Popen(
        [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL if where == "stderr" else writer,
        stderr=writer, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(writer)
    try:
        yield process, reader
    finally:
        process.kill()
        process.wait()
        os.close(reader)


@pytest.mark.parametrize(("where", "more"), [("screen", ()), ("log", ()), ("stderr", ("--log-json",))])
def test_run_and_files_do_not_wait_for_a_reader(tmp_path: Path, where: str, more: tuple[str, ...]) -> None:
    with serving() as server, unread(where, tmp_path, "--hold", "1", *more, server.url) as (process, reader):
        # All files are written although nothing reads the output.
        until(lambda: (tmp_path / "run.json").exists() and (tmp_path / "run.json").stat().st_size, "the JSON is written")
        summary = json.loads((tmp_path / "run.json").read_text())
        assert summary["run"]["complete"]
        status = exit_status(summary["run"]["verdict"])
        require_whole(status, summary)
        assert process.poll() is None, "the report waits for its reader"
        said = b""
        if where == "log":
            # A reader that resumes gets all of it.
            while part := os.read(reader, 1 << 16):
                said += part
            assert b"held 3 of 3" in said
            assert f"\n{summary['run']['verdict'].upper()}".encode() in said
        else:
            # The run was complete: the first signal only ends the wait.
            process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == status


def test_one_signal_ends_a_run_without_a_reader(tmp_path: Path) -> None:
    with serving() as server, unread("log", tmp_path, "--hold", "forever", server.url) as (process, _):
        until(lambda: held(tmp_path) == 3, "all are held")
        process.send_signal(signal.SIGTERM)
        status, summary = process.wait(DEADLINE_S), json.loads((tmp_path / "run.json").read_text())
        require_whole(status, summary)
        assert summary["run"]["complete"]


def test_two_signals_end_a_run_without_a_reader(tmp_path: Path) -> None:
    with serving() as server, unread("screen", tmp_path, "--hold", "forever", server.url) as (process, _):
        until(lambda: held(tmp_path) == 3, "all are held")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == INTERRUPTED
        assert recorded(tmp_path / "run.db") is not None


async def test_log_in_a_loop_is_bounded_and_counts_dropped_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    # A bound of some lines of each log.
    for view_of, most in ((PlainView, 1000), (JsonView, 4000)):
        monkeypatch.setattr(outlets_module, "_MOST_IN_A_LOOP", most)
        reader, writer = full_pipe()
        outlet = Outlet(writer)
        console = Console(file=io.TextIOWrapper(outlet, "utf-8", write_through=True), width=80)
        view = view_of(Plan(urls=("http://127.0.0.1:1/",)), console)
        for second in range(0, 1000, 10):
            view.update(LiveState(phase="hold", elapsed_s=float(second)))
        dropped = outlet.dropped
        assert 70 < dropped < 100
        # Data may be read before its writer has counted it.
        os.set_blocking(reader, False)
        said = b""
        while outlet.behind:
            with contextlib.suppress(BlockingIOError):
                said += os.read(reader, 1 << 16)
            await asyncio.sleep(0.001)
        view.update(LiveState(phase="hold", elapsed_s=1000.0))
        until(lambda outlet=outlet: not outlet.behind, "it is written")
        said += os.read(reader, 1 << 16)
        lines = said.decode().lstrip("x").splitlines()
        # The JSON log also has a line for the phase.
        assert len(lines) == (100 if view_of is PlainView else 101) - dropped + 2
        missing = lines[-2]
        if view_of is PlainView:
            assert missing.startswith(f"0:16:40  {dropped} ")
        else:
            assert json.loads(missing)["lines"] == dropped
        os.close(reader)
        os.close(writer)


def test_write_error_is_raised_once_and_names_what_was_printed() -> None:
    with Path("/dev/full").open("wb") as full:
        outlet = Outlet(full.fileno())
        outlet.what = "the report"
        outlet.write(b"a")
        with pytest.raises(OSError, match="No space") as caught:
            outlet.wait(DEADLINE_S)
        assert caught.value.filename == "the report"
        outlet.flush()
        assert not outlet.behind


ENDS_AS_ITS_THREAD_HOLDS_THE_LOCK = """
import io, sys, threading
from asyncli.cli.stdio import Outlet
outlet, held = Outlet(1), threading.Event()
def hold():
    with outlet._changed:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
sys.stdout = io.TextIOWrapper(outlet)
"""


def test_the_end_of_the_program_waits_for_no_stopped_thread() -> None:
    """The interpreter stops daemon threads, perhaps with a lock held, and then flushes its streams."""
    assert subprocess.run([sys.executable, "-c", ENDS_AS_ITS_THREAD_HOLDS_THE_LOCK], timeout=DEADLINE_S, check=False).returncode == 0
