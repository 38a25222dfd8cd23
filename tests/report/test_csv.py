"""The CSV tables: complete, documented, with units in the column names and only finite numbers."""

from __future__ import annotations

import csv
import io
import math
from itertools import chain

import pytest
from made_runs import HOSTILE, KINDS
from synthetic_run import a_run

from asyncli.analysis.in_vain import InVain
from asyncli.analysis.noticed import Noticed
from asyncli.analysis.provoked import EventLatency
from asyncli.model.metrics import meaning
from asyncli.model.records import Finding, ProtocolCounts, RunEvent, Sample
from asyncli.model.run import Run
from asyncli.report.analyses import analyse
from asyncli.report.csvout import COLUMNS, Table, event_rows, tables, to_csv
from asyncli.report.summary import summarise
from asyncli.report.summary_parts import EventPart
from asyncli.report.tables import Frames

NAMES = ["ticks", "samples", "deaths", "phases", "events", "findings", "cost", "columns"]


def read(run: Run) -> dict[str, list[dict[str, str]]]:
    """Every table, parsed by the csv module."""
    analyses = analyse(run)
    found = tables(run, summarise(run, analyses), analyses)
    assert list(found) == NAMES
    return {name: list(csv.DictReader(io.StringIO(to_csv(table)))) for name, table in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_every_table(kind: str) -> None:
    run = KINDS[kind]()
    found = read(run)
    assert len(found["ticks"]) == len(run.ticks)
    assert len(found["samples"]) == len(run.samples)
    assert len(found["phases"]) == len(run.phases)
    for name, rows in found.items():
        for row in rows:
            assert None not in row, f"{name}: a row is longer than the header"
            assert None not in row.values(), f"{name}: a row is shorter than the header"
            assert row["run_id"] == run.id
            assert not {"nan", "inf", "-inf", "None"} & set(row.values()), (name, row)


def test_csv_numbers_match_the_run() -> None:
    run = KINDS["deaths"]()
    found = read(run)
    t_s, tick = run.ticks[61]
    row = found["ticks"][61]
    assert (float(row["t_s"]), int(row["held"]), int(row["lost"]), row["phase"]) == (t_s, tick.held, tick.lost, "hold")
    assert float(row["latency_p99_ms"]) == pytest.approx((tick.latency_us.quantile(0.99) or 0) / 1e3)
    assert sum(int(row["count"]) for row in found["deaths"] if row["kind"] == "lost") == sum(tick.lost for _, tick in run.ticks)
    assert sum(int(row["count"]) for row in found["deaths"] if row["kind"] == "failed") == sum(
        sum(tick.failures.values()) for _, tick in run.ticks
    )
    idle = [row for row in found["deaths"] if row["cause"] == "closed_idle"]
    assert {(row["idle_least_s"], row["idle_max_s"]) for row in idle} == {("75.0", "76.0")}
    failed = next(row for row in found["deaths"] if row["kind"] == "failed")
    assert failed["age_p50_s"] == ""
    sample = run.samples[30]
    assert float(found["samples"][30]["host.used_bytes"]) == sample.values["host.used_bytes"]
    summary = summarise(run)
    rows = {row["part"]: row for row in found["cost"]}
    assert float(rows["host_total"]["bytes_per_connection"]) == summary.cost.host_total.bytes_per_connection
    assert [float(rows["kernel"][f"ci95_{end}_bytes"]) for end in ("low", "high")] == list(summary.cost.kernel.ci95)  # type: ignore[union-attr]
    assert [row["code"] for row in found["findings"]] == [finding.code for finding in summary.findings]


def test_protocol_counts_have_columns() -> None:
    run = a_run(5000)
    run.ticks[3][1].protocol = ProtocolCounts(messages=5, message_bytes=70, streams_open=900)
    run.ticks[3][1].protocol.handshake_us.add(2_000)
    rows = read(run)["ticks"]
    names = ("messages", "message_bytes", "streams_open", "granted_max_ms")
    assert [rows[3][name] for name in names[:3]] == ["5", "70", "900"]
    assert float(rows[3]["granted_max_ms"]) == pytest.approx(2.0)
    assert {rows[2][name] for name in names} == {""}
    frame = Frames(run, []).ticks
    assert (frame["messages"].iloc[3], math.isnan(frame["messages"].iloc[2])) == (5.0, True)


def test_every_column_is_documented() -> None:
    run = a_run(5000)
    found = read(run)
    described = {(row["table"], row["column"]): row["meaning"] for row in found["columns"]}
    for name, rows in found.items():
        if name == "columns" or not rows:
            continue
        for column in rows[0]:
            assert described[name, column], (name, column)
    assert set(COLUMNS) == set(NAMES) - {"columns"}
    assert meaning("tcp.ListenDrops").startswith("a TCP extension counter")
    assert meaning("silent.vm at 192.168.1.9").startswith("seconds without a message")


def test_unread_metric_is_empty_not_zero() -> None:
    run = a_run(5000)
    run.samples[3].values.pop("server.pss_bytes")
    run.samples[4].values["host.used_bytes"] = math.nan
    rows = read(run)["samples"]
    assert rows[3]["server.pss_bytes"] == ""
    assert rows[4]["host.used_bytes"] == ""
    assert rows[5]["server.pss_bytes"]


def test_csv_keeps_any_text() -> None:
    run = a_run(5000)
    run.findings = [Finding("x", "info", f'{HOSTILE}, a\n"b"', "")]
    assert f'{HOSTILE}, a "b"' in [row["evidence"] for row in read(run)["findings"]]


def test_no_text_is_a_formula_and_numbers_stay_numbers() -> None:
    texts = ["=1+1", "+1", "-1", "@a", "\tx", "\r=x", "\n=x", "\uff1dx", "'", "a=b", "", "-", "a\r=b", "a\n=b"]
    text = to_csv(Table(["=A1", "n", "x"], [[one, -5, -0.25] for one in texts]))
    rows = list(csv.reader(io.StringIO(text, newline="")))
    harmless = ["'=A1", "'=1+1", "'+1", "'-1", "'@a", "' x", "' =x", "' =x", "'\uff1dx", "'", "a=b", "", "'-", "a =b", "a =b"]
    assert [row[0] for row in rows] == harmless
    assert all(row[1:] == ["-5", "-0.25"] for row in rows[1:])


def test_names_of_a_strangers_run_file_are_no_formulas() -> None:
    run = a_run(200)
    run.id = "=run"
    run.samples = [*run.samples, Sample(3.0, {"=cmd|'/C calc'!A0": 1.0})]
    run.findings = [Finding("@slow", "warning", "=HYPERLINK(1)", "@x")]
    run.ticks[-1][1].failures = {"=x": 1}
    analyses = analyse(run)
    for name, table in tables(run, summarise(run, analyses), analyses).items():
        cells = chain.from_iterable(csv.reader(io.StringIO(to_csv(table))))
        assert not [cell for cell in cells if cell.startswith(("=", "@"))], name


def test_an_event_s_row_is_that_of_the_summary() -> None:
    run = KINDS["provoked"]()
    storm, vanish = summarise(run).events or []
    rows = read(run)["events"]
    assert [row["given_up"] for row in rows] == [str(storm.given_up), str(vanish.given_up)]
    assert [float(row["into_hold_s"]) for row in rows] == [storm.into_hold_s, vanish.into_hold_s]
    assert [row["returned"] for row in rows] == ["", str(vanish.returned)]
    assert [row["connect_p99_ms"] for row in rows] == ["", ""]
    assert [row["least_held"] for row in rows] == [str(storm.least_held), str(vanish.least_held)]
    assert isinstance(vanish.noticed, Noticed)
    assert [row["noticed_left"] for row in rows] == ["", str(vanish.noticed.left)]
    assert [row["noticed_at_reconnect"] for row in rows] == ["", "0.0"]
    # As of a run of an older version.
    for column in ("away_p50_s", "away_max_s", "away_at_least_s", "clients", "ended_repeatedly"):
        assert [row[column] for row in rows] == ["", ""]
    assert [row["error_answers"] for row in rows] == ["0", "0"]


def test_an_event_s_row_has_its_clients_the_time_away_and_the_errors() -> None:
    run = KINDS["provoked"]()
    counts = [tick.events[1] for _, tick in run.ticks if 1 in tick.events]
    counts[0].clients, counts[0].ended_repeatedly = 19_000, 1_000
    counts[1].error_answers = {503: 7, 502: 2}
    for place, of_second in enumerate(counts):
        for _ in range(10_000 - place):
            of_second.away_ms.add(500 + place)
        of_second.back_ms = of_second.away_ms
    counts[1].still_away_ms.add(4_000)
    [row, _] = read(run)["events"]
    assert [row[column] for column in ("clients", "ended_repeatedly", "error_answers")] == ["19000", "1000", "9"]
    assert (float(row["away_p50_s"]), row["away_max_s"], float(row["away_at_least_s"])) == (pytest.approx(0.5, rel=0.02), "", 4.0)


def test_an_event_s_row_has_how_the_server_answered_in_its_time() -> None:
    run = KINDS["provoked"]()
    storm, _ = summarise(run).events or []
    storm.no_answers_s, storm.stood_still_s = 4.0, 3.5
    storm.latency_ms = EventLatency(1.0, 2.0, 3.0, 4.0, 5.5, 6.0)
    storm.in_vain = InVain(7, 7, 1.0, "accepted")
    # A command in whose time the server ended nobody.
    command = EventPart(2, "run", 9.0, 10.0, "true", latency_ms=storm.latency_ms, no_answers_s=2.0, stood_still_s=0.0)
    noted = EventPart.of_mark(3, RunEvent("mark", 12.0, 12.0, "deployed"))
    rows = [dict(zip(list(COLUMNS["events"])[1:], row, strict=True)) for row in event_rows(run, [storm, command, noted])]
    told = [[row[column] for column in ("no_answers_s", "stood_still_s", "latency_others_p99_ms", "in_vain")] for row in rows]
    assert told == [[4.0, 3.5, 5.5, 7], [2.0, 0.0, 5.5, None], [None] * 4]
    storm.in_vain = None
    [row] = event_rows(run, [storm])
    assert row[-1] == 0
    frame = Frames(run, [], [storm, command]).events
    assert [list(frame["no_answers_s"]), list(frame["latency_others_p99_ms"])] == [[4.0, 2.0], [5.5, 5.5]]
