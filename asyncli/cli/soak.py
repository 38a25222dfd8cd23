"""``asyncli soak``."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import click
import msgspec

from asyncli.app.report_memory import require_memory
from asyncli.cli import options
from asyncli.cli.command import Command, environment_lines, main_flag
from asyncli.cli.otlp_options import otlp_option, otlp_place
from asyncli.cli.web_options import metrics_options, take_web_place, web_options
from asyncli.model.consistency import flag_of, require_collect
from asyncli.model.errors import PlanError
from asyncli.model.plan import KEYS, SECRET_FILES, load_plan, plan_document
from asyncli.model.secret_variables import HEADERS_VARIABLE, TOKEN_VARIABLE, secret
from asyncli.model.units import format_count, format_duration, shown
from asyncli.model.values import headers_in, is_page

if TYPE_CHECKING:
    from asyncli.model.plan import Plan
    from asyncli.store.resume import Interrupted


@click.command(name="soak", cls=Command, context_settings={"max_content_width": 110})
@click.argument("urls", nargs=-1, metavar="URL...")
@options.plan_options()
@options.output_options
@click.option(
    "--resume",
    metavar="RUN.db",
    help="Continue a killed run. It is invalid (4) unless it was started with a limit on what it "
    "loses then: --fail-if 'connections.deaths.generator_lost > 200%'.",
)
@options.wait_option
@options.cluster_options
@web_options
@metrics_options
@otlp_option
def command(
    urls: tuple[str, ...],
    resume: str | None,
    wait_for_server: str | None,
    metrics_linger: str | None,
    otlp: str | None,
    **values: Any,
) -> int:
    """Hold connections on the server at URL, and measure what one more costs.

    Several URLs (ports or addresses of one server) share the connections. The first Ctrl-C drains
    and reports, the second stops at once. 'asyncli report RUN.db' prints the report again. The exit
    status is the verdict's: 0 passed, 99 failed, 3 if nothing listens, connects or answers, 4 if
    asyncli was the limit; 2 for a plan that is wrong or refused by the preflight.
    """
    wait_s = options.seconds_of("--wait-for-server", wait_for_server)
    place = take_web_place(values, options.seconds_of("--metrics-linger", metrics_linger))
    otlp_to = otlp_place(otlp)
    to = options.outputs_of(values)
    require_memory(page=to.html_file is not None)
    hosts = {name: values.pop(name) for name in options.CLUSTER}
    before = None
    preface = environment_lines(quiet=to.quiet)
    command_of_collect = take_collect_command(values)
    if resume is None:
        plan = options.plan_from(values, urls, collects_by_command=command_of_collect != "")
        if not to.quiet:
            preface += _default_lines(plan, values)
            preface += options.replaced_lists(values)
    else:
        plan, before = _resume_plan(resume, urls, values, to.out)
        _require_same_hosts(before, hosts["cluster"])
        to = to._replace(out=resume)
    from asyncli.cli.soak_terminal import run_soak

    cluster = options.cluster_of(hosts)
    if command_of_collect != "":
        _require_program(command_of_collect)
        require_collect({**msgspec.structs.asdict(plan), "collect": command_of_collect})
    return run_soak(
        plan,
        to,
        preface=preface,
        resume=before,
        cluster=cluster,
        wait_for_server_s=wait_s,
        collect_by=command_of_collect,
        page_at=place,
        otlp_to=otlp_to,
    )


def _default_lines(plan: Plan, values: dict[str, Any]) -> list[str]:
    """The line that says which load asyncli chose, for a soak that does not say how many
    connections.
    """
    chosen = options.keys_not_given(values, ("connections", "ramp", "hold", "keepalive"))
    if "connections" not in chosen:
        return []
    settings = [f"{format_count(plan.connections)} connections (-c)"]
    if "ramp" in chosen:
        settings.append(f"a ramp of {format_count(plan.asked_per_s)}/s (--ramp)")
    if "hold" in chosen and plan.hold_s is not None:
        settings.append(f"a hold of {format_duration(plan.hold_s)} (--hold)")
    if "keepalive" in chosen and not plan.listens:
        settings.append(f"a keepalive of {format_duration(plan.keepalive_s)} (-k)")
    return [f"defaults: {', '.join(settings)}"]


def take_collect_command(values: dict[str, Any]) -> str:
    """Take the command out of ``--collect``: a plan has none. "" without one. Raises
    :class:`PlanError` for one that is not written as it must be.
    """
    collect = values["collect"]
    if collect is None or collect in ("auto", "none") or is_page(collect):
        return ""
    _require_command(collect)
    values["collect"] = None
    return str(collect)


def _require_command(collect: str) -> None:
    try:
        words = shlex.split(collect)
    except ValueError:
        raise PlanError(f"--collect: {shown(collect)} has an open quote; close it") from None
    if not words:
        raise PlanError(
            "--collect: names nothing; write auto, none, http://HOST/PATH or 'COMMAND {pid}'"
        )
    for name in _PLACEHOLDER.findall(collect):
        # Other braces are the command's own, as those of awk.
        is_similar = "pid" in name.lower() or difflib.get_close_matches(name.lower(), ["pid"])
        if name != "pid" and is_similar:
            raise PlanError(f"--collect: {{{name}}} is not known; did you mean {{pid}}?")


def _require_program(collect: str) -> None:
    """Raise :class:`PlanError` if this host has no such program as the command's first word."""
    program, *_ = shlex.split(collect)
    if "{pid}" not in program and shutil.which(program) is None:
        raise PlanError(
            f"--collect: {shown(program)} is no program that can be run here; write its path"
        )


# A variable of a shell is written so too: ${NAME}.
_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w{1,20})\}")


#: Plan flags that --resume takes: how to find the server, which a reboot may change.
_SERVER = ("server_pid", "server_pidfile", "server_name")
_AGENT = ("agent", "agent_token_file", "agent_ca")
#: Those that give what no run file has: secrets, and names of files whose content is sent.
_PRIVATE = (
    "header",
    "header_file",
    "mqtt_login_file",
    "send",
    "ws_message",
    "status_url",
    "status_header",
    "server_metrics",
    "client_cert",
    "client_key",
    "agent_token_file",
)
_RESUMABLE = (*_SERVER, *_AGENT, "force", *_PRIVATE)


def _require_same_hosts(before: Interrupted, cluster: str | None) -> None:
    """Raise :class:`PlanError` unless the same hosts will open the connections, since a run has one
    cost.
    """
    previous = before.run.environment.get("cluster")
    if isinstance(previous, dict) and cluster is None:
        raise PlanError(
            f"--resume: the connections of {before.path} were opened by a cluster; "
            f"add --cluster {previous.get('scheduler')}"
        )
    # A cluster's run records its hosts once they are found.
    if previous is None and cluster is not None and before.hold is not None:
        raise PlanError(
            f"--resume: the connections of {before.path} were opened by this host alone; "
            "leave out --cluster"
        )


def _resume_plan(
    run: str, urls: tuple[str, ...], values: dict[str, Any], out: str | None
) -> tuple[Plan, Interrupted]:
    """The plan and the state of an interrupted run. Raises :class:`PlanError`."""
    named = {key: value for key, value in values.items() if value is not None and value != ()}
    _require_resumable(run, urls, named, out)
    from asyncli.store.resume import read_interrupted

    before = read_interrupted(run)
    again = {key: named.pop(key) for key in _PRIVATE if key in named}
    if "agent" in named and "agent_token_file" in again:
        named["agent_token_file"] = again.pop("agent_token_file")
    if urls:
        again["urls"] = urls
    plan = _with_private_values(before, again, new_agent="agent" in named)
    if not named:
        return plan, before
    changed = msgspec.structs.asdict(options.plan_from(named, plan.urls))
    changes = {key: changed[key] for key in _replaced(named)}
    return msgspec.structs.replace(plan, **changes), before


def _require_resumable(
    run: str, urls: tuple[str, ...], named: dict[str, Any], out: str | None
) -> None:
    """Raise :class:`PlanError` for flags that the plan of the run already has."""
    flags = {param.name: main_flag(param) for param in command.params}
    refused = [flags[key] for key in named if key not in _RESUMABLE]
    if out is not None:
        refused.append("--out")
    # A run file lacks only the query of its URL.
    if any("?" not in url for url in urls):
        refused.append("the URL")
    if refused:
        raise _not_again(run, refused)


def _replaced(named: dict[str, Any]) -> set[str]:
    """The fields that the flags replace: a new --server-* flag replaces the old ones, and so do the
    agent's.
    """
    fields = set(named)
    for group in (_SERVER, _AGENT):
        if fields.intersection(group):
            fields.update(group)
    return fields


def _not_again(run: str, flags: list[str]) -> PlanError:
    return PlanError(f"--resume uses the plan in {run}; leave out {' and '.join(flags)}")


def _with_private_values(before: Interrupted, again: dict[str, Any], *, new_agent: bool) -> Plan:
    """The plan of an interrupted run with what its file does not have: values ``again`` of flags,
    else those kept beside it, else of the environment. Raises :class:`PlanError`.
    """
    from asyncli.model.private_values import given_again, missing_values

    document = dict(plan_document(before.run.plan))
    if new_agent:
        document["agent_token_file"] = None
    missing = missing_values(document)
    values = _parsed(again)
    not_missing = [flag_of(field) for field in values if field not in missing]
    if not_missing:
        flags = ["the URL" if flag == "URL" else flag for flag in not_missing]
        raise _not_again(str(before.path), flags)
    if not values.keys() >= set(missing):
        from asyncli.store.private_file import read_private

        kept = read_private(before.path, before.run.id, plan_document(before.run.plan))
        values = kept | values
    if "agent_token_file" not in values and secret(TOKEN_VARIABLE):
        document["agent_token_file"] = None
    try:
        values = _with_environment(document, values)
        private = given_again(document, values)
    except ValueError as error:
        raise PlanError(f"--resume: {error}") from None
    return load_plan({**document, **private})


def _parsed(again: dict[str, Any]) -> dict[str, Any]:
    """The fields of the flags that give private values again."""
    known = KEYS | SECRET_FILES
    fields: dict[str, Any] = {}
    for key, raw in again.items():
        field, parse = known[key]
        try:
            value = parse(raw)
        except ValueError as error:
            raise PlanError(f"{flag_of(key)}: {error}") from None
        if field in fields:
            # Headers from flags and from a file add up.
            value = (*fields[field], *value)
        fields[field] = value
    return fields


def _with_environment(document: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with the headers of the environment, if the run's lack."""
    from asyncli.model.private_values import is_same

    of_environment = headers_in(secret(HEADERS_VARIABLE))
    headers = values.get("headers", ())
    if not of_environment or is_same("headers", headers, document["headers"]):
        return values
    return values | {"headers": (*headers, *of_environment)}
