"""The help texts and the version, and how little they import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from programs import DEADLINE_S, here, run

import asyncli
from asyncli.cli.main import COMMANDS, cli
from asyncli.model import benchplan
from asyncli.model.plan import KEYS

ROOT = Path(__file__).parents[2]
HEAVY = {"aiohttp", "scipy", "numpy", "rich", "uvloop", "psutil", "sqlite3", "crossplane", "asyncio", "matplotlib", "jinja2"}
HELP = [["--help"], ["-h"], *([command, "--help"] for command in COMMANDS), ["-c", "5", "--help"]]
# Runs each argument as a command line; prints the exit statuses, then the imported modules.
SEVERAL = "import sys; from asyncli.cli.main import run; print(*(run(one.split()) for one in sys.argv[1:])); print(*sys.modules)"


def ran(*lines: str) -> tuple[str, set[str]]:
    """Their output with the exit statuses, and the names of all imported modules."""
    done = subprocess.run([sys.executable, "-c", SEVERAL, *lines], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stderr == ""
    said, _, modules = done.stdout.rstrip("\n").rpartition("\n")
    return said, set(modules.split())


def test_help_is_on_standard_output_and_imports_nothing_heavy() -> None:
    said, modules = ran(*map(" ".join, HELP))
    assert (said.count("Usage: asyncli"), said.endswith("\n" + " ".join("0" * len(HELP)))) == (len(HELP), True)
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{name} {option.opts}"


@pytest.mark.parametrize("name", ["soak", "check", "demo", "bench"])
def test_every_key_of_a_plan_is_a_flag(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    flags = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    keys = benchplan.KEYS if name == "bench" else KEYS
    # Each --at is one of the events.
    assert {f"--{key.replace('_', '-')}" for key in (*keys, "plan") if key not in ("urls", "events")} <= flags
    if name != "demo":
        assert "urls" in flags


@pytest.mark.parametrize(("name", "default"), [("soak", "1000"), ("check", "1000"), ("demo", "100k")])
def test_help_has_the_default_number_of_connections(tmp_path: Path, name: str, default: str) -> None:
    (line,) = (one for one in here(tmp_path, name, "--help").out.splitlines() if "--connections N" in one)
    assert line.endswith(f"[default: {default}]")


def test_every_command_is_documented() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "howto" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if not re.search(rf"\basyncli {name}\b", page)] == []
    assert re.search(r"asyncli (-c \S+ )?(-k \S+ )?http://", readme), "README.md does not show the original usage"


def test_python_m_is_the_same_program(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("asyncli")
    if not script.exists():
        pytest.skip("the script is not installed beside this interpreter")
    for arguments, status in (("--help",), 0), (("soak", "localhost"), 2):
        environment = {**os.environ, "COLUMNS": "100"}
        one = subprocess.run(
            [script, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment
        )
        two = run(tmp_path, *arguments)
        assert (one.returncode, one.stdout, one.stderr) == (two.status, two.out, two.log)
        assert two.status == status


def test_version_is_that_of_the_package() -> None:
    said, modules = ran("--version")
    assert said == f"asyncli {asyncli.__version__}\n0"
    assert "asyncli.app.soak" not in modules


@pytest.mark.parametrize("name", [None, "experiment", "lab"])
def test_without_arguments_a_command_shows_its_help(tmp_path: Path, name: str | None) -> None:
    done = here(tmp_path, *([name] if name else []))
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("Usage: asyncli")
