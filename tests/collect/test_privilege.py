"""The finding for an ordinary user: what needs root, and the command."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from asyncli.collect import privilege
from asyncli.collect.privilege import unprivileged


def test_one_finding_lists_all_that_needs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "with space/asyncli"
    script.parent.mkdir()
    script.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "soak", "--out", "a.db", "-c", "5", "--out=b.db", "http://[::1]/a b"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    # The tests may run as root, who can read every file.
    monkeypatch.setattr(privilege, "_readable", lambda path: path.name not in ("slabinfo", "smaps_rollup"))
    for pids, hidden, flag, count in (((), True, "--server-pid 20", 2), ((20, 21), False, "", 2), ((), False, "", 1)):
        told = unprivileged(pids, hidden, flag)
        assert told is not None
        assert (told.code, told.severity, len(told.fields["unknown"])) == ("needs_root", "warning", count)
        assert shlex.split(told.remedy.partition(";")[0]) == ["sudo", str(script), "soak", "-c", "5", "http://[::1]/a b"]
        assert (flag in told.remedy) is True
    secret = ["--header", "Authorization: s3cret", "--header=X-A: s3cret", "--send", "AUTH s3cret", "--on-finish=curl s3cret", "--status-header", "X-B: s3cret", "--status-url", "http://me:s3cret@h/", "ws://h/a?t=s3cret"]
    monkeypatch.setattr(sys, "argv", [str(script), "soak", "-c", "5", *secret])
    shown = ["--header", "Authorization: ***", "--header=X-A: ***", "--send", "***", "--on-finish=***", "--status-header", "X-B: ***", "--status-url", "http://***@h/", "ws://h/a?***"]
    assert shlex.split(privilege.as_root()) == ["sudo", str(script), "soak", "-c", "5", *shown]
    # A notebook's arguments are not asyncli's.
    monkeypatch.setattr(sys, "argv", ["-c", "x"])
    assert privilege.as_root().split()[1:5] == [sys.executable, "-m", "asyncli", "..."]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert unprivileged((), True, "") is None


def test_no_finding_where_all_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "20").mkdir()
    for name in ("slabinfo", "20/smaps_rollup"):
        (tmp_path / name).write_text("x")
    assert unprivileged((20,), False, "", tmp_path) is None
