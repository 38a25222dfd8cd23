"""The lines that a process of asyncli's own writes."""

from __future__ import annotations

import os
import time

from asyncli.model.own_process import LinesFrom


def test_lines_come_one_by_one_and_end_with_the_pipe() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        lines = LinesFrom(pipe)
        begun_s = time.monotonic()
        assert lines.next(0.05) is None
        assert time.monotonic() - begun_s >= 0.04
        os.write(writing, b"one\ntwo\nthr")
        assert [lines.next(), lines.next(), lines.next()] == [b"one", b"two", None]
        assert not lines.has_ended
        os.write(writing, b"ee\nno end")
        os.close(writing)
        assert lines.next() == b"three"
        assert lines.next(60.0) is None
        assert lines.has_ended


def test_what_is_no_line_ends_it() -> None:
    with open("/dev/zero", "rb", buffering=0) as pipe:
        lines = LinesFrom(pipe)
        assert lines.next(60.0) is None
        assert lines.has_ended
