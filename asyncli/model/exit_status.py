"""The exit statuses, which other tools rely on."""

from __future__ import annotations

#: REFUSED: wrong usage or plan, refused by the preflight, or a result that could not be written.
#: INTERRUPTED: twice. NOT_GOING_ON: of ``watch --once``, for a run that was killed, hangs or was
#: moved.
PASSED, NOT_GOING_ON, REFUSED, UNTESTED, INVALID, FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 99, 130
#: For ``--help``.
LISTED = (
    "Exit status: 0 passed, 2 usage or refused by the preflight, 3 untested (nothing listens, "
    "connects or answers), 4 invalid, 99 failed, 130 a second Ctrl-C."
)
_OF_VERDICT = {
    "passed": PASSED,
    "found": PASSED,
    "held": PASSED,
    "untested": UNTESTED,
    "invalid": INVALID,
    "unjudged": INVALID,
    "failed": FAILED,
    "stopped": FAILED,
}


def exit_status(verdict: str) -> int:
    """The exit status for the verdict of a soak, a bench or a capacity search."""
    return _OF_VERDICT[verdict]
