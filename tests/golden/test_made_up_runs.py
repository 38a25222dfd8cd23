"""What the answer says of runs that no machine could be made to have: ``answers.txt``, a case a paragraph."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

from made_runs import invalid, unsteady
from synthetic_run import a_run, without
from test_comparison import compared, dearer, made
from test_comparison import printed as compared_text
from test_text import printed

from asyncli.model.records import Check, Finding, Gap
from asyncli.model.run import Run
from asyncli.report.answer import headroom, one_line
from asyncli.report.cost_answer import answer
from asyncli.report.differences import sentence, words
from asyncli.report.summary import Summary, summarise

NOT_SEEN = Finding("server_processes_unknown", "warning", "they are not known", "name them")


def test_the_answers_of_made_up_runs(golden: Callable[[dict[str, str]], None]) -> None:
    said = [f"# {name}\n{answer(one)}\n{headroom(one)}\n{one_line(one)}\n" for name, one in cases()]
    golden({"answers.txt": "\n".join(said)})


def test_a_forecast_names_a_known_limit_never_the_first() -> None:
    """It knows only what it read: a server has settings that no run shows."""
    sentences = {name: headroom(one) for name, one in cases()}
    assert [name for name, text in sentences.items() if "first limit" in text] == []
    known = {name: text for name, text in sentences.items() if "first known limit" in text}
    assert len(known) > 5
    is_read = ("worker_connections", "HAProxy")
    for name, text in known.items():
        is_told = "own settings are unknown" in text or "own limits are unknown" in text
        assert is_told or any(product in text for product in is_read), name


def test_the_reports_of_made_up_runs(golden: Callable[[dict[str, str]], None]) -> None:
    odd = summarise(a_run(3000))
    odd.connections.reopened = 2
    odd.heartbeats.by_status = {"404": odd.heartbeats.answered}
    odd.reconciliation.agrees = False
    interrupted = a_run(20_000, hold_s=120.0)
    hold = interrupted.phases[2]
    interrupted.gaps = [Gap(hold.start_s + 30.0, hold.start_s + 45.0)]
    golden({
        "made-up-passed.txt": printed(a_run(3000, hold_s=120.0), path="my run.db"),
        "made-up-odd.txt": printed(odd),
        "made-up-interrupted.verbose.txt": printed(interrupted, verbose=True),
        "made-up-invalid.txt": printed(invalid()),
    })  # fmt: skip


def test_the_sentences_of_made_up_differences(golden: Callable[[dict[str, str]], None]) -> None:
    differences = [
        made("bytes", (10.0, 12.0), (1.0, 3.0), verdict="higher"),
        made("bytes", (10.0, 10.5), (-1.0, 2.0)),
        made("bytes", (10.0, None), None, why="B: it was not read"),
        made("bytes", (10.0, 10.0), (0.0, 0.0)),
        made("bytes", (1020.0, 900.0), (-130.0, -110.0), verdict="lower"),
    ]
    golden({"differences.txt": "".join(f"{words(one)}\n" for one in differences) + sentence(differences[-1]) + "\n"})
    golden({"made-up-comparison.txt": compared_text(compared(a_run(20_000, hold_s=60.0), dearer()))})


def cases() -> Iterator[tuple[str, Summary]]:
    yield "100,000 on this host", good()
    levels = summarise(a_run(1000))
    yield "1,000 on this host", levels
    for kernel in (levels.cost.kernel, None):
        unsure = copy.deepcopy(levels)
        unsure.cost.server_user.ci95 = unsure.cost.generator_user.ci95 = (-2437.0, 10_440.0)
        unsure.cost.kernel = kernel
        yield f"two costs may be zero; the kernel's is known: {kernel is not None}", unsure
    yield "a server elsewhere", summarise(a_run(60_000, local=False, server=False, status=False, label=""))
    yield "no hold", summarise(changed(a_run(1000), end_with_ramp))
    yield "the host was not read", summarise(without(a_run(30_000), "host.used_bytes"))
    for of_run, environment in (
        ({}, {"server": {"hidden": True}}),
        ({}, {"server": {"hidden": False}}),
        ({"local": False}, {}),
        ({"local": False}, {"server": {"hidden": True}, "agent": {"host": "b"}}),
        ({"local": False}, {"server": {}, "agent": {"host": "b"}}),
    ):
        yield f"the server was not seen: {of_run | environment}", not_seen(of_run, environment)
    unknown = not_seen({}, {"server": {"hidden": False}})
    unknown.cost.host_total = None
    yield "neither the server nor the host", unknown
    yield "the host moved too much", summarise(unsteady())
    for ci95 in ((2.0e6 - 3733, 2.0e6 + 3733), (1e6, 3e6), (1e4, 3.99e6)):
        yield f"2 MB in all, {ci95}", with_cost("host_total", 2.0e6, ci95)
    for each, ci95 in ((229.0, (-106.0, 564.0)), (-0.02, (-0.1, 0.1)), (229.0, (52.0, 406.0))):
        yield f"{each} B in the server, {ci95}", with_cost("server_user", each, ci95)
        alone = with_cost("server_user", each, ci95)
        alone.cost.host_total = None
        yield f"{each} B in the server, {ci95}, and nothing of the host", alone
    none_held = copy.deepcopy(good())
    none_held.connections.held = 0
    yield "none was held at the end", none_held
    for known in (True, False):
        run = a_run(1000)
        run.checks = [Check("file_max", "open files", "ok", 10_000, 2_000, "files")]
        for sample in run.samples if known else ():
            sample.values |= {"server.processes": 1.0, "server.descriptors_limit": 9000.0}
        yield f"open files; the server's limits known: {known}", summarise(run)
    yield from of_limits_of_the_server()
    refused = a_run(100_000)
    refused.ticks[5][1].failures["refused"] = 7
    for _, tick in refused.ticks:
        tick.held_at_drain = max(0, tick.held_at_drain - 7)
    yield "7 connects refused", summarise(refused)


def of_limits_of_the_server() -> Iterator[tuple[str, Summary]]:
    """Which of them come first, and which may come before."""
    descriptors = {"server.processes": 1.0, "server.descriptors_limit": 9000.0}
    threads = {"server.group_tasks": 12.0, "server.group_tasks_limit": 3012.0}
    space = {"server.address_space_limit_bytes": 20e9}
    for name, limits in (
        ("threads of its control group", {**descriptors, **threads}),
        ("two levels of address space", {**descriptors, **space}),
        ("HAProxy's slim alone", {"status.limit": 4000.0}),
        ("HAProxy's slim and global maxconn", {"status.limit": 4000.0, "status.limit_in_all": 2000.0}),
    ):
        run = a_run(1000)
        for sample in run.samples:
            connections = sample.values.get("status.active", 1.0) - 1.0
            sample.values |= limits
            sample.values["server.threads"] = 1.0 + connections
            sample.values["server.address_space_bytes"] = 1e8 + 8e6 * connections
        yield f"limits of the server: {name}", summarise(run)


def changed(run: Run, change: Callable[[Run], None]) -> Run:
    change(run)
    return run


def end_with_ramp(run: Run) -> None:
    run.phases = run.phases[:2]
    run.ticks = [row for row in run.ticks if row[0] <= run.phases[1].end_s]


def not_seen(of_run: dict[str, Any], environment: dict[str, Any]) -> Summary:
    run = a_run(30_000, server=False, label="", **of_run)
    run.environment.update(environment)
    run.findings.append(NOT_SEEN)
    return summarise(run)


@functools.cache
def good() -> Summary:
    return summarise(a_run(100_000))


def with_cost(part: str, each: float, ci95: tuple[float, float]) -> Summary:
    summary = copy.deepcopy(good())
    cost = getattr(summary.cost, part)
    cost.bytes_per_connection, cost.ci95 = each, ci95
    return summary
