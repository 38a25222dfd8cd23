"""The options of the live page: where it is served, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from asyncli.cli.command import is_of_variable
from asyncli.model.errors import PlanError
from asyncli.model.installed import has_pages, how_to_install, missing

if TYPE_CHECKING:
    from asyncli.live.serve import ServedAt

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DEFAULT = "127.0.0.1:9166"
_NEEDED = ("prometheus_client",)
_OF_A_PAGE = ("web_token_file", "web_cert", "web_key", "reference")

_OPTIONS = (
    click.option(
        "--web",
        metavar="[HOST:PORT]",
        is_flag=False,
        flag_value=_DEFAULT,
        help=f"Show it as a page for browsers, and to Prometheus as /metrics.  [{_DEFAULT}]",
    ),
    click.option(
        "--web-token-file",
        metavar="FILE",
        help="A file with the token that marks and stops need, and all else beyond loopback.  "
        "[default: a new one, which is printed]",
    ),
    click.option("--web-cert", metavar="FILE", help="Serve the page by TLS (PEM, with its chain)."),
    click.option(
        "--web-key", metavar="FILE", help="Its key.  [default: in the certificate's file]"
    ),
    click.option(
        "--reference",
        metavar="OTHER.db",
        help="Lay this run under the charts of the page, from the first connect on.",
    ),
)


_METRICS = (
    click.option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve the run's numbers to Prometheus, as /metrics, without a page.",
    ),
    click.option(
        "--metrics-linger",
        metavar="TIME",
        help="How long page and metrics stay readable after the run.  [default: 0]",
    ),
)


def metrics_options(command: _Command) -> _Command:
    """--metrics and --metrics-linger, of a soak."""
    for option in reversed(_METRICS):
        command = option(command)
    return command


def web_options(command: _Command) -> _Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_web_place(values: dict[str, Any], linger_s: float) -> ServedAt | None:
    """Take the options of page and metrics out of those of a soak; see :func:`web_place`."""
    web = {name: values.pop(name) for name in ("web", *_OF_A_PAGE)}
    metrics = values.pop("metrics")
    if metrics is None:
        if linger_s and web["web"] is None:
            raise PlanError("--metrics-linger: nothing is served; give --metrics or --web too")
        return web_place(web, linger_s=linger_s)
    if web["web"] is not None:
        raise PlanError("--metrics: the page of --web has /metrics too; leave out --metrics")
    return web_place({**web, "web": metrics}, linger_s=linger_s, flag="--metrics")


def web_place(
    values: Mapping[str, Any], *, linger_s: float = 0.0, flag: str = "--web"
) -> ServedAt | None:
    """Where to serve; None without --web. ``flag``: what names the address; --metrics serves no
    page.

    Raises :class:`~asyncli.model.errors.AsyncliError` for what is no address, and for a token that
    cannot be read.
    """
    address = values["web"]
    if address is None:
        for name in _OF_A_PAGE:
            if values[name] is not None:
                raise PlanError(f"--{name.replace('_', '-')}: there is no page; give --web too")
        return None
    _require_parts(flag)
    from asyncli.agent.wire import read_token
    from asyncli.live.serve import ServedAt, new_token
    from asyncli.web.address import is_loopback, parse_address

    hint = "; a URL of the server, or a run file, stands before it"
    if is_of_variable(flag.removeprefix("--")):
        hint = ""
    host, port = parse_address(flag, address, f"{flag} HOST:PORT, such as {_DEFAULT}", hint)
    if values["web_key"] is not None and values["web_cert"] is None:
        raise PlanError("--web-key: there is no certificate; name it with --web-cert")
    if values["reference"] is not None and flag != "--web":
        raise PlanError(f"--reference: {flag} has no charts; give --web in its place")
    token = new_token()
    if values["web_token_file"] is not None:
        token = read_token(values["web_token_file"], "--web-token-file") or token
    return ServedAt(
        host,
        port,
        token,
        must_have_token=not is_loopback(flag, host),
        certificate=values["web_cert"],
        key=values["web_key"],
        with_page=flag == "--web",
        linger_s=linger_s,
        token_file=values["web_token_file"],
        reference=values["reference"],
    )


def _require_parts(flag: str) -> None:
    """Raise :class:`PlanError` where this installation cannot serve what ``flag`` asks for."""
    if flag == "--web" and not has_pages():
        raise PlanError(
            "--web: the page is not a part of this installation (--metrics of a soak is); "
            f"{how_to_install()}"
        )
    if missing(_NEEDED):
        raise PlanError(
            f"{flag}: this installation is light and has no prometheus-client, with which metrics "
            "are written; add it: pip install prometheus-client"
        )


def web_lines(place: ServedAt, port: int) -> list[str]:
    """What is said of a page that is served now."""
    from asyncli.web.address import warning_of_readers

    url = place.url(port)
    token, where = place.token, ""
    if place.token_file is not None:
        # Logs are kept and passed on: a user's own token is in none.
        token, where = "TOKEN", f" (TOKEN is in {place.token_file})"
    lines = [f"the page: {url}#token={token}{where}"]
    if not place.with_page:
        lines = [f"metrics: {url}metrics"]
        if place.must_have_token:
            lines = [f"metrics: {url}metrics, with 'Authorization: Bearer {token}'{where}"]
    warning = None if place.token_file is None else warning_of_readers(place.token_file)
    if warning is not None:
        lines.append(warning)
    if place.must_have_token and place.certificate is None:
        lines.append(
            "warning: the token crosses the network in the clear; give --web-cert and --web-key"
        )
    return lines
