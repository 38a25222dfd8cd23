"""The flags of a plan, shared by the commands. Each flag is a plan key, and the plan parses its text."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from asyncli.cli.outputs import Outputs
from asyncli.consistency import require_alike, require_fields, require_headers
from asyncli.errors import HostError, PlanError
from asyncli.metrics import STATUS_PAGES
from asyncli.plan import KEYS, SECRET_FILES, Layer, Plan, build_plan
from asyncli.plan_file import read_plan_file
from asyncli.secret_variables import HEADERS_VARIABLE, secret
from asyncli.units import parse_duration
from asyncli.values import headers_in, with_one_host

if TYPE_CHECKING:
    from asyncli.benchplan import BenchPlan
    from asyncli.cluster.link import Cluster

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P", "Plan", "BenchPlan")


def with_headers_of_environment(plan: P) -> P:
    """``plan`` with the headers of $ASYNCLI_HEADERS beside its own. Raises :class:`PlanError`."""
    more: tuple[str, ...] = ()
    try:
        more = headers_in(secret(HEADERS_VARIABLE))
        headers = with_one_host((*plan.headers, *more))
    except ValueError as error:
        raise PlanError(f"${HEADERS_VARIABLE}: {error}") from None
    said, where = {"headers": more}, {"headers": f"${HEADERS_VARIABLE}"}
    if isinstance(plan, Plan):
        require_fields(said, where)
        require_headers(plan.protocol, more, f"${HEADERS_VARIABLE}", pings=plan.h2_heartbeat != "head" and not plan.streams)
    else:
        require_alike(said, where)
    return msgspec.structs.replace(plan, headers=headers)


Option = Callable[[Any], Any]
_SERVER_OPTIONS: tuple[Option, ...] = (
    click.option("--status-url", metavar="URL", help=f"The server's status page ({', '.join(STATUS_PAGES)}), read each second."),
    click.option("--server-pid", metavar="PID", help="The server's main process.  [default: who listens on the port]"),
    click.option("--server-pidfile", metavar="FILE", help="A file with that process id."),
    click.option("--server-name", metavar="NAME", help="The name of the server's executable."),
)
_CONNECT_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--connect-timeout",
        metavar="TIME",
        help="A connect unanswered for this long has failed, and so has a handshake of TLS.  [default: 10s]",
    ),
    click.option("--connect-to", metavar="HOST:PORT", help="Connect there, or to unix:/path, and ask for the URL all the same."),
    click.option("--resolve", metavar="HOST:PORT:ADDRESS,...", multiple=True, help="Where a URL's host is; repeatable."),
    click.option("--proxy-protocol", metavar="v1|v2", help="Begin with a PROXY header: a source of its own for each connection."),
    click.option("--source", metavar="ADDRESS", multiple=True, help="Connect from this address of this host; repeatable."),
)
_TRUST_OPTIONS: tuple[Option, ...] = (
    click.option("--ca", metavar="FILE", help="Of https: who signed the server's certificate (PEM).  [default: the system's]"),
    click.option("--client-cert", metavar="FILE", help="Our certificate, where the server asks for one."),
    click.option("--client-key", metavar="FILE", help="Its key.  [default: in the same file]"),
    click.option("--insecure", is_flag=True, default=None, help="Do not verify the server's certificate."),
)
_TLS_OPTIONS: tuple[Option, ...] = (
    *_TRUST_OPTIONS,
    click.option("--tls-min", metavar="1.2|1.3", help="Refuse older versions of TLS.  [default: 1.2]"),
    click.option("--tls-max", metavar="1.2|1.3", help="Offer no newer version.  [default: 1.3]"),
    click.option("--tls-ciphers", metavar="LIST", help="Cipher suites of TLS 1.2 to offer, in OpenSSL's words."),
    click.option("--sni", metavar="NAME", help="Ask for this name in TLS, and verify it.  [default: the URL's host]"),
    click.option("--tls-resume", is_flag=True, default=None, help="Resume the session of a first handshake in all others."),
)
# Every user of the host can read a command line; a file may be private.
_HEADER_OPTIONS: tuple[Option, ...] = (
    click.option("--header", metavar="'NAME: VALUE'", multiple=True, help="Sent with each request; {n} counts; repeatable."),
    click.option("--header-file", metavar="FILE", help=f"Headers, one a line.  [also: ${HEADERS_VARIABLE}]"),
)
_PLAN_OPTIONS: tuple[Option, ...] = (
    click.option("-k", "--keepalive", metavar="TIME", help="Sleep 1 s to TIME/2 between heartbeats.  [default: 60]"),
    click.option("--batch", metavar="N", help="Connections opened together.  [default: 10]"),
    click.option("--interval", metavar="TIME", help="Time from batch to batch.  [default: 10ms]"),
    click.option("--ramp", metavar="N/TIME", help="Batch and interval in one: 100/s, or 10/10ms."),
    click.option("--hold", metavar="TIME", help="How long to hold them, 'forever', or 'until 07:00'.  [default: 60s]"),
    click.option("--baseline", metavar="TIME", help="How long to measure before the first connect.  [default: 5s]"),
    click.option("--residue", metavar="TIME", help="How long to measure after the last close.  [default: 5s]"),
    click.option("--plateaus", metavar="K", help="Ramp in K equal steps with a rest after each."),
    click.option("--plateau-rest", metavar="TIME", help="How long each rest lasts.  [default: 10s]"),
    click.option("--workers", metavar="N", help="Processes.  [default: as many as descriptors and CPUs ask for]"),
    click.option("--timeout", metavar="TIME", help="A heartbeat unanswered for this long is lost.  [default: 10s]"),
    *_CONNECT_OPTIONS,
    *_SERVER_OPTIONS,
    click.option("--agent", metavar="URL", help="'asyncli agent' on the server's host, in place of these four: http://HOST:9165."),
    click.option("--agent-token-file", metavar="FILE", help="The agent's token.  [default: $ASYNCLI_AGENT_TOKEN]"),
    click.option("--agent-ca", metavar="FILE", help="The authority of the agent's certificate, in PEM.  [default: the system's]"),
    *_TLS_OPTIONS,
    click.option("--method", metavar="HEAD|GET|OPTIONS", help="Of the heartbeats.  [default: HEAD]"),
    *_HEADER_OPTIONS,
    click.option("--data", metavar="FILE.csv", help="A row for each connection; {column} is filled in like {n}."),
    click.option("--protocol", metavar="sse|stream", help="Of http://: hold server-sent events, or any endless answer."),
    click.option("--ws-message", metavar="TEXT", help="Of a WebSocket: heartbeats that come back.  [default: pings]"),
    click.option("--ws-deflate", is_flag=True, default=None, help="Of a WebSocket: offer to compress messages, as browsers do."),
    click.option("--http2", is_flag=True, default=None, help="Speak HTTP/2: to http:// at once, to https:// by ALPN."),
    click.option("--h2-heartbeat", metavar="ping|head", help="Of HTTP/2: a ping, or a HEAD on a new stream.  [default: ping]"),
    click.option("--h2-table", is_flag=True, default=None, help="Of HTTP/2: requests use the server's table, as browsers' do."),
    click.option("--streams", metavar="K", help="Of HTTP/2: hold K answers on each connection.  [default: none]"),
    click.option("--send", metavar="BYTES", help=r"Of tcp:// and tls://: heartbeats, as 'PING\r\n'.  [default: none]"),
    click.option("--expect", metavar="ANSWER", help="Its answer: bytes, '/REGEX/' of a line, 'N bytes'.  [default: any]"),
    click.option("--greeting", metavar="ANSWER", help="What the server says first, likewise.  [default: nothing]"),
    click.option("--silence", metavar="TIME", help="Listeners that hear nothing so long are dead.  [default: 90s, tcp: forever]"),
    click.option("--mqtt-version", metavar="3.1.1|5", help="Of mqtt:// and mqtts://.  [default: 3.1.1]"),
    click.option("--mqtt-id", metavar="TEMPLATE", help="Client ids; {n} counts.  [default: asyncli-{random}-{n:06d}]"),
    click.option("--mqtt-login-file", metavar="FILE", help="Of MQTT: user:password, in a line."),
    click.option("--subscribe", metavar="TOPIC[@QOS]", multiple=True, help="Topics to hear, as 'sensors/#@1'; repeatable."),
    click.option("--first-beat", metavar="now|sleep", help="Beat at once after connecting, or sleep first.  [default: now]"),
    click.option("--reopen/--no-reopen", default=None, help="Replace lost connections, or only count them.  [default: reopen]"),
    click.option("--fail-if", metavar="LIMIT", multiple=True, help="Fail if LIMIT is true, as in 'lost > 0.1%'; repeatable."),
    click.option("--abort", is_flag=True, default=None, help="Stop as soon as a limit on a count or a maximum is crossed."),
    click.option("--seed", metavar="N", help="Seed of the jitter: the same seed, the same schedule."),
    click.option("--force", is_flag=True, default=None, help="Ignore the preflight's refusal."),
    click.option("--plan", "plan_file", metavar="FILE.toml", help="A plan, or the name of one of ours: smoke, 100k, overnight."),
)  # fmt: skip


def _give(options: tuple[Option, ...]) -> Callable[[F], F]:
    def give(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return give


server_options, connect_options, header_options, trust_options, tls_options = map(
    _give, (_SERVER_OPTIONS, _CONNECT_OPTIONS, _HEADER_OPTIONS, _TRUST_OPTIONS, _TLS_OPTIONS)
)


def plan_options(connections: str = "1000", without: Collection[str] = ()) -> Callable[[F], F]:
    """Give a command every flag of a plan but those ``without``; ``connections``: their default number."""
    first = click.option(
        "-c", "--connections", metavar="N", help=f"Connections to hold: 5000, 100k, 1M.  [default: {connections}]"
    )

    def give(function: F) -> F:
        function = _give((first, *_PLAN_OPTIONS))(function)
        if without:
            given: list[click.Parameter] = function.__click_params__  # type: ignore[attr-defined]
            given[:] = [one for one in given if one.name not in without]
        return function

    return give


def wait_option(function: F) -> F:
    """Give a command ``--wait-for-server``; see :func:`seconds_of`."""
    text = "Wait up to TIME until a server on this host listens."
    return click.option("--wait-for-server", metavar="TIME", help=text)(function)


def parsed(flag: str, parse: Callable[[object], T], text: object) -> T:
    """The value of a flag that is no plan key. Raises :class:`PlanError`."""
    try:
        return parse(text)
    except ValueError as error:
        raise PlanError(f"{flag}: {error}") from None


def seconds_of(flag: str, text: str | None) -> float:
    """The seconds of such a flag; 0 without it."""
    return 0.0 if text is None else parsed(flag, parse_duration, text)


_OUTPUT_OPTIONS: tuple[Option, ...] = (
    click.option("--out", metavar="RUN.db", help="The run file; never overwritten.  [default: asyncli-<time>.db here]"),
    click.option("--json", "json_file", metavar="FILE", help="Write the summary as JSON; '-' for standard output."),
    click.option("--html", "html_file", metavar="FILE", help="Write it as one HTML page that opens offline; '-' likewise."),
    click.option("--junit", "junit_file", metavar="FILE", help="Write verdict and limits as JUnit XML; '-' likewise."),
    click.option("--log-json", is_flag=True, help="Print a JSON object a line for each event of the run."),
    click.option("--on-finish", metavar="COMMAND", help="Run COMMAND at the end, with $ASYNCLI_VERDICT, the JSON on its input."),
    click.option("-v", "--verbose", is_flag=True, help="Print all of the report: rules, notes, every limit."),
    click.option("--quiet", is_flag=True, help="Print errors and the one-line verdict, nothing else."),
)  # fmt: skip


#: The flags of :class:`~asyncli.cli.outputs.Outputs`.
output_options = _give(_OUTPUT_OPTIONS)


def outputs_of(values: dict[str, Any]) -> Outputs:
    """They, taken out of ``values``."""
    return Outputs(**{name: values.pop(name) for name in Outputs._fields})


#: The hosts that open the connections; no part of a plan.
CLUSTER = ("cluster", "cluster_ca", "cluster_cert", "cluster_key", "cluster_hosts")
_CLUSTER_OPTIONS: tuple[Option, ...] = (
    click.option("--cluster", metavar="ADDRESS", help="Open them from the hosts of this Dask cluster: tcp://HOST:8786 or tls://."),
    click.option("--cluster-ca", metavar="FILE", help="With tls://: who signed the cluster's certificates (PEM)."),
    click.option("--cluster-cert", metavar="FILE", help="With tls://: the client's certificate."),
    click.option("--cluster-key", metavar="FILE", help="With tls://: its key."),
    click.option(
        "--cluster-hosts", type=click.IntRange(min=1), metavar="N", help="Wait a minute for N hosts, and refuse fewer.",
    ),
)  # fmt: skip


cluster_options = _give(_CLUSTER_OPTIONS)


def cluster_of(values: dict[str, Any]) -> Cluster | None:
    """The cluster that the flags name; None: this host alone. Raises :class:`PlanError`, HostError where Dask is missing."""
    address, ca, cert, key, hosts = (values.get(name) for name in CLUSTER)
    if address is None:
        if given := [f"--{name.replace('_', '-')}" for name in CLUSTER if values.get(name) is not None]:
            raise PlanError(f"{given[0]}: of no use without --cluster; write --cluster tcp://scheduler:8786 beside it")
        return None
    from asyncli.cluster.link import Cluster

    return Cluster.at(address, ca=ca, cert=cert, key=key, hosts=hosts)


def plan_from(values: dict[str, Any], urls: tuple[str, ...] = (), defaults: Layer | None = None) -> Plan:
    """The plan: flags win over its file, and that over ``defaults``. Raises :class:`PlanError`."""
    layers = [defaults] if defaults is not None else []
    if (file := values.get("plan_file")) is not None:
        layers.append(read_plan_file(plan_path(str(file))))
    keys = {*KEYS, *SECRET_FILES, "ramp"}
    flags = {key: value for key, value in values.items() if key in keys and value is not None and value != ()}
    # The URLs last: a flag's value without quotes spills into them, and the flag's error is the clearer one.
    plan = build_plan([*layers, Layer("--{key}", flags), *([Layer("URL", {"urls": list(urls)})] if urls else [])])
    plan = with_headers_of_environment(plan)
    if plan.fail_if or plan.abort:
        from asyncli.report.livelimits import require_limits

        require_limits(plan)
    return plan


def plan_path(name: str) -> Path:
    """The plan file called ``name``: a path, or one of ours without its suffix."""
    path = Path(name)
    if os.path.exists(path) or path.suffix or len(path.parts) > 1:
        return path
    from asyncli.lab.resources import config_file

    try:
        return config_file(f"{name}.toml")
    except (HostError, OSError):
        return path
