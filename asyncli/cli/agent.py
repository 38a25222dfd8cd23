"""``asyncli agent``."""

from __future__ import annotations

from typing import Any

import click

from asyncli.errors import PlanError
from asyncli.plan import AGENT_PORT


@click.command(name="agent", no_args_is_help=True, context_settings={"max_content_width": 110})
@click.option("--status-url", metavar="URL", help="The server's status page (nginx, Apache, HAProxy), polled once a second.")
@click.option("--server-pid", metavar="PID", help="The server's main process.  [default: who listens on the page's port]")
@click.option("--server-pidfile", metavar="FILE", help="A file with that number in it.")
@click.option("--server-name", metavar="NAME", help="Or the name of the server's executable.")
@click.option("--listen", default=f"127.0.0.1:{AGENT_PORT}", metavar="HOST:PORT", show_default=True, help="Where to be asked.")
@click.option(
    "--token-file", metavar="FILE", help="What to be asked with; a must beyond loopback.  [default: $ASYNCLI_AGENT_TOKEN]"
)
@click.option("--tls-cert", metavar="FILE", help="Speak TLS with this certificate (PEM, its chain after it).")
@click.option("--tls-key", metavar="FILE", help="And this key.  [default: in the certificate's file]")
def command(**values: Any) -> int:
    """Sample the server on this host, for 'asyncli soak --agent URL' on another and for Prometheus (/metrics).

    It reads once a second what a soak would read here (status page, processes, kernel, limits, nginx's configuration), keeps ten
    minutes of it, and changes nothing. Ctrl-C or SIGTERM ends it.
    """
    from asyncli.cli.runagent import run_agent

    host, port = _address(values.pop("listen"))
    token_file, certificate, key = (values.pop(name) for name in ("token_file", "tls_cert", "tls_key"))
    if key is not None and certificate is None:
        raise PlanError("--tls-key: there is no certificate; name it with --tls-cert")
    named = [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None and name != "status_url"]
    if len(named) > 1:
        raise PlanError(f"{' and '.join(named)}: name the server once, not {len(named)} times; leave all but one out")
    if not named and values["status_url"] is None:
        raise PlanError("no server named; give its --status-url, or name its process with --server-name or --server-pidfile")
    return run_agent(values, host, port, token_file, certificate, key)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise PlanError(f"--listen: {text!r} is not an address; write HOST:PORT, for example 10.0.0.8:{AGENT_PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)
