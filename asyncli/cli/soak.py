"""``asyncli soak``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from asyncli.cli import options
from asyncli.errors import PlanError

if TYPE_CHECKING:
    from asyncli.plan import Plan
    from asyncli.store.resume import Interrupted


@click.command(name="soak", context_settings={"max_content_width": 110})
@click.argument("urls", nargs=-1, metavar="URL...")
@options.plan_options()
@options.output_options
@click.option("--resume", metavar="RUN.db", help="Continue a run that was cut off: same plan, seed and file.")
@options.wait_option
@options.cluster_options
def command(urls: tuple[str, ...], resume: str | None, wait_for_server: str | None, **values: Any) -> int:
    """Hold connections on the server at URL and say what one more of them costs.

    Several URLs (ports or addresses of one server) share the connections. Ctrl-C once drains and reports; twice stops at
    once. 'asyncli report RUN.db' prints the report again.
    """
    wait_s, to = options.seconds_of("--wait-for-server", wait_for_server), options.outputs_of(values)
    hosts = {name: values.pop(name) for name in options.CLUSTER}
    if resume is None:
        plan, before = options.plan_from(values, urls), None
    else:
        plan, before = _resumed(resume, urls, values, to.out)
        _require_same_hosts(before, hosts["cluster"])
        to = to._replace(out=resume)
    from asyncli.cli.run import run_soak

    return run_soak(plan, to, resume=before, cluster=options.cluster_of(hosts), wait_for_server_s=wait_s)


#: The flags that --resume takes: where the server is, which a reboot may change; nothing else of the plan.
_SERVER = ("server_pid", "server_pidfile", "server_name")
_AGENT = ("agent", "agent_token_file", "agent_ca")
_ANEW = (*_SERVER, *_AGENT, "force")


def _require_same_hosts(before: Interrupted, cluster: str | None) -> None:
    """A run has one cost, so the same hosts must open its connections."""
    was = before.run.environment.get("cluster")
    if isinstance(was, dict) and cluster is None:
        raise PlanError(
            f"--resume: the connections of {before.path} were opened by a cluster; write --cluster {was.get('scheduler')} again"
        )
    # A cluster's run records its hosts once they are found.
    if was is None and cluster is not None and before.hold is not None:
        raise PlanError(f"--resume: the connections of {before.path} were opened by this host alone; leave out --cluster")


def _resumed(run: str, urls: tuple[str, ...], values: dict[str, Any], out: str | None) -> tuple[Plan, Interrupted]:
    """The plan of the run that was cut off, and what is known of it."""
    named = {key: value for key, value in values.items() if value is not None and value != ()}
    flags = {one.name: max(one.opts, key=len) for one in command.params}
    given = [flags[key] for key in named if key not in _ANEW]
    given += ["--out"] * (out is not None) + ["the URL"] * bool(urls)
    if given:
        raise PlanError(f"--resume goes on with the plan in {run}; leave out {' and '.join(given)}")
    from asyncli.store.resume import read_interrupted

    before = read_interrupted(run)
    if not named:
        return before.run.plan, before
    anew = options.plan_from(named, before.run.plan.urls)
    # One of the three names the server, and the others then do not.
    keys = {*named, *(_SERVER if named.keys() & set(_SERVER) else ()), *(_AGENT if named.keys() & set(_AGENT) else ())}
    return msgspec.structs.replace(before.run.plan, **{key: getattr(anew, key) for key in keys}), before
