"""``asyncli soak``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from asyncli.app.report_memory import require_memory
from asyncli.cli import options
from asyncli.model.consistency import flag_of
from asyncli.model.errors import PlanError
from asyncli.model.plan import KEYS, SECRET_FILES, load_plan, plan_document
from asyncli.model.secret_variables import HEADERS_VARIABLE, TOKEN_VARIABLE, secret
from asyncli.model.values import headers_in

if TYPE_CHECKING:
    from asyncli.model.plan import Plan
    from asyncli.store.resume import Interrupted


@click.command(name="soak", context_settings={"max_content_width": 110})
@click.argument("urls", nargs=-1, metavar="URL...")
@options.plan_options()
@options.output_options
@click.option("--resume", metavar="RUN.db", help="Continue a killed run. It is invalid (4) unless a limit allows its losses.")
@options.wait_option
@options.cluster_options
def command(urls: tuple[str, ...], resume: str | None, wait_for_server: str | None, **values: Any) -> int:
    """Hold connections on the server at URL, and measure what one more costs.

    Several URLs (ports or addresses of one server) share the connections. The first Ctrl-C drains and reports, the second
    stops at once. 'asyncli report RUN.db' prints the report again. The exit status is the verdict's: 0 passed, 99 failed, 3 if
    nothing listens, connects or answers, 4 if asyncli was the limit; 2 for a plan that is wrong or refused by the preflight.
    """
    wait_s, to = options.seconds_of("--wait-for-server", wait_for_server), options.outputs_of(values)
    require_memory(page=to.html_file is not None)
    hosts = {name: values.pop(name) for name in options.CLUSTER}
    if resume is None:
        plan, before = options.plan_from(values, urls), None
    else:
        plan, before = _resume_plan(resume, urls, values, to.out)
        _require_same_hosts(before, hosts["cluster"])
        to = to._replace(out=resume)
    from asyncli.cli.soak_terminal import run_soak

    return run_soak(plan, to, resume=before, cluster=options.cluster_of(hosts), wait_for_server_s=wait_s)


#: Plan flags that --resume takes: how to find the server, which a reboot may change.
_SERVER = ("server_pid", "server_pidfile", "server_name")
_AGENT = ("agent", "agent_token_file", "agent_ca")
#: Those that give what no run file has: secrets, and names of files whose content is sent.
_PRIVATE = (
    "header", "header_file", "mqtt_login_file", "send", "ws_message", "status_url", "status_header", "client_cert", "client_key",
    "agent_token_file",
)  # fmt: skip
_RESUMABLE = (*_SERVER, *_AGENT, "force", *_PRIVATE)


def _require_same_hosts(before: Interrupted, cluster: str | None) -> None:
    """Raise :class:`PlanError` unless the same hosts will open the connections, since a run has one cost."""
    previous = before.run.environment.get("cluster")
    if isinstance(previous, dict) and cluster is None:
        scheduler = previous.get("scheduler")
        raise PlanError(f"--resume: the connections of {before.path} were opened by a cluster; add --cluster {scheduler}")
    # A cluster's run records its hosts once they are found.
    if previous is None and cluster is not None and before.hold is not None:
        raise PlanError(f"--resume: the connections of {before.path} were opened by this host alone; leave out --cluster")


def _resume_plan(run: str, urls: tuple[str, ...], values: dict[str, Any], out: str | None) -> tuple[Plan, Interrupted]:
    """The plan and the state of an interrupted run. Raises :class:`PlanError`."""
    named = {key: value for key, value in values.items() if value is not None and value != ()}
    flags = {one.name: max(one.opts, key=len) for one in command.params}
    refused = [flags[key] for key in named if key not in _RESUMABLE]
    # A run file lacks only the query of its URL.
    refused += ["--out"] * (out is not None) + ["the URL"] * any("?" not in url for url in urls)
    if refused:
        raise _not_again(run, refused)
    from asyncli.store.resume import read_interrupted

    before = read_interrupted(run)
    again = {key: named.pop(key) for key in _PRIVATE if key in named}
    if "agent" in named and "agent_token_file" in again:
        named["agent_token_file"] = again.pop("agent_token_file")
    plan = _with_private_values(before, {**again, **({"urls": urls} if urls else {})}, new_agent="agent" in named)
    if not named:
        return plan, before
    changed = options.plan_from(named, plan.urls)
    # A new --server-* flag replaces the old ones, and so do the agent's.
    keys = {*named, *(_SERVER if named.keys() & set(_SERVER) else ()), *(_AGENT if named.keys() & set(_AGENT) else ())}
    return msgspec.structs.replace(plan, **{key: getattr(changed, key) for key in keys}), before


def _not_again(run: str, flags: list[str]) -> PlanError:
    return PlanError(f"--resume uses the plan in {run}; leave out {' and '.join(flags)}")


def _with_private_values(before: Interrupted, again: dict[str, Any], *, new_agent: bool) -> Plan:
    """The plan of an interrupted run with what its file does not have: values ``again`` of flags, else those kept beside it, else
    of the environment. Raises :class:`PlanError`."""
    from asyncli.model.private_values import given_again, missing_values

    document = dict(plan_document(before.run.plan))
    if new_agent:
        document["agent_token_file"] = None
    missing = missing_values(document)
    values = _parsed(again)
    if unasked := [flag_of(field) for field in values if field not in missing]:
        raise _not_again(str(before.path), ["the URL" if flag == "URL" else flag for flag in unasked])
    if not values.keys() >= set(missing):
        from asyncli.store.private_file import read_private

        values = read_private(before.path, before.run.id, plan_document(before.run.plan)) | values
    if "agent_token_file" not in values and secret(TOKEN_VARIABLE):
        document["agent_token_file"] = None
    try:
        values = _with_environment(document, values)
        found = given_again(document, values)
    except ValueError as error:
        raise PlanError(f"--resume: {error}") from None
    return load_plan({**document, **found})


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
        # Headers from flags and from a file add up.
        fields[field] = (*fields[field], *value) if field in fields else value
    return fields


def _with_environment(document: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with the headers of the environment, if the run's lack."""
    from asyncli.model.private_values import is_same

    more = headers_in(secret(HEADERS_VARIABLE))
    headers = values.get("headers", ())
    if not more or is_same("headers", headers, document["headers"]):
        return values
    return values | {"headers": (*headers, *more)}
