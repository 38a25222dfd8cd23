"""``asyncli mark RUN.db TEXT``: note something in a running soak."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from asyncli.cli.command import Command
from asyncli.model.errors import PlanError
from asyncli.model.text import oneline
from asyncli.model.units import format_clock

# Longer than a deploy's name and its reason. It stands in one line of logs and reports.
_MOST_CHARACTERS = 200


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
    text = _note(words)

    from asyncli.app.mark import mark_run
    from asyncli.cli.outputs import printing

    event = mark_run(Path(run), text, now_s)
    with printing():
        print(f"marked at {format_clock(event.at_s)}: {event.text}")
    return 0


def _note(words: Sequence[str]) -> str:
    lines = " ".join(words).strip().splitlines()
    if len(lines) > 1:
        raise PlanError(f"TEXT: has {len(lines):,} lines, and a mark one; write one line")
    text = oneline(" ".join(lines))
    if not text:
        raise PlanError("TEXT: is empty; write what happened, such as 'deployed 1.4.2'")
    if len(text) > _MOST_CHARACTERS:
        raise PlanError(
            f"TEXT: has {len(text):,} characters, and a mark at most {_MOST_CHARACTERS}; write less"
        )
    return text
