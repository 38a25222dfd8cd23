"""``asyncli bench``."""

from __future__ import annotations

import sys
from typing import Any

import click

from asyncli.cli import options
from asyncli.cli.command import Command, environment_lines
from asyncli.model.benchplan import KEYS, METHODS, BenchRun, build_bench_plan
from asyncli.model.exit_status import INTERRUPTED, exit_status
from asyncli.model.masks import masked_url
from asyncli.model.plan import HEADER_FILE, Layer


@click.command(name="bench", cls=Command, context_settings={"max_content_width": 110})
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option("-c", "--connections", metavar="N", help="Concurrent connections.  [default: 64]")
@click.option("-n", "--requests", metavar="N", help="Total number of requests: 10000, 100k, 1M.")
@click.option(
    "-d",
    "--duration",
    metavar="TIME",
    help="Duration; with -n, whichever ends first.  [default: 10s without -n]",
)
@click.option(
    "--short",
    is_flag=True,
    default=None,
    help="Open a new connection for each request, instead of keep-alive.",
)
@click.option("--pipeline", metavar="DEPTH", help="Pipeline DEPTH requests on each connection.")
@click.option(
    "--rate", metavar="N", help="Open loop: N requests per second in all, at fixed instants."
)
@click.option("--method", metavar="|".join(METHODS), help="HTTP method.  [default: GET]")
@options.header_options
@click.option(
    "--body",
    metavar="TEXT|@FILE",
    help="Body of each request; the method is POST unless --method is given.",
)
@click.option(
    "--workers",
    metavar="N",
    help="Worker processes.  [default: half the CPUs for a server on this host, else all]",
)
@click.option(
    "--timeout", metavar="TIME", help="A request unanswered for this long fails.  [default: 10s]"
)
@options.connect_options
@options.tls_options
@options.server_options
@click.option(
    "--fail-if",
    metavar="LIMIT",
    multiple=True,
    help="Fail if LIMIT is true, as 'requests.failed > 0.1%'; repeatable.",
)
@click.option("--seed", metavar="N", help="Seed of the pauses before connect retries.")
@click.option("--force", is_flag=True, default=None, help="Ignore this host's limits.")
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE.toml",
    help="A plan file, or the built-in 'bench'. The flags above override its keys.",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write all results as JSON; '-' for standard output.",
)
@click.option(
    "--junit",
    "junit_file",
    metavar="FILE",
    help="Write the verdict and the limits as JUnit XML; '-' likewise.",
)
@options.wait_option
@click.option("--quiet", is_flag=True, help="Print only errors and the one-line verdict.")
def command(
    urls: tuple[str, ...],
    plan_file: str | None,
    json_file: str | None,
    junit_file: str | None,
    wait_for_server: str | None,
    quiet: bool,
    **values: Any,
) -> int:
    """Send requests to URL in a closed loop, or at a fixed rate, and report throughput, latency and
    CPU.

    Latency is recorded for every request: in a closed loop from its write (or its connect), with
    --rate from the instant when it was due, so that a server's stalls are counted. Several URLs
    share the connections. Ctrl-C ends the bench and reports.
    """
    wait_s = options.seconds_of("--wait-for-server", wait_for_server)
    keys = (*KEYS, *HEADER_FILE)
    layers = []
    if plan_file is not None:
        layers.append(options.plan_layer(plan_file, keys, ("bench",)))
    if urls:
        layers.append(Layer("URL", {"urls": list(urls)}))
    layers += options.option_layers(values, keys)
    plan = options.with_environment_headers(build_bench_plan(layers))
    import asyncio

    from asyncli.app.bench import Bench, bench_results, require_limits
    from asyncli.cli.outputs import deliver, file_writers, printing, require_files
    from asyncli.cli.screen import is_screen, message_console, report_console, speaker
    from asyncli.cli.signals import until_stopped
    from asyncli.report.bench_report import bench_document, one_line, tick_line, to_json
    from asyncli.report.junit import LIMITS, suite
    from asyncli.report.terminal import print_document

    require_limits(plan, options.limits_in(layers))
    files = {"--json": json_file, "--junit": junit_file}
    require_files(files)
    messages = message_console()
    console = report_console(to_stderr="-" in files.values())
    show = speaker(messages, quiet or not is_screen(messages), "dim")
    say = speaker(messages, quiet, "dim")
    bench = Bench(
        plan,
        on_tick=lambda t_s, tick: show(tick_line(t_s, tick)),
        wait_for_server_s=wait_s,
        say=say,
    )
    run: BenchRun | None = None

    async def work() -> None:
        nonlocal run
        run = await bench.run()

    warn = speaker(messages, quiet=False, style="dim")
    for line in environment_lines(quiet=quiet):
        warn(line)
    asyncio.run(until_stopped(work(), bench.stop))
    if run is None:
        print("asyncli: interrupted; there is nothing to report", file=sys.stderr)
        return INTERRUPTED
    result = bench_results(run)

    def tell() -> None:
        with printing():
            if quiet:
                print(one_line(result), file=console.file)
            else:
                print_document(bench_document(result), console)

    def json() -> str:
        return to_json(result) + "\n"

    def junit() -> str:
        errors = [finding for finding in result.findings if finding.severity == "error"]
        only_limits = all(finding.code in LIMITS for finding in errors)
        return suite(
            result.verdict,
            (result.why, ""),
            result.findings,
            masked_url(plan.urls[0]),
            result.started,
            result.duration_s,
            result.verdict == "failed" and only_limits,
        )

    # A bench leaves no run file, so each part is delivered even if an earlier one fails.
    deliver(tell, *file_writers(files, {"--json": json, "--junit": junit}))
    return exit_status(result.verdict)
