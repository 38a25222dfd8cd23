"""``asyncli mark RUN.db TEXT``: note something in a running soak."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from asyncli.cli.command import Command
from asyncli.model.errors import PlanError
from asyncli.model.units import format_clock


@click.command(name="mark", cls=Command)
@click.argument("run", metavar="RUN.db")
@click.argument("words", nargs=-1, required=True, metavar="TEXT")
def command(run: str, words: Sequence[str]) -> int:
    """Note in a running soak what happens now, such as 'deployed 1.4.2'. The log, the screen, the
    report and its timeline show it.

    TEXT is one line of at most 200 characters. Its instant is that at which this command begins,
    on the monotonic clock of this host, which the soak counts by: a step of the wall clock does not
    move it. A run that is over, or on another host, is refused.
    """
    now_s = time.monotonic()

    from asyncli.app.mark import mark_run, text_of_mark
    from asyncli.cli.outputs import printing

    try:
        text = text_of_mark(" ".join(words))
    except PlanError as error:
        raise PlanError(f"TEXT: {error}") from None
    event = mark_run(Path(run), text, now_s)
    with printing():
        print(f"marked at {format_clock(event.at_s)}: {event.text}")
    return 0
