"""``asyncli soak``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from asyncli.cli import options
from asyncli.model.errors import PlanError

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
    stops at once. 'asyncli report RUN.db' prints the report again.
    """
    wait_s, to = options.seconds_of("--wait-for-server", wait_for_server), options.outputs_of(values)
    hosts = {name: values.pop(name) for name in options.CLUSTER}
    if resume is None:
        plan, before = options.plan_from(values, urls), None
    else:
        plan, before = _resume_plan(resume, urls, values, to.out)
        _require_same_hosts(before, hosts["cluster"])
        to = to._replace(out=resume)
    from asyncli.cli.soak_terminal import run_soak

    return run_soak(plan, to, resume=before, cluster=options.cluster_of(hosts), wait_for_server_s=wait_s)


#: The plan flags that --resume takes: how to find the server, which a reboot may change.
_SERVER = ("server_pid", "server_pidfile", "server_name")
_AGENT = ("agent", "agent_token_file", "agent_ca")
_RESUMABLE = (*_SERVER, *_AGENT, "force")


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
    refused += ["--out"] * (out is not None) + ["the URL"] * bool(urls)
    if refused:
        raise PlanError(f"--resume uses the plan in {run}; leave out {' and '.join(refused)}")
    from asyncli.store.resume import read_interrupted

    before = read_interrupted(run)
    if not named:
        return before.run.plan, before
    changed = options.plan_from(named, before.run.plan.urls)
    # A new --server-* flag replaces the old ones, and so do the agent's.
    keys = {*named, *(_SERVER if named.keys() & set(_SERVER) else ()), *(_AGENT if named.keys() & set(_AGENT) else ())}
    return msgspec.structs.replace(before.run.plan, **{key: getattr(changed, key) for key in keys}), before
