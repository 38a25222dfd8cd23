"""Options from the environment: ASYNCLI_SOAK_HOLD is --hold of a soak. And the aliases that options have."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from programs import SHORT, Program, Server, complaint, contents, held, here, report, require_whole, serving

from asyncli.cli.command import main_flag, variable_of
from asyncli.cli.main import COMMANDS, cli
from asyncli.model.secret_variables import HEADERS_VARIABLE, TOKEN_VARIABLE

#: Those that have another meaning: of the environment, of --on-finish, of the units in configs/ and of the completion.
OTHERS = {
    HEADERS_VARIABLE, TOKEN_VARIABLE, "ASYNCLI_VERDICT", "ASYNCLI_STATUS", "ASYNCLI_LINE", "ASYNCLI_RUN",
    "ASYNCLI_URL", "ASYNCLI_OPTIONS", "ASYNCLI_AGENT", "_ASYNCLI_COMPLETE",
}  # fmt: skip
SOAK = ("soak", *SHORT, "--out", "run.db")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def options(command: str) -> list[click.Option]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    return [option for option in found.params if isinstance(option, click.Option)]


def named(log: str) -> set[str]:
    """The variables that the first line of a run names."""
    found = re.match("(?:asyncli: )?from the environment: (.*)\n", log)
    return set() if found is None else set(found[1].split(", "))


def test_no_variable_has_two_meanings() -> None:
    names = [variable_of(command, option) for command in COMMANDS for option in options(command)]
    assert len(set(names)) == len(names)
    assert OTHERS.isdisjoint(names)
    assert {"ASYNCLI_SOAK_CONNECTIONS", "ASYNCLI_SOAK_JSON", "ASYNCLI_SOAK_REOPEN", "ASYNCLI_CHECK_HEADER", "ASYNCLI_BENCH_RATE"} <= set(names)


def test_true_is_an_option_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    command = cli.get_command(click.Context(cli), "soak")
    assert command is not None
    url = "http://127.0.0.1:1/"
    without_values = command.make_context("soak", [url, "--web", "--otlp"]).params
    for said, expected in (("true", without_values), ("false", command.make_context("soak", [url]).params)):
        for name in ("WEB", "OTLP"):
            monkeypatch.setenv(f"ASYNCLI_SOAK_{name}", said)
        assert command.make_context("soak", [url]).params == expected
    assert without_values["web"]


def test_an_address_of_a_variable_that_is_none_says_nothing_of_what_stands_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = "stands before"
    assert hint in complaint(here(tmp_path, "soak", "http://127.0.0.1:1/", "--web", "yes"))
    monkeypatch.setenv("ASYNCLI_SOAK_WEB", "yes")
    said = complaint(here(tmp_path, "soak", "http://127.0.0.1:1/"))
    assert hint not in said
    assert "ASYNCLI_SOAK_WEB" in said


def test_flags_go_over_variables_and_variables_over_the_plan_file(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.toml").write_text('connections = 3\nkeepalive = 3\nhold = "1h"\nseed = 7\n')
    monkeypatch.setenv("ASYNCLI_SOAK_KEEPALIVE", "4")
    monkeypatch.setenv("ASYNCLI_SOAK_HOLD", "1h")
    # Together with the flag --batch these would contradict each other in one place.
    monkeypatch.setenv("ASYNCLI_SOAK_RAMP", "100/s")
    monkeypatch.setenv("ASYNCLI_SOAK_REOPEN", "false")
    monkeypatch.setenv("ASYNCLI_SOAK_JSON", "run.json")
    limits = ["lost > 1", "heartbeats.failed > 2"]
    monkeypatch.setenv("ASYNCLI_SOAK_FAIL_IF", "\n".join(limits))
    monkeypatch.setenv("ASYNCLI_SOAK_SOURCE", "")
    asked = ("soak", "--baseline", "0.2", "--residue", "0.2", "--plan", "plan.toml", "--hold", "1", "--batch", "2", "--out", "run.db")
    done = here(tmp_path, *asked, server.url)
    summary = json.loads((tmp_path / "run.json").read_text())
    require_whole(done.status, summary)
    plan = summary["plan"]
    assert [plan[key] for key in ("connections", "keepalive_s", "hold_s", "seed", "reopen", "batch", "interval_s")] == [3, 4.0, 1.0, 7, False, 2, 0.01]
    assert plan["fail_if"] == limits
    # The flag's hold counts, so its variable is not named.
    assert named(done.log) == {f"ASYNCLI_SOAK_{name}" for name in ("KEEPALIVE", "RAMP", "REOPEN", "JSON", "FAIL_IF")}


def test_a_quiet_run_names_no_variables(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_SOAK_HOLD", "0.2")
    monkeypatch.setenv("ASYNCLI_SOAK_QUIET", "1")
    done = here(tmp_path, *SOAK, "-c", "2", server.url)
    assert done.log == ""
    require_whole(done.status, report(tmp_path, "run.db"))


def test_a_quiet_run_names_a_variable_that_no_option_has(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_SOAK_HOLD", "0.2")
    monkeypatch.setenv("ASYNCLI_SOAK_CONECTIONS", "5")
    done = here(tmp_path, *SOAK, "-c", "2", "--quiet", server.url)
    assert [line.split()[0] for line in done.log.splitlines()] == ["ASYNCLI_SOAK_CONECTIONS"]
    require_whole(done.status, report(tmp_path, "run.db"))


def test_secrets_of_variables_are_neither_printed_nor_inherited(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_SOAK_HEADER", "Authorization: Bearer tiger-4711\nX-Colour: green and blue")
    monkeypatch.setenv("ASYNCLI_SOAK_ON_FINISH", "env > env.txt")
    with Program(tmp_path, *SOAK, "-c", "2", "--hold", "1h", server.url) as program:
        program.until(lambda: held(tmp_path) == 2, "all are held")
        children = [pid for pid in program.processes() if pid != program.pid]
        assert children
        assert [pid for pid in children if b"tiger-4711" in contents(f"/proc/{pid}/environ")] == []
        program.signal()
        done = program.wait()
    assert named(done.log) == {"ASYNCLI_SOAK_HEADER", "ASYNCLI_SOAK_ON_FINISH"}
    assert "tiger-4711" not in done.out + done.log + (tmp_path / "env.txt").read_text()
    assert "ASYNCLI_VERDICT" in (tmp_path / "env.txt").read_text()
    assert report(tmp_path, "run.db")["plan"]["headers"] == ["Authorization: ***", "X-Colour: ***"]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("ASYNCLI_SOAK_HOLD", "2x", ("soak", "http://127.0.0.1:1/")),
        ("ASYNCLI_SOAK_RAMP", "fast", ("soak", "http://127.0.0.1:1/")),
        ("ASYNCLI_SOAK_WAIT_FOR_SERVER", "long", ("soak", "http://127.0.0.1:1/")),
        ("ASYNCLI_SOAK_CLUSTER_HOSTS", "many", ("soak", "http://127.0.0.1:1/")),
        ("ASYNCLI_SOAK_QUIET", "perhaps", ("soak", "http://127.0.0.1:1/")),
        ("ASYNCLI_SOAK_FAIL_IF", "nosuch > 1", ("soak", "http://127.0.0.1:1/")),
        ("ASYNCLI_SOAK_JSON", "nowhere/run.json", ("soak", "http://127.0.0.1:1/")),
        ("ASYNCLI_CHECK_CONNECTIONS", "-1", ("check", "http://127.0.0.1:1/")),
        ("ASYNCLI_BENCH_RATE", "x", ("bench", "http://127.0.0.1:1/")),
        ("ASYNCLI_CAPACITY_WITHIN", "x", ("capacity", "http://127.0.0.1:1/")),
        ("ASYNCLI_LAB_PORT", "tcp://10.0.0.1:80", ("lab", "builtin")),
        ("ASYNCLI_AGENT_LISTEN", "x", ("agent",)),
    ],
)
def test_a_wrong_value_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: tuple[str, ...]) -> None:
    monkeypatch.setenv(variable, value)
    first = rf"(Invalid value for )?\${variable}\b"
    assert re.match(first, complaint(here(tmp_path, *words)))


def test_a_wrong_flag_of_a_variable_is_told_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_SOAK_HTTP2", "maybe")
    line = complaint(here(tmp_path, "soak", "http://127.0.0.1:1/"))
    assert "$ASYNCLI_SOAK_HTTP2: 'maybe' " in line
    assert "Recognized" not in line


def test_variables_that_are_sent_and_those_of_no_option_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        HEADERS_VARIABLE: "X-Key: tiger-4711", "ASYNCLI_CHECK_CONNECTIONS": "3", "ASYNCLI_CHECK_CONECTIONS": "5", "ASYNCLI_CHECK_COLOUR": "blue",
        "ASYNCLI_CHECK_SERVICE_HOST": "10.0.0.1", "ASYNCLI_CHECK_PORT_80_TCP_ADDR": "10.0.0.1", "ASYNCLI_CHECK_SERVICE_PORT_HTTP": "80",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    done = here(tmp_path, "check", "http://127.0.0.1:1/")
    assert named(done.log) == {"ASYNCLI_CHECK_CONNECTIONS", HEADERS_VARIABLE}
    unused = {line.split()[1]: line for line in done.log.splitlines() if "not used" in line}
    assert set(unused) == {"ASYNCLI_CHECK_CONECTIONS", "ASYNCLI_CHECK_COLOUR"}
    assert unused["ASYNCLI_CHECK_CONECTIONS"].endswith("ASYNCLI_CHECK_CONNECTIONS?")
    assert "tiger-4711" not in done.log + done.out


def test_contradicting_places_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_SOAK_RESOLVE", "a.example:80:127.0.0.1")
    line = complaint(here(tmp_path, "soak", "--connect-to", "127.0.0.1:1", "http://a.example/"))
    assert re.findall(r"--[\w-]+|\$\w+", line.partition(":")[0]) == ["--connect-to", "$ASYNCLI_SOAK_RESOLVE"]


def test_the_shortest_usage_takes_its_hold_from_the_environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_SOAK_HOLD", "0.5")
    done = here(tmp_path, "-c", "2", *SHORT, server.url)
    assert (done.status in (0, 4), "ASYNCLI_SOAK_HOLD" in done.log) == (True, True)


def test_a_resumed_run_names_the_variable_of_an_option_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_SOAK_HOLD", "1")
    assert "$ASYNCLI_SOAK_HOLD" in complaint(here(tmp_path, "soak", "--resume", "run.db"))


# Defaults


def test_a_soak_without_a_count_says_what_it_does(server: Server, tmp_path: Path) -> None:
    done = here(tmp_path, "soak", "--baseline", "0.2", "--residue", "0.2", "--hold", "0.2", "--out", "run.db", server.url)
    line = "defaults: 1,000 connections (-c), a ramp of 1,000/s (--ramp), a keepalive of 1 min (-k)\n"
    assert done.log.startswith(line)
    plan = report(tmp_path, "run.db")["plan"]
    assert (plan["connections"], plan["batch"] / plan["interval_s"], plan["keepalive_s"]) == (1000, 1000.0, 60.0)


def test_a_soak_with_a_count_does_not(server: Server, tmp_path: Path) -> None:
    assert "defaults" not in here(tmp_path, *SOAK, "-c", "2", "--hold", "0.2", server.url).log


def test_a_flag_that_replaces_a_list_of_the_plan_says_so(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that can be repeated looks as if it added to the plan's."""
    events = "\n".join(f"[[events]]\nat = '{second}s'\ndo = 'storm'" for second in (100, 200))
    (tmp_path / "both.toml").write_text(f"fail_if = ['lost > 3']\n{events}\n")
    asked = (*SOAK, "-c", "2", "--hold", "0.5", "--plan", "both.toml", "--reconnect", "now")
    done = here(tmp_path, *asked, "--at", "0.1s", "mark x", server.url)
    [line] = [line for line in done.log.splitlines() if "both.toml (2)" in line]
    assert line.split()[:3] == ["--at", "replaces", "events"]
    assert "fail_if" not in done.log
    assert len(report(tmp_path, "run.db")["plan"]["events"]) == 1
    monkeypatch.setenv("ASYNCLI_SOAK_AT", "0.1s mark y")
    (tmp_path / "run.db").unlink()
    assert "$ASYNCLI_SOAK_AT replaces" in here(tmp_path, *asked, server.url).log


def test_a_refused_soak_says_only_why(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    assert complaint(here(tmp_path, "soak", "--out", "run.db", "http://127.0.0.1:1/"))


# Aliases

ALIASES = {"--header": "-H", "--ca": "--cacert", "--client-cert": "--cert", "--client-key": "--key"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_aliases_of_its_options(command: str) -> None:
    found = {main_flag(option): option.opts for option in options(command)}
    for flag, alias in ALIASES.items():
        assert flag not in found or alias in found[flag]
    shorts = [flag for opts in found.values() for flag in opts]
    assert len(set(shorts)) == len(shorts)


def test_the_commands_with_requests_have_the_aliases() -> None:
    for command in ("soak", "check", "bench", "capacity", "demo"):
        assert set(ALIASES.values()) <= {flag for option in options(command) for flag in option.opts}


def test_curls_options_reach_the_server(server: Server, tmp_path: Path) -> None:
    port = server.url.rstrip("/").rpartition(":")[2]
    asked = (*SOAK, "-c", "2", "--hold", "0.5", "-H", "X-One: 1", "--connect-to", f"nowhere.example:80:127.0.0.1:{port}")
    done = here(tmp_path, *asked, "http://nowhere.example/")
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    plan = summary["plan"]
    assert (plan["headers"], plan["connect_to"]) == (["X-One: ***"], f"nowhere.example:80:127.0.0.1:{port}")


def test_a_missing_certificate_is_named_by_the_option_that_has_it(tmp_path: Path) -> None:
    assert complaint(here(tmp_path, "soak", "--cacert", "nosuch.pem", "https://127.0.0.1:1/")).startswith("--ca nosuch.pem: ")


def test_variables_do_not_stay_in_the_environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCLI_CHECK_HEADER", "X-One: tiger-4711")
    done = here(tmp_path, "check", "-c", "2", server.url)
    assert (done.status, "ASYNCLI_CHECK_HEADER" in os.environ) == (0, False)
    assert named(done.log) == {"ASYNCLI_CHECK_HEADER"}
