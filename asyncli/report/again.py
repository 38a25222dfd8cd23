"""The command that measures again what a run could not know. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncli.plan import KEYS, Plan
from asyncli.records import Environment
from asyncli.topology import sides
from asyncli.units import parse_pace
from asyncli.values import AGENT_PORT, parse_url

# What it changes, or writes in its own way; a seed was chosen for the run.
_LEFT_OUT = ("urls", "connections", "keepalive", "header", "server_pid", "server_pidfile", "server_name", "agent", "seed")


def command_for_the_server(plan: Mapping[str, Any], environment: Environment) -> tuple[str, str]:
    """(why the server's memory could not be read, in words that begin with "it", the command that reads it).

    ``plan``: of the summary. Headers, which may be secrets, are left to a file of the reader's.
    """
    server = environment.get("server")
    program = str(environment.get("program") or "asyncli")
    hidden = isinstance(server, dict) and server.get("hidden") is True
    if isinstance(environment.get("agent"), dict):
        why = "its agent may not read its processes" if hidden else "its agent does not find its processes"
        return why, "sudo asyncli agent" if hidden else "asyncli agent --server-pid PID"
    if not sides(environment).server:
        host = parse_url(plan["urls"][0]).host
        at = f"http://{f'[{host}]' if ':' in host else host}:{AGENT_PORT}"
        return "it is on another host", f"{program} soak --agent {shlex.quote(at)} {_flags(plan)}"
    if hidden:
        return "its processes belong to another user", f"sudo {program} soak {_flags(plan)}"
    return "its processes were not found", f"{program} soak --server-pid PID {_flags(plan)}"


def _flags(plan: Mapping[str, Any]) -> str:
    """The plan as flags: the count, the keepalive, and what is not as usual."""
    words = ["-c", _word(plan["connections"]), "-k", _word(plan["keepalive_s"])]
    usual: Mapping[str, Any] = msgspec.to_builtins(Plan(urls=()))
    pace = plan["batch"], plan["interval_s"]
    ramp = f"{max(1, round(pace[0] / pace[1]))}/s"
    as_rate = pace != (usual["batch"], usual["interval_s"]) and parse_pace(ramp) == pace
    words += ["--ramp", ramp] if as_rate else []
    for key, (field, _) in KEYS.items():
        value, flag = plan.get(field), f"--{key.replace('_', '-')}"
        if key in _LEFT_OUT or value == usual[field] or (as_rate and key in ("batch", "interval")):
            continue
        if key == "hold":
            words += [
                flag,
                f"until {plan['hold_until']}" if plan.get("hold_until") else "forever" if value is None else _word(value),
            ]
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{key}")
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [flag, _word(one)]
    headers = " --header-file FILE" if plan.get("headers") else ""
    return f"{shlex.join(words)}{headers} {shlex.join(plan['urls'])}"


def _word(value: Any) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
