"""The flags shared by the commands. Most are keys of a plan, which parses their text."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from asyncli.cli.command import is_of_variable, variables_of_command
from asyncli.cli.outputs import Outputs
from asyncli.model.consistency import require_alike, require_fields, require_headers
from asyncli.model.errors import HostError, PlanError
from asyncli.model.installed import can_compute, how_to_install
from asyncli.model.plan import KEYS, SECRET_FILES, Layer, Plan, build_plan
from asyncli.model.plan_file import SOAKS, read_plan_file
from asyncli.model.products import STATUS_PAGES
from asyncli.model.secret_variables import HEADERS_VARIABLE, secret
from asyncli.model.units import parse_duration
from asyncli.model.values import headers_in, with_one_host

if TYPE_CHECKING:
    from asyncli.cluster.link import Cluster
    from asyncli.model.benchplan import BenchPlan

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P", "Plan", "BenchPlan")


def with_environment_headers(plan: P) -> P:
    """``plan`` with the headers of $ASYNCLI_HEADERS added. Raises :class:`PlanError`."""
    variable = f"${HEADERS_VARIABLE}"
    added: tuple[str, ...]
    try:
        added = headers_in(secret(HEADERS_VARIABLE))
        headers = with_one_host((*plan.headers, *added))
    except ValueError as error:
        raise PlanError(f"{variable}: {error}") from None
    fields = {"headers": added}
    where = {"headers": variable}
    if isinstance(plan, Plan):
        require_fields(fields, where)
        pings = plan.h2_heartbeat != "head" and not plan.streams
        require_headers(plan.protocol, added, variable, pings=pings)
    else:
        require_alike(fields, where)
    return msgspec.structs.replace(plan, headers=headers)


Option = Callable[[Any], Any]
_SERVER_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--status-url",
        metavar="URL",
        help=(
            f"The server's status page ({', '.join(STATUS_PAGES)}), read each second; a login or "
            "unix:/path may be in it."
        ),
    ),
    click.option(
        "--status-header",
        metavar="HEADER",
        multiple=True,
        help="A header for the status page and the metrics pages; repeatable.",
    ),
    click.option(
        "--server-metrics",
        metavar="URL",
        multiple=True,
        help=(
            "A page of the server's own metrics (Prometheus, expvar, NATS), or a broker's $SYS "
            "(mqtt://HOST), for memory and counts; repeatable."
        ),
    ),
    click.option(
        "--metrics-map",
        metavar="WHAT=NAME",
        multiple=True,
        help=(
            "The metric of such a page that counts active, accepts, requests, live or heap: "
            'active=ws_open{pool="a"}; repeatable.'
        ),
    ),
    click.option(
        "--server-pid",
        metavar="PID",
        help="ID of the server's main process.  [default: the listener on the port]",
    ),
    click.option("--server-pidfile", metavar="FILE", help="A file with that process ID."),
    click.option("--server-name", metavar="NAME", help="The name of the server's executable."),
)
_CONNECT_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--connect-timeout",
        metavar="TIME",
        help="Time limit of a connect, and of a TLS handshake.  [default: 10s]",
    ),
    click.option(
        "--connect-to",
        metavar="HOST:PORT",
        help=(
            "Connect here, or to unix:/path; requests keep the URL's host. Also as in curl: "
            "HOST1:PORT1:HOST2:PORT2."
        ),
    ),
    click.option(
        "--resolve",
        metavar="HOST:PORT:ADDRESS,...",
        multiple=True,
        help="Use ADDRESS for HOST:PORT; repeatable.",
    ),
    click.option(
        "--proxy-protocol",
        metavar="v1|v2",
        help="Send a PROXY header first, with a different source per connection.",
    ),
    click.option(
        "--source",
        metavar="ADDRESS",
        multiple=True,
        help="A local address to connect from; repeatable.",
    ),
)
_TRUST_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--ca",
        "--cacert",
        metavar="FILE",
        help="CA certificates to verify the server with (PEM).  [default: the system's]",
    ),
    click.option(
        "--client-cert",
        "--cert",
        metavar="FILE",
        help="Client certificate (PEM), for a server that asks for one.",
    ),
    click.option(
        "--client-key",
        "--key",
        metavar="FILE",
        help="Key of the client certificate.  [default: in the same file]",
    ),
    click.option(
        "--insecure", is_flag=True, default=None, help="Do not verify the server's certificate."
    ),
)
_TLS_OPTIONS: tuple[Option, ...] = (
    *_TRUST_OPTIONS,
    click.option(
        "--tls-min", metavar="1.2|1.3", help="Lowest TLS version to accept.  [default: 1.2]"
    ),
    click.option(
        "--tls-max", metavar="1.2|1.3", help="Highest TLS version to offer.  [default: 1.3]"
    ),
    click.option(
        "--tls-ciphers",
        metavar="LIST",
        help="TLS 1.2 cipher suites to offer, as an OpenSSL cipher list.",
    ),
    click.option(
        "--alpn",
        metavar="LIST",
        help="Protocols to offer in ALPN, such as mqtt.  [default: http/1.1 for HTTP]",
    ),
    click.option(
        "--sni",
        metavar="NAME",
        help="Server name to send in TLS (SNI) and to verify.  [default: the URL's host]",
    ),
    click.option(
        "--tls-resume",
        is_flag=True,
        default=None,
        help="Resume the first handshake's TLS session in all later ones.",
    ),
)
# Every user of a host can read its command lines; a file can be private.
_HEADER_OPTIONS: tuple[Option, ...] = (
    click.option(
        "-H",
        "--header",
        metavar="'NAME: VALUE'",
        multiple=True,
        help="Request header; {n} is the connection; repeatable.",
    ),
    click.option(
        "--header-file",
        metavar="FILE",
        help=f"A file of headers, one per line.  [also: ${HEADERS_VARIABLE}]",
    ),
)
_PLAN_OPTIONS: tuple[Option, ...] = (
    click.option(
        "-k",
        "--keepalive",
        metavar="TIME",
        help="Sleep 1 s to TIME/2 between heartbeats.  [default: 60]",
    ),
    click.option("--batch", metavar="N", help="Connections opened together.  [default: 10]"),
    click.option("--interval", metavar="TIME", help="Time between batches.  [default: 10ms]"),
    click.option(
        "--ramp", metavar="N/TIME", help="Batch and interval together: 100/s, or 10/10ms."
    ),
    click.option(
        "--hold",
        metavar="TIME",
        help="How long to hold: a time, 'forever', or 'until 07:00'.  [default: 60s]",
    ),
    click.option(
        "--baseline",
        metavar="TIME",
        help="How long to measure before the first connect.  [default: 5s]",
    ),
    click.option(
        "--residue", metavar="TIME", help="How long to measure after the last close.  [default: 5s]"
    ),
    click.option("--plateaus", metavar="K", help="Ramp in K equal steps with a rest after each."),
    click.option(
        "--plateau-rest", metavar="TIME", help="How long each rest lasts.  [default: 10s]"
    ),
    click.option(
        "--collect",
        metavar="HOW",
        help=(
            "Ask the server's runtime for a collection at each plateau's end: auto (Node, Java), a "
            "URL, or a command with {pid}."
        ),
    ),
    click.option(
        "--workers",
        metavar="N",
        help="Worker processes.  [default: by the descriptor limit and the CPUs]",
    ),
    click.option(
        "--timeout",
        metavar="TIME",
        help="Time limit of a heartbeat; then its connection is lost.  [default: 10s]",
    ),
    *_CONNECT_OPTIONS,
    *_SERVER_OPTIONS,
    click.option(
        "--agent",
        metavar="URL",
        help="Sample the server with 'asyncli agent' on its host: http://HOST:9165.",
    ),
    click.option(
        "--agent-token-file",
        metavar="FILE",
        help="A file with the agent's token.  [default: $ASYNCLI_AGENT_TOKEN]",
    ),
    click.option(
        "--agent-ca",
        metavar="FILE",
        help="CA certificates to verify the agent with (PEM).  [default: the system's]",
    ),
    *_TLS_OPTIONS,
    click.option(
        "--method",
        metavar="HEAD|GET|OPTIONS",
        help="HTTP method of the heartbeats.  [default: HEAD]",
    ),
    *_HEADER_OPTIONS,
    click.option(
        "--data",
        metavar="FILE.csv",
        help="CSV with one row per connection; {column} is replaced like {n}.",
    ),
    click.option(
        "--protocol",
        metavar="sse|stream",
        help="Over http(s)://, hold server-sent events or any endless response.",
    ),
    click.option(
        "--ws-message",
        metavar="TEXT",
        help="Heartbeats send this text, await its echo (WebSocket).  [default: pings]",
    ),
    click.option(
        "--ws-deflate", is_flag=True, default=None, help="Offer permessage-deflate (WebSocket)."
    ),
    click.option(
        "--http2",
        is_flag=True,
        default=None,
        help="Speak HTTP/2: by prior knowledge to http://, by ALPN to https://.",
    ),
    click.option(
        "--h2-heartbeat",
        metavar="ping|head",
        help="Heartbeats are PINGs or HEADs (HTTP/2).  [default: ping]",
    ),
    click.option(
        "--h2-table",
        is_flag=True,
        default=None,
        help="Use HPACK's dynamic table, as browsers do (HTTP/2).",
    ),
    click.option(
        "--streams",
        metavar="K",
        help="Hold K open responses on each connection (HTTP/2).  [default: none]",
    ),
    click.option(
        "--send",
        metavar="BYTES",
        help=r"A heartbeat over tcp:// or tls://, as 'PING\r\n'.  [default: none]",
    ),
    click.option(
        "--expect",
        metavar="ANSWER",
        help="Answer to --send: bytes, '/REGEX/' for a line, 'N bytes'.  [default: any]",
    ),
    click.option(
        "--greeting",
        metavar="ANSWER",
        help="What the server sends first, as in --expect.  [default: nothing]",
    ),
    click.option(
        "--silence",
        metavar="TIME",
        help="A listener is lost after TIME without data.  [default: 90s, tcp: forever]",
    ),
    click.option(
        "--mqtt-version", metavar="3.1.1|5", help="Protocol version (MQTT).  [default: 3.1.1]"
    ),
    click.option(
        "--mqtt-id",
        metavar="TEMPLATE",
        help="MQTT client ID; {n} as above.  [default: asyncli-{random}-{n:06d}]",
    ),
    click.option(
        "--mqtt-login-file", metavar="FILE", help="A file with user:password on one line (MQTT)."
    ),
    click.option(
        "--subscribe",
        metavar="TOPIC[@QOS]",
        multiple=True,
        help="An MQTT topic, as 'sensors/#@1'; repeatable.",
    ),
    click.option(
        "--first-beat",
        metavar="now|sleep",
        help="First heartbeat at once, or after a sleep.  [default: now]",
    ),
    click.option(
        "--reopen/--no-reopen",
        default=None,
        help="Replace lost connections, or only count them.  [default: reopen]",
    ),
    click.option(
        "--at",
        "events",
        nargs=2,
        metavar="TIME WHAT",
        multiple=True,
        help="Do something in the hold: --at 30s storm, --at 50% 'drop 30%'; repeatable.",
    ),
    click.option(
        "--churn",
        metavar="PACE",
        help="End and replace connections in the hold at this pace: 1%/m, 0.5%/s, 20%/h.",
    ),
    click.option(
        "--reconnect",
        metavar="HOW",
        help="How clients come back: now, jitter:10s, backoff:1s..60s, fixed:3s.",
    ),
    click.option(
        "--fail-if",
        metavar="LIMIT",
        multiple=True,
        help="Fail if LIMIT is true, such as 'lost > 0.1%'; repeatable.",
    ),
    click.option(
        "--baseline-run",
        metavar="RUN.db",
        multiple=True,
        help="An earlier run, or a folder of them, for limits such as 'cost.server_user worse by "
        "3%'; repeatable.",
    ),
    click.option(
        "--abort",
        is_flag=True,
        default=None,
        help="Stop once a --fail-if limit on a count or a maximum is crossed; one against "
        "--baseline-run stops the run without it.",
    ),
    click.option(
        "--seed", metavar="N", help="Seed of the jitter: the same seed gives the same schedule."
    ),
    click.option(
        "--force", is_flag=True, default=None, help="Start even if the preflight refuses."
    ),
    click.option(
        "--plan",
        "plan_file",
        metavar="FILE.toml",
        help="A plan file, or a built-in plan: smoke, 100k, overnight.",
    ),
)


def _with_options(options: tuple[Option, ...]) -> Callable[[F], F]:
    """A decorator that adds ``options`` to a command."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


server_options = _with_options(_SERVER_OPTIONS)
connect_options = _with_options(_CONNECT_OPTIONS)
header_options = _with_options(_HEADER_OPTIONS)
trust_options = _with_options(_TRUST_OPTIONS)
tls_options = _with_options(_TLS_OPTIONS)


def plan_options(connections: str = "1000", without: Collection[str] = ()) -> Callable[[F], F]:
    """A decorator that adds the flags of a plan, except those in ``without``.

    ``connections``: the default of -c.
    """
    text = f"Connections to hold: 5000, 100k, 1M.  [default: {connections}]"
    count = click.option("-c", "--connections", metavar="N", help=text)

    def add(function: F) -> F:
        function = _with_options((count, *_PLAN_OPTIONS))(function)
        if without:
            given: list[click.Parameter] = function.__click_params__  # type: ignore[attr-defined]
            given[:] = [parameter for parameter in given if parameter.name not in without]
        return function

    return add


#: ``--wait-for-server``; see :func:`seconds_of`.
wait_option = click.option(
    "--wait-for-server", metavar="TIME", help="Wait up to TIME for a server on this host to listen."
)


def parsed(flag: str, parse: Callable[[object], T], text: object) -> T:
    """The value of a flag that is not a plan key. Raises :class:`PlanError`."""
    try:
        return parse(text)
    except ValueError as error:
        raise PlanError(f"{flag}: {error}") from None


def seconds_of(flag: str, text: str | None) -> float:
    """The seconds that a flag gives; 0 without it. Raises :class:`PlanError`."""
    if text is None:
        return 0.0
    return parsed(flag, parse_duration, text)


summary_option = click.option(
    "--summary",
    type=click.Choice(["text", "markdown"]),
    default="text",
    help="Print the report as text, or as Markdown for a pull request.  [default: text]",
)
_OUTPUT_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--out",
        metavar="RUN.db",
        help="The run file; never overwritten.  [default: asyncli-<time>.db here]",
    ),
    click.option(
        "--json",
        "json_file",
        metavar="FILE",
        help="Write the summary as JSON; '-' for standard output.",
    ),
    click.option(
        "--html",
        "html_file",
        metavar="FILE",
        help="Write the report as one offline HTML page; '-' likewise.",
    ),
    click.option(
        "--junit",
        "junit_file",
        metavar="FILE",
        help="Write the verdict and the limits as JUnit XML; '-' likewise.",
    ),
    click.option("--log-json", is_flag=True, help="Print each event of the run as a line of JSON."),
    click.option(
        "--on-finish",
        metavar="COMMAND",
        help="Run COMMAND at the end, with $ASYNCLI_VERDICT and JSON on its input.",
    ),
    click.option(
        "-v", "--verbose", is_flag=True, help="Print the full report: rules, notes, every limit."
    ),
    click.option("--quiet", is_flag=True, help="Print only errors and the one-line verdict."),
    summary_option,
)


#: The flags of :class:`~asyncli.cli.outputs.Outputs`.
output_options = _with_options(_OUTPUT_OPTIONS)


def outputs_of(values: dict[str, Any]) -> Outputs:
    """Move the flags of :class:`Outputs` out of ``values``."""
    return Outputs(**{name: values.pop(name) for name in Outputs._fields})


#: The flags that name the hosts that open the connections; they are not part of a plan.
CLUSTER = ("cluster", "cluster_ca", "cluster_cert", "cluster_key", "cluster_hosts")
_CLUSTER_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Connect from a Dask cluster's hosts: tcp://HOST:8786 or tls://.",
    ),
    click.option(
        "--cluster-ca",
        metavar="FILE",
        help="CA certificates to verify a tls:// cluster with (PEM).",
    ),
    click.option("--cluster-cert", metavar="FILE", help="Client certificate for a tls:// cluster."),
    click.option("--cluster-key", metavar="FILE", help="Key of that certificate."),
    click.option(
        "--cluster-hosts",
        type=click.IntRange(min=1),
        metavar="N",
        help="Wait a minute for N hosts, else refuse.",
    ),
)


cluster_options = _with_options(_CLUSTER_OPTIONS)


def cluster_of(values: dict[str, Any]) -> Cluster | None:
    """The cluster of the flags; None: this host alone.

    Raises :class:`PlanError`, and HostError if Dask is missing.
    """
    address = values.get("cluster")
    if address is None:
        for name in CLUSTER:
            if values.get(name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise PlanError(
                    f"{flag}: has no effect without --cluster; add --cluster tcp://scheduler:8786"
                )
        return None
    from asyncli.cluster.link import Cluster

    return Cluster.at(
        address,
        ca=values.get("cluster_ca"),
        cert=values.get("cluster_cert"),
        key=values.get("cluster_key"),
        hosts=values.get("cluster_hosts"),
    )


def plan_from(
    values: dict[str, Any],
    urls: tuple[str, ...] = (),
    defaults: Layer | None = None,
    *,
    collects_by_command: bool = False,
) -> Plan:
    """The plan of the flags. Flags override the environment, which overrides the plan file, which
    overrides ``defaults``. ``collects_by_command``: see
    :func:`~asyncli.report.live_thresholds.require_limits`.

    Raises :class:`PlanError`.
    """
    keys = (*KEYS, *SECRET_FILES, "ramp")
    layers = []
    if defaults is not None:
        layers.append(defaults)
    plan_file = values.get("plan_file")
    if plan_file is not None:
        layers.append(plan_layer(str(plan_file), keys, SOAKS))
    layers += option_layers(values, keys)
    of_urls = []
    if urls:
        # URLs last: an unquoted flag value spills into them, and the flag's error is clearer.
        of_urls.append(Layer("URL", {"urls": list(urls)}))
    plan = with_environment_headers(build_plan([*layers, *of_urls]))
    if plan.fail_if or plan.abort or plan.baseline_runs:
        from asyncli.report.live_thresholds import require_limits

        require_limits(plan, limits_in(layers), collects_by_command=collects_by_command)
        _require_computed(plan, limits_in(layers))
    return plan


def _require_computed(plan: Plan, where: str) -> None:
    """Raise :class:`PlanError` for a limit on a number that cannot be computed here: it would be
    crossed at the end of every run.
    """
    if can_compute():
        return
    from asyncli.report.summary import Summary
    from asyncli.report.thresholds import parse

    for text in plan.fail_if:
        limit = parse(text, Summary)
        if limit.is_computed:
            raise PlanError(
                f"{where}: {text!r} needs NumPy and SciPy, which are not installed here; "
                f"{how_to_install()}"
            )


def option_layers(values: dict[str, Any], keys: Iterable[str]) -> list[Layer]:
    """The plan keys among a command's options: those of the environment, then those of flags."""
    of_environment: dict[str, Any] = {}
    of_flags: dict[str, Any] = {}
    for key in keys:
        value = values.get(key)
        if value is None or value == ():
            continue
        if is_of_variable(key):
            of_environment[key] = value
        else:
            of_flags[key] = value
    return [Layer(variables_of_command(), of_environment), Layer("--{key}", of_flags)]


def keys_not_given(values: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """Those of ``keys`` that no option and no plan file gives: "ramp" is also batch and
    interval.
    """
    given = {key for key, value in values.items() if value is not None}
    if values.get("plan_file") is not None:
        known = (*KEYS, *SECRET_FILES, "ramp")
        given.update(plan_layer(str(values["plan_file"]), known, SOAKS).values)
    if given & {"batch", "interval"}:
        given.add("ramp")
    return [key for key in keys if key not in given]


def replaced_lists(values: dict[str, Any]) -> list[str]:
    """A line for each list of the plan file, such as its events, that an option replaces: options
    that can be repeated look as if they added to it.
    """
    if values.get("plan_file") is None:
        return []
    name = str(values["plan_file"])
    known = (*KEYS, *SECRET_FILES, "ramp")
    of_file = plan_layer(name, known, SOAKS).values
    lines = []
    for layer in option_layers(values, known):
        for key in layer.values:
            replaced = of_file.get(key)
            if isinstance(replaced, list) and replaced:
                lines.append(f"{layer.locate(key)} replaces {key} of {name} ({len(replaced)})")
    return lines


def limits_in(layers: Sequence[Layer]) -> str:
    """Where the limits that count were written: ``--fail-if``, ``a.toml: fail_if``."""
    for layer in reversed(layers):
        if "fail_if" in layer.values:
            return layer.locate("fail_if")
    return "--fail-if"


def plan_layer(name: str, keys: Iterable[str], built_in: Sequence[str]) -> Layer:
    """The plan file ``name``, a path or one of the command's plans ``built_in``.

    Raises :class:`PlanError`.
    """
    flags: list[str] = []
    context = click.get_current_context(silent=True)
    if context is not None:
        for parameter in context.command.params:
            flags += parameter.opts
    return read_plan_file(_plan_path(name, built_in), keys, built_in, flags)


def _plan_path(name: str, built_in: Sequence[str]) -> Path:
    path = Path(name)
    if os.path.exists(path) or name not in built_in:
        return path
    from asyncli.lab.resources import config_file

    try:
        return config_file(f"{name}.toml")
    except (HostError, OSError):
        return path
