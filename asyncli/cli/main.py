"""The entry point: finds the command, and turns each AsyncliError into one line and an exit status.

A command is imported when it is called, so that ``--help`` is fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from asyncli import __version__
from asyncli.cli.outputs import discard_broken_output, is_broken_pipe, unprinted
from asyncli.cli.signals import Signals
from asyncli.cli.stdio import Outlet, UnwrittenError, await_readers, outlet_of, outlets
from asyncli.model.blas import use_one_thread
from asyncli.model.errors import AsyncliError, HostError, PlanError, StoreError
from asyncli.model.exit_status import INTERRUPTED, LISTED, REFUSED
from asyncli.model.installed import how_to_install, missing, needed_by
from asyncli.model.masks import without_queries
from asyncli.model.secret_variables import keep_secrets
from asyncli.model.text import printable

#: name -> (module with a click command ``command``, one line for --help).
COMMANDS = {
    "soak": ("asyncli.cli.soak", "Hold connections on a server and measure what one more costs."),
    "check": ("asyncli.cli.check", "Check whether this host and the server can carry a plan."),
    "report": (
        "asyncli.cli.report",
        "Print the report of a run file, finished or still being written.",
    ),
    "watch": ("asyncli.cli.watch", "Show a running soak, from another terminal."),
    "mark": ("asyncli.cli.mark", "Note in a running soak what happens now, such as a deploy."),
    "compare": (
        "asyncli.cli.compare",
        "Compare runs: the differences, their intervals, and which are real.",
    ),
    "size": (
        "asyncli.cli.size",
        "Size a fleet by a run: memory, hosts and first known limits for so many connections.",
    ),
    "storm": (
        "asyncli.cli.storm",
        "Predict by a run when clients that were all dropped at once are back.",
    ),
    "runs": ("asyncli.cli.runs", "List the run files of a folder."),
    "explain": ("asyncli.cli.explain", "Explain a term of the report, or a finding by its code."),
    "capacity": (
        "asyncli.cli.capacity",
        "Find how many connections a server holds, and its bottleneck.",
    ),
    "agent": (
        "asyncli.cli.agent",
        "Sample a server on its own host, for remote soaks and for Prometheus.",
    ),
    "bench": (
        "asyncli.cli.bench",
        "Measure requests per second, latency and CPU: closed loop, or a fixed rate.",
    ),
    "experiment": (
        "asyncli.cli.experiment",
        "Run a classic comparison on real servers, beside its source's figures.",
    ),
    "demo": ("asyncli.cli.demo", "Hold 100,000 connections on a private nginx on this machine."),
    "lab": ("asyncli.cli.lab", "Start a local server to test against, until Ctrl-C."),
    "completion": (
        "asyncli.cli.completion",
        "Print the TAB completion script for bash, zsh or fish.",
    ),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        lacks = missing(needed_by(cmd_name))
        if lacks:
            raise HostError(
                f"{cmd_name}: {', '.join(lacks)} not installed; {how_to_install(lacks)}"
            )
        try:
            command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("asyncli."):
                raise
            # asyncli-light beside the packages that it does without.
            raise HostError(f"{cmd_name}: not in this installation; {how_to_install()}") from None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=LISTED,
)
@click.version_option(__version__, "-V", "--version", message="asyncli %(version)s")
def cli() -> None:
    """Hold long-lived connections (HTTP, WebSocket, event streams, MQTT, raw TCP) on a server, and
    measure what one more costs: in the server, in the kernel and in total, with an error bar.

    \b
    asyncli [-c N] [-k SECONDS] URL    ramp up, then hold until Ctrl-C
    asyncli soak --plan smoke URL      a plan from a file; see configs/
    asyncli demo                       100,000 connections on a private nginx
    """


def _is_original_usage(arguments: Sequence[str]) -> bool:
    """Whether it is ``asyncli [-c N] [-k SECONDS] URL``: the first word is no command, --help or
    --version.
    """
    return bool(arguments) and arguments[0] not in {*COMMANDS, "-h", "--help", "-V", "--version"}


def _soak_forever(words: list[str]) -> list[str]:
    """The original usage as arguments of ``soak``."""
    first = words[0]
    if "/" not in first and not first.startswith("-"):
        import difflib

        near = difflib.get_close_matches(first, COMMANDS, n=1)
        if near:
            raise click.UsageError(f"no command {first!r}; did you mean {near[0]!r}?")
    if any(word == "--resume" or word.startswith("--resume=") for word in words):
        # The plan of a resumed run has its hold.
        return ["soak", *words]
    if os.environ.get("ASYNCLI_SOAK_HOLD"):
        return ["soak", *words]
    return ["soak", "--hold", "forever", *words]


def _invoke(words: list[str]) -> int:
    # Not main(): it exits with status 1 on a broken pipe.
    with cli.make_context("asyncli", words) as context:
        result: Any = cli.invoke(context)
    if sys.stdout is not None and outlet_of(sys.stdout) is None:
        sys.stdout.flush()
    return result if isinstance(result, int) else 0


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit status. Each error is one line on standard error."""
    words = list(arguments)
    try:
        if _is_original_usage(words):
            words = _soak_forever(words)
        return _invoke(words)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        print(help_wanted.format_message(), file=sys.stderr)
        return REFUSED
    except click.ClickException as error:
        command = "asyncli"
        if words and words[0] in COMMANDS:
            command = f"asyncli {words[0]}"
        message = error.format_message().replace(". (Did", " (Did").rstrip(".")
        return _complain(without_queries(f"{message}; see '{command} --help'", words), REFUSED)
    except AsyncliError as error:
        return _complain(_line_of(error, words), error.exit_status)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except MemoryError:
        return _complain(
            "there is no more memory for this process; raise its limit (ulimit -v), or end others",
            REFUSED,
        )
    except (OSError, SystemExit) as error:
        status = _status_without_output(error)
        if status is None:
            raise
        return status


def _line_of(error: AsyncliError, words: list[str]) -> str:
    """The line of an error: without the queries of the command line, where it quotes that."""
    if isinstance(error, (PlanError, StoreError)):
        return without_queries(str(error), words)
    return str(error)


def _status_without_output(error: OSError | SystemExit) -> int | None:
    """The exit status where the output cannot be written: a broken pipe (`| head`), or a full disk.
    None: the error is another one.
    """
    is_stuck = discard_broken_output()
    if is_broken_pipe(error):
        return 0
    if isinstance(error, SystemExit):
        return None
    if is_stuck or isinstance(error, UnwrittenError):
        return _complain(unprinted("the output", error), REFUSED)
    return None


def _complain(text: str, status: int) -> int:
    try:
        for line in text.splitlines():
            print(f"asyncli: {printable(line)}", file=sys.stderr)
    except OSError:  # the exit status still reports the error
        discard_broken_output()
    return status


def main() -> NoReturn:
    """The entry point of ``asyncli`` and ``python -m asyncli``."""
    if "_ASYNCLI_COMPLETE" in os.environ:
        from asyncli.cli.completion import offers

        print(*offers(cli, sys.argv[1:]), sep="\n")
        sys.exit()
    Signals.until_exit = True
    keep_secrets()
    use_one_thread()
    with outlets() as made:
        status = _flush(made, run(sys.argv[1:]))
    sys.exit(status)


def agent() -> NoReturn:
    """The entry point of ``asyncli-agent``, a script of the distribution of that name."""
    if not {"-V", "--version"} & {*sys.argv[1:2]}:
        sys.argv.insert(1, "agent")
    main()


def _flush(made: list[Outlet], status: int) -> int:
    """The exit status, after the output is read or cannot be."""
    # The message about one stream may fail on the other stream.
    for _ in range(3):
        try:
            return await_readers(made, status, INTERRUPTED)
        except UnwrittenError as error:
            if not is_broken_pipe(error):
                status = _complain(unprinted(error.filename or "the output", error), REFUSED)
    return status
