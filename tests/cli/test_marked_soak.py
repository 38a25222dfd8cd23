"""A running soak that is marked from outside: its log, watch, report, JSON, CSV and timeline show it; one without marks is as it was."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from programs import SHORT, Program, held, here, report, require_whole
from rich.console import Console
from synthetic_run import a_run

from asyncli.live.following import fold_news
from asyncli.model.records import mark
from asyncli.model.run import Run
from asyncli.report.analyses import analyse
from asyncli.report.csvout import tables, to_csv
from asyncli.report.figures.drawing import NARROW, WIDE, file_svg
from asyncli.report.figures.timeline_and_deaths import timeline_panels
from asyncli.report.figures.timeline_data import timeline
from asyncli.report.live import JsonView, PlainView
from asyncli.report.livescreen import screen
from asyncli.report.livestate import LiveFold
from asyncli.report.run_report import print_report
from asyncli.report.summary import summarise
from asyncli.report.tables import Frames
from asyncli.report.terminal import text_of
from asyncli.store.follow import News
from asyncli.store.reader import read_run

FIRST, SECOND = "deployed 1.4.2", "reloaded"


@pytest.mark.nginx
def test_a_running_soak_is_marked_from_outside(tmp_path: Path) -> None:
    with Program(tmp_path, "demo", "-c", "50", *SHORT, "--hold", "1h", "--out", "run.db") as program:
        program.until(lambda: held(tmp_path) == 50, "all are held")
        for text in (FIRST, SECOND):
            with Program(tmp_path, "mark", "run.db", text, name="mark") as marking:
                done = marking.wait()
            assert (done.status, done.err) == (0, "")
            assert done.out.endswith(f": {text}\n")
            program.until(lambda text=text: re.search(rf"^\d+:\d\d:\d\d  mark: {text}$", program.err, re.MULTILINE), "its log has it")
        with Program(tmp_path, "watch", "run.db", "--log-json", name="watch") as watch:
            watch.until(lambda: SECOND in watch.out, "watch shows it")
            program.signal()
            require_whole(program.wait().status, report(tmp_path, "run.db"))
            said = [json.loads(line) for line in watch.wait().out.splitlines()]
    recorded = read_run(tmp_path / "run.db")
    first, second = recorded.events
    hold = recorded.phase("hold")
    assert hold is not None
    assert hold.start_s < first.at_s < second.at_s < recorded.stop_s
    assert [(line["text"], line["t_s"], line["phase"]) for line in said if line["event"] == "mark"] == [
        (event.text, round(event.at_s, 3), "hold") for event in recorded.events
    ]
    hold_s = hold.start_s
    assert report(tmp_path, "run.db")["events"] == [
        {"number": number, "kind": "mark", "at_s": event.at_s, "end_s": event.at_s, "text": event.text, "into_hold_s": event.at_s - hold_s}
        for number, event in enumerate(recorded.events, 1)
    ]
    text = here(tmp_path, "report", "run.db").out
    rows = [line.split(maxsplit=4) for line in text.splitlines() if line.startswith("mark")]
    assert [(row[3], row[4]) for row in rows] == [("hold", FIRST), ("hold", SECOND)], text
    assert here(tmp_path, "report", "run.db", "--csv", "csv").status == 0
    with (tmp_path / "csv" / "events.csv").open() as file:
        assert [(row["number"], row["kind"], row["phase"], row["text"]) for row in csv.DictReader(file)] == [
            ("1", "mark", "hold", FIRST), ("2", "mark", "hold", SECOND),
        ]  # fmt: skip
    # A mark changes no other number.
    without = msgspec.structs.replace(recorded, events=[])
    with_marks, without_marks = (msgspec.to_builtins(summarise(run)) for run in (recorded, without))
    assert with_marks.pop("events")
    assert with_marks == without_marks


def with_marks(count: int) -> Run:
    run = a_run(100, hold_s=60.0)
    run.events = [mark(20.0 + number, f"deploy {number}") for number in range(count)]
    return run


def test_a_run_without_events_says_nothing_of_them() -> None:
    run = with_marks(0)
    analyses = analyse(run)
    summary = summarise(run, analyses)
    assert "events" not in msgspec.to_builtins(summary)
    assert "Events" not in text_of(lambda console: print_report(summary, console, "run.db", verbose=True), 100)
    header, *rows = to_csv(tables(run, summary, analyses)["events"]).splitlines()
    assert header.split(",")[:7] == ["run_id", "number", "kind", "at_s", "end_s", "phase", "text"]
    assert not rows
    assert len(Frames(run, summary.findings).events) == 0


def test_a_short_report_has_the_first_of_many_and_the_whole_one_has_all() -> None:
    run = with_marks(40)
    summary = summarise(run)
    short = text_of(lambda console: print_report(summary, console, "run.db"), 100)
    whole = text_of(lambda console: print_report(summary, console, "run.db", verbose=True), 100)
    assert (short.count("deploy "), whole.count("deploy ")) == (12, 40)
    assert "28 more" in short
    assert "28 more" not in whole


def test_frames_have_the_marks() -> None:
    pytest.importorskip("pandas")
    run = with_marks(3)
    events = Frames(run, [], summarise(run).events or ()).events
    assert list(events.columns)[:5] == ["kind", "at_s", "end_s", "phase", "text"]
    assert list(events.loc[2])[:5] == ["mark", 21.0, 21.0, "ramp" if with_marks(3).phases[2].start_s > 21.0 else "hold", "deploy 1"]


def folded(run: Run) -> LiveFold:
    fold = LiveFold(run.plan)
    fold_news(fold, News(run.plan, run.phases[:1], run.ticks, list(run.samples), [], False, events=run.events))
    return fold


def test_screen_and_logs_have_a_mark_in_the_same_number_of_lines() -> None:
    lines = {}
    for count in (0, 3):
        run = with_marks(count)
        state = folded(run).state()
        console = Console(width=80, file=io.StringIO())
        console.print(screen(run.plan, state, console))
        lines[count] = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines[3]) == len(lines[0])
    assert sum("deploy " in line for line in lines[3]) == 1
    assert any(line.split() == ["0:00:22", "mark:", "deploy", "2"] for line in lines[3])
    for view in (PlainView, JsonView):
        run = with_marks(3)
        console = Console(file=io.StringIO(), width=80)
        shown = view(run.plan, console)
        for _ in range(2):
            shown.update(folded(run).state())
        assert console.file.getvalue().count("deploy ") == 3  # type: ignore[attr-defined]


def test_a_timeline_has_a_line_and_a_label_for_each_mark_and_no_line_crosses_a_label() -> None:
    pytest.importorskip("matplotlib")
    run = with_marks(12)
    # Some at the same instant, some far from all others, one at the end, and texts that are too long.
    run.events = sorted([*run.events, mark(20.5, "x" * 200), mark(20.5, "y" * 200), mark(2.0, "early"), mark(run.end_s, "at the end")], key=lambda event: event.at_s)
    for style in (WIDE, NARROW):
        figure = timeline_panels(timeline(run), style=style)
        figure.draw_without_rendering()
        axes = figure.axes[0]
        boxes = [label.get_window_extent() for label in axes.texts if label.get_text() not in ("baseline", "ramp", "hold", "drain", "residue")]
        assert len(boxes) >= 12
        tops = [line.get_window_extent() for line in axes.lines if not line.get_clip_on()]
        assert len(tops) == len(boxes)
        for place, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[place + 1 :])
            assert not any(box.x0 + 1 < top.x0 < box.x1 - 6 and top.y0 < box.y0 + 2 < top.y1 for top in tops)
            assert box.x1 < figure.bbox.x1 + 6
    assert len(timeline(run).events) == 16


def test_a_picture_without_marks_has_the_size_that_it_had() -> None:
    pytest.importorskip("matplotlib")
    none, one = (file_svg(timeline_panels(timeline(with_marks(count))), "t", "") for count in (0, 1))
    assert "deploy " not in none
    assert one.count("deploy ") == 1
    height_of = [float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', svg)[1]) for svg in (none, one)]  # type: ignore[index]
    assert height_of[1] == pytest.approx(height_of[0] + 14)
