"""Output that cannot be written: a broken pipe changes nothing, a full disk is one line, and no result is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import with_deaths
from programs import ASYNCLI, DEADLINE_S, SHORT, Server, serving
from recording import write_run
from synthetic_run import a_run

ERROR = b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"
FAILED = 99
pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(answer=ERROR) as server:
        yield server


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(with_deaths(), tmp_path_factory.mktemp("run") / "run.db")


def printed_to(where: str, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error; standard output is "full", "left" (a broken pipe) or "kept"."""
    out: int | None = None
    if where == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    elif where == "left":
        reader, out = os.pipe()
        os.close(reader)
    # Buffered, as by default.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [*ASYNCLI, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if out is None else out,
        stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False, env=environment,
    )  # fmt: skip
    if out is not None:
        os.close(out)
    return done.returncode, done.stdout or "", done.stderr


def complaint(err: str) -> str:
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    line = err.splitlines()[-1]
    assert line.startswith("asyncli: ")
    assert " No space " in line or "(No space " in line
    assert "; " in line
    return line


BENCH = ("-n", "20", "-c", "2")


@pytest.mark.parametrize("arguments", [(), ("--json", "-")], ids=" ".join)
def test_bench_with_a_broken_pipe_keeps_its_exit_status(server: Server, arguments: tuple[str, ...]) -> None:
    status, _, err = printed_to("left", "bench", server.url, *BENCH, *arguments)
    assert status == FAILED
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert (err == "") is ("--json" not in arguments)


def test_unwritable_json_loses_no_report(server: Server) -> None:
    status, out, err = printed_to("kept", "bench", server.url, *BENCH, "--json", "/dev/full")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "--json: /dev/full " in complaint(err)
    assert out.startswith("FAILED")


def test_soak_prints_what_it_can(tmp_path: Path, server: Server) -> None:
    status, _, err = printed_to("full", "soak", server.url, *SHORT, "-c", "5", "--hold", "0.2", "--out", tmp_path / "a.db", "--json", tmp_path / "a.json")
    assert status == 2
    complaint(err)
    assert (tmp_path / "a.json").exists()


@pytest.mark.parametrize("arguments", ["report RUN", "report RUN --csv CSV", "--help"])
def test_every_command_that_prints(tmp_path: Path, recorded: Path, arguments: str) -> None:
    places = {"RUN": recorded, "CSV": tmp_path / "csv"}
    words = [places.get(word, word) for word in arguments.split()]
    assert printed_to("left", *words) == (0, "", "")
    status, _, err = printed_to("full", *words)
    assert (status, len(err.splitlines())) == (2, 1)
    complaint(err)


def test_error_on_a_broken_pipe_keeps_its_status() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*ASYNCLI, "soak", "localhost"], stdout=subprocess.PIPE, stderr=full, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2


def test_internal_error_is_not_reported_as_a_full_disk() -> None:
    code = "from asyncli.cli import main\ndef broken(*_): raise OSError(28, 'of ours')\nmain.cli.invoke = broken\nmain.run(['runs'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert "OSError: [Errno 28] of ours" in done.stderr


def test_a_line_is_in_the_encoding_of_its_stream(tmp_path: Path) -> None:
    run = write_run(a_run(30_000), tmp_path / "run.db")
    for encoding, sign in (("ascii", "+-"), ("latin-1", "±"), ("utf-8", "±")):
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        line = subprocess.run([*ASYNCLI, "watch", "--once", run], capture_output=True, check=True, env=environment).stdout
        assert f" B {sign} " in line.decode(encoding)
