"""--at and --reconnect as text, in plan files, and what of them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncli.core.events import Reconnect
from asyncli.model.errors import PlanError
from asyncli.model.plan import Layer, Plan, build_plan, load_plan, plan_document, shown_plan
from asyncli.model.plan_file import read_plan_file
from asyncli.model.planned_events import (
    PlannedEvent,
    parse_events,
    parse_reconnect,
    planned_event,
)


def plan_of(**values: Any) -> Plan:
    return build_plan([Layer("--{key}", {"urls": ["http://127.0.0.1:80/"], "hold": 60, **values})])


def test_flags_and_files_mean_the_same(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'urls = ["http://127.0.0.1:80/"]\nhold = 60\nreconnect = "jitter:10s"\nseed = 1\n'
        '[[events]]\nat = "10s"\ndo = "drop"\nshare = "30%"\nhow = "fin"\n[[events]]\nat = "50%"\ndo = "storm"\n'
    )
    from_file = build_plan([read_plan_file(file)])
    from_flags = plan_of(events=[("10s", "drop 30% how=fin"), ("50%", "storm")], reconnect="jitter:10s", seed=1)
    assert from_file == from_flags
    assert from_flags.planned_events == (PlannedEvent("drop", 10.0, None, 0.3, "fin"), PlannedEvent("storm", None, 0.5))
    assert from_flags.policy == Reconnect("jitter", 0.0, 10.0)
    assert load_plan(plan_document(from_flags)) == from_flags
    shown = shown_plan(from_flags)
    assert (shown["events"], shown["reconnect"]) == (from_flags.events, from_flags.reconnect)
    assert parse_events(from_flags.events) == from_flags.events


@pytest.mark.parametrize("text", ["now", "jitter:10s", "fixed:0.5s", "backoff:1s..60s"])
def test_a_policy_is_shown_as_it_is_written(text: str) -> None:
    assert parse_reconnect(text) == text


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"events": [("60s", "storm")]}, "--at 60s 'storm': the hold ends after 1 min"),
        ({"events": [("10s", "storm"), ("10s", "drop 5%")]}, "'storm' is at the same instant"),
        ({"events": [("50%", "storm"), ("30s", "drop 5%")]}, "'storm' is at the same instant"),
        ({"events": [("50%", "storm")], "hold": "forever"}, "the hold has no planned end"),
        ({"events": [("10s", "storm")], "reopen": False}, "nothing comes back in a run with --no-reopen"),
        ({"events": [("10s", "drop")]}, "a share is missing"),
        ({"events": [("10s", "drop 130%")]}, "is no share"),
        ({"events": [("10s", "drop 0%")]}, "is no share"),
        ({"events": [("10s", "drop nan%")]}, "is no share"),
        ({"events": [("10s", "storm 30%")]}, "'30%' is not understood"),
        ({"events": [("10s", "storm how=kill")]}, "how=rst or how=fin"),
        ({"events": [("10s", "explode")]}, "is no event"),
        ({"events": [("10s drop 30%", "--at")]}, "--at 10s 'drop 30%'"),
        ({"events": [("soon", "storm")]}, "a share of the hold: 50%"),
        ({"events": [{"at": "1s"}]}, "an event lacks do"),
        ({"events": [{"at": "1s", "do": "storm", "when": 1}]}, "when: unknown key"),
        ({"events": "storm"}, "is no list of events"),
        ({"reconnect": "soon"}, "is no way to come back"),
        ({"reconnect": "jitter"}, "--reconnect"),
        ({"reconnect": "backoff:5s..1s"}, "the longest wait is shorter than the first"),
        ({"reconnect": "fixed:2h"}, "up to an hour"),
    ],
    ids=range(21),
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(**values)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "says", "says_not"),
    [
        ({"events": ["foo"]}, "'foo'", "''"),
        ({"events": [{"at": "5s", "do": "run", "command": "x"}]}, "--at", "unknown"),
        ({"events": ["5s storm"], "reconnect": "jitter"}, "missing", "''"),
        ({"churn": "10/s"}, "1%/m", "''"),
    ],
)
def test_what_is_refused_is_named_as_it_was_written(values: dict[str, Any], says: str, says_not: str) -> None:
    with pytest.raises(PlanError) as refused:
        plan_of(**values)
    assert says in str(refused.value)
    assert says_not not in str(refused.value)


def test_a_hold_that_ends_by_the_clock_takes_shares() -> None:
    assert plan_of(events=[("50%", "storm")], hold="until 23:59").planned_events[0].at_share == 0.5


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("run 'nginx -s reload'", "nginx -s reload"),
        ('mark "deployed 1.4.2"', "deployed 1.4.2"),
        ("run /opt/my\\ app/reload", "/opt/my\\ app/reload"),
        ('run echo"a;b"', 'echo"a;b"'),
        ("mark it's foo\\bar", "it's foo\\bar"),
        ("run 'a' 'b'", "'a' 'b'"),
    ],
)
def test_only_quotes_around_all_of_a_command_are_taken_off(words: str, note: str) -> None:
    assert planned_event(f"30s {words}").note == note


def test_a_variable_s_events_are_told_by_its_name() -> None:
    layer = Layer("$ASYNCLI_SOAK_{key}", {"events": [("30s", "drop")]})
    with pytest.raises(PlanError, match=r"^\$ASYNCLI_SOAK_AT: "):
        build_plan([Layer("--{key}", {"urls": ["http://127.0.0.1:80/"]}), layer])


def test_a_stall_is_written_and_read_in_both_forms(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'urls = ["http://127.0.0.1:80/"]\nhold = 90\nseed = 1\n[[events]]\nat = "10s"\ndo = "stall"\nshare = "5%"\nfor = "60s"\n'
        '[[events]]\nat = "80s"\ndo = "stall"\nshare = "10%"\n'
    )
    from_file = build_plan([read_plan_file(file)])
    from_flags = plan_of(events=[("10s", "stall 5% for 60s"), ("80s", "stall 10%")], hold=90, seed=1)
    assert from_file == from_flags
    assert [planned_event(text) for text in from_file.events] == [*from_file.planned_events]
    assert from_file.planned_events == (PlannedEvent("stall", 10.0, None, 0.05, for_s=60.0), PlannedEvent("stall", 80.0, None, 0.1))
    # Those who stall keep their connections, and need no others.
    assert from_file.most_open == from_file.connections


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"events": [("10s", "stall")]}, "a share is missing"),
        ({"events": [("10s", "stall for 5s")]}, "a share is missing"),
        ({"events": [("10s", "stall 130% for 5s")]}, "is no share"),
        ({"events": [("10s", "stall 5% for")]}, "something is missing after 'for'"),
        ({"events": [("10s", "stall 5% for 0s")]}, "is no time; write 'for 20s'"),
        ({"events": [("10s", "stall 5% for 5s then return")]}, "'then' is not understood"),
        ({"events": [("10s", "stall 5% how=rst")]}, "'how=rst' is not understood"),
        ({"events": [("70s", "stall 5% for 5s")]}, "the hold ends after 1 min"),
        ({"events": [("10s", "stall 5% for 55s")]}, "it is over after the hold, which lasts 1 min"),
        ({"events": [("10s", "stall 5% for 5s"), ("10s", "storm")]}, "'stall 5% for 5s' is at the same instant"),
        ({"events": [("10s", "stall 60%"), ("11s", "vanish 50%")]}, "110 % of the connections are to vanish for good or to stall to the end"),
        ({"events": [("10s", "stall 5% for 5s")], "reopen": False}, "nothing comes back in a run with --no-reopen"),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_stall_that_cannot_be_is_refused_in_one_line(values: dict[str, Any], says: str) -> None:
    test_what_cannot_be_is_refused_in_one_line(values, says)
