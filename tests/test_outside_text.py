"""Untrusted texts are made printable where they become records."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from programs import serving

from asyncli.app.recorder import NoObserver
from asyncli.app.soak import Soak
from asyncli.collect.locate import ServerFacts
from asyncli.model.plan import Plan
from asyncli.model.records import Check, Finding, Sample, Tick
from asyncli.model.run import Run
from asyncli.model.text import brief, first_part, oneline, plain, printable, quoted, shortened
from asyncli.report.livestate import LiveObserver
from asyncli.store.reader import read_run

#: Escape sequences that set a window's title and clear the screen, a byte that is not UTF-8, and right-to-left text.
HOSTILE = "a\x1b]0;own\x07\x1b[2J\udce9\u202eb\x9b"
TAME = "a?]0;own??[2J???b?".replace("???b", "??b")


def test_a_reason_is_told_briefly() -> None:
    assert (brief(b"a\x1b\xff\nb"), brief(b"")) == ("a?\ufffd b", "")


@pytest.mark.parametrize(
    ("text", "shown"), [("plain  text, äöü 漢", "plain  text, äöü 漢"), (HOSTILE, TAME), ("4096\t87380\n6", "4096 87380 6"), ("", "")]
)
def test_what_is_printable_stays_and_the_rest_does_not(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert oneline(f" {text} \r\n\t ") == " ".join(shown.split())
    assert printable(shown) == shown
    assert plain({text: [text, (text, 5, None)]}) == {shown: [shown, [shown, 5, None]]}
    shown.encode()


def test_every_record_that_bears_words_is_printable_however_it_was_made() -> None:
    finding = Finding("code", "info", HOSTILE, HOSTILE)
    assert (finding.evidence, finding.remedy) == (TAME, TAME)
    assert Check("code", HOSTILE, "ok", detail=HOSTILE).detail == TAME
    assert ServerFacts(exe=HOSTILE, name=HOSTILE).document()["label"] == TAME
    replaced = msgspec.structs.replace(finding, evidence="x\x1b")
    assert replaced.evidence == "x?"
    assert msgspec.json.decode(b'{"code":"c","severity":"info","evidence":"\\u001b[2J"}', type=Finding).evidence == "?[2J"
    assert msgspec.convert({"code": "c", "what": "\x1b", "verdict": "ok"}, Check).what == "?"


def soak(tmp_path: Path, watcher: Any, **settings: Any) -> Run:
    with serving() as server:
        plan = Plan(urls=(server.url,), connections=20, batch=20, keepalive_s=2.0, hold_s=1.5, baseline_s=0.2, residue_s=0.2, **settings)
        run = Soak(plan, tmp_path / "run.db", observer=watcher)
        watcher.stop, watcher.failed = run.stop, run.observer_failed
        asyncio.run(run.run())
    return read_run(tmp_path / "run.db")


def require_told_once(run: Run, why: str) -> None:
    assert run.complete
    assert run.ticks[-1][1].drained >= 1
    (told,) = (one for one in run.findings if one.code == "watcher_failed")
    assert why in told.evidence


class _Breaks(NoObserver):
    def __init__(self) -> None:
        self.called = 0

    def tick(self, t_s: float, tick: Tick) -> None:
        self.called += 1
        raise RuntimeError(f"no screen\x1b {HOSTILE}")


def test_a_watcher_that_raises_is_told_of_once_and_called_no_more(tmp_path: Path) -> None:
    watcher = _Breaks()
    require_told_once(soak(tmp_path, watcher), f"RuntimeError: no screen? {TAME}")
    assert watcher.called == 1


class _Blind(LiveObserver):
    """Fails as rich does for a pipe without a reader."""

    shown = 0

    def show(self, at_once: bool) -> None:
        self.shown += 1
        if self.fold.state().phase == "ramp":
            raise SystemExit(1)


def test_who_sees_nothing_any_more_still_ends_a_run_that_crosses_a_limit(tmp_path: Path) -> None:
    run = soak(tmp_path, _Blind(Plan(urls=("http://127.0.0.1/",), connections=20, fail_if=("connections.opened > 5",), abort=True)))
    require_told_once(run, "SystemExit")
    assert "aborted_by_limit" in {one.code for one in run.findings}


def test_what_cannot_be_folded_ends_the_showing_alone() -> None:
    watcher, failed = LiveObserver(Plan(urls=("http://127.0.0.1/",))), []
    watcher.failed = failed.append
    for _ in range(2):
        watcher.sample(Sample(1.0, {"server.processes": float("nan")}))
    assert [type(one) for one in failed] == [ValueError]


@pytest.mark.parametrize(
    ("text", "end", "part"),
    [
        ("nothing ever answered: 3 opened", ":", "nothing ever answered"), ("no answer was right (not a status line: b'x'): 3 opened", ":", "no answer was right (not a status line: b'x')"),
        ("it sent b'a: b)': 3", ":", "it sent b'a: b)'"), ("the server's own count [a: b]; more", "; ", "the server's own count [a: b]"), ('"a; b" came; more', "; ", '"a; b" came'),
        ("it sent (", ":", "it sent ("), ("it sent (: x", ":", "it sent (: x"),
    ],
)  # fmt: skip
def test_a_sentence_is_cut_in_no_bracket(text: str, end: str, part: str) -> None:
    assert first_part(text, end) == part


def test_a_text_that_is_cut_ends_visibly_cut() -> None:
    assert (quoted(b"x" * 80), quoted(b"x" * 81)) == (repr(b"x" * 80), repr(b"x" * 80) + "...")
    assert (brief(b"x" * 80), brief(b"x" * 81), shortened("x" * 81, 80)) == ("x" * 80, "x" * 80 + "...", "x" * 80 + "...")
