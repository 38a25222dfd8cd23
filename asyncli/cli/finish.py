"""``--on-finish CMD``: a command of the user's that hears how a run ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from asyncli.report.answer import one_line
from asyncli.report.jsonout import to_json
from asyncli.report.summary import Summary

# Whoever sends a mail or calls a webhook needs seconds; the exit status must not wait for what hangs.
PATIENCE_S = 60.0


def run_command(command: str, summary: Summary, path: Path, status: int) -> None:
    """Run ``command`` by the shell, the summary's JSON on its standard input and the verdict in its environment.

    What goes wrong with it is said in a line, and changes nothing of the run's own exit status.
    """
    told = {
        "ASYNCLI_VERDICT": summary.verdict, "ASYNCLI_STATUS": str(status), "ASYNCLI_LINE": one_line(summary),
        "ASYNCLI_RUN": str(path.absolute()),
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], input=to_json(summary), text=True, env=os.environ | told, timeout=PATIENCE_S, check=False,
            stdout=sys.stderr,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"has not ended within {PATIENCE_S:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        print(f"asyncli: --on-finish: {command!r} {why}", file=sys.stderr)
        return
    if done.returncode:
        print(f"asyncli: --on-finish: {command!r} ended with status {done.returncode}", file=sys.stderr)
