"""Whose a page of metrics is, by who listens there and by when the page's process started."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from own_processes import own_processes

from asyncli.collect import answering
from asyncli.collect.answering import PageOf, process_of_page
from asyncli.collect.metric_values import started_at
from asyncli.collect.metrics_page import parse_metrics
from asyncli.collect.procfs import TICKS_PER_S, read_stat

LISTENS = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True); input()"
SERVER = PageOf()
# Long before any process.
AT_NO_TIME = 1.0


class Listens(NamedTuple):
    pid: int
    url: str

    @property
    def started_s(self) -> float:
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted_s + read_stat(self.pid).start_ticks / TICKS_PER_S

    @property
    def page(self) -> PageOf:
        return PageOf(read_stat(self.pid).name, self.pid)


class Programs(NamedTuple):
    """A proxy; a server behind it that started a moment later; and a program beside it that started with that."""

    proxy: Listens
    behind: Listens
    beside: Listens


def start() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", LISTENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def listening(process: subprocess.Popen[bytes]) -> Listens:
    assert process.stdout is not None
    port = int(process.stdout.readline())
    return Listens(process.pid, f"http://127.0.0.1:{port}/metrics")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    monkeypatch.setattr(answering, "_STARTED_WITHIN_S", 0.5)
    monkeypatch.setattr(answering, "parents", own_processes)
    first = start()
    proxy = listening(first)
    time.sleep(1.5)
    second, third = start(), start()
    with first, second, third:
        yield Programs(proxy, listening(second), listening(third))
        for process in (first, second, third):
            process.communicate(b"\n")


def test_a_page_is_of_who_listens_there(programs: Programs) -> None:
    proxy, behind, _ = programs
    assert process_of_page(proxy.url, None, [proxy.pid]) == SERVER
    assert process_of_page(behind.url, None, [proxy.pid]) == behind.page
    assert process_of_page(behind.url, behind.started_s, [proxy.pid]) == behind.page
    assert process_of_page(behind.url, None, []) == PageOf()
    assert process_of_page("mqtt://127.0.0.1/", None, [proxy.pid]) == PageOf()


def test_its_own_start_tells_whose_a_page_is_that_a_proxy_passes_on(programs: Programs) -> None:
    proxy, behind, beside = programs
    apart = {beside.pid}
    assert process_of_page(proxy.url, behind.started_s, [proxy.pid], apart) == behind.page
    assert process_of_page(proxy.url, behind.started_s, [proxy.pid], {behind.pid, *apart}) == SERVER
    # A proxy of the page beside the server that it is of.
    assert process_of_page(proxy.url, behind.started_s, [behind.pid]) == SERVER
    assert process_of_page(proxy.url, proxy.started_s, [proxy.pid]) == SERVER
    # Nobody started then: who listens decides.
    assert process_of_page(proxy.url, AT_NO_TIME, [proxy.pid]) == SERVER
    assert process_of_page(behind.url, AT_NO_TIME, [proxy.pid]) == behind.page


def test_of_several_that_started_then_it_is_the_one_behind_the_server(programs: Programs) -> None:
    proxy, behind, beside = programs
    started_s = (behind.started_s + beside.started_s) / 2
    of_page = process_of_page(proxy.url, started_s, [proxy.pid])
    assert (of_page.name, sorted(of_page.perhaps)) == ("", sorted([behind.pid, beside.pid]))
    assert of_page.of_one_of([behind.pid, proxy.pid]) == behind.page
    assert of_page.of_one_of([proxy.pid]) == of_page


def test_a_page_says_when_its_process_started() -> None:
    assert started_at(parse_metrics(b"process_start_time_seconds 1.79595352548e+09\n")) == 1_795_953_525.48
    assert started_at(parse_metrics(b"process_open_fds 3\n")) is None
    assert started_at(parse_metrics(b"process_start_time_seconds NaN\n")) is None
    of_two = b'process_start_time_seconds{pid="1"} 5.0\nprocess_start_time_seconds{pid="2"} 6.0\n'
    assert started_at(parse_metrics(of_two)) is None
