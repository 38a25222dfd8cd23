"""Whether a server still has processes from before a command of the plan."""

from __future__ import annotations

import pytest

from asyncli.app.earlier_processes import EarlierProcesses
from asyncli.model.metrics import SERVER_ENDED, SERVER_JOINED, SERVER_PROCESSES


def after_command(joined: float, ended: float, processes: float = 3.0) -> int | None:
    """By the readings after a command: so many processes joined those of before, and so many ended since."""
    seen = EarlierProcesses()
    seen.read({SERVER_PROCESSES: processes, SERVER_JOINED: 4.0, SERVER_ENDED: 5.0})
    seen.command_begins(7)
    assert seen.left_by is None
    # Not each reading has all of them.
    seen.read({SERVER_PROCESSES: processes + joined - ended, SERVER_JOINED: 4.0 + joined})
    seen.read({SERVER_ENDED: 5.0 + ended})
    return seen.left_by


@pytest.mark.parametrize(
    ("joined", "ended", "left_by"),
    [
        (2.0, 0.0, 7),
        (2.0, 1.0, 7),
        (2.0, 2.0, None),
        # A helper, or a command that has nothing to do with the server.
        (1.0, 0.0, None),
        (0.0, 0.0, None),
        (0.0, 1.0, None),
    ],
)
def test_workers_of_before_are_left_until_as_many_have_ended(joined: float, ended: float, left_by: int | None) -> None:
    assert after_command(joined, ended) == left_by


def test_a_server_of_one_process_is_its_own_worker() -> None:
    assert (after_command(1.0, 0.0, processes=1.0), after_command(1.0, 1.0, processes=1.0)) == (7, None)


def test_where_nothing_was_read_before_the_command_it_is_not_known() -> None:
    seen = EarlierProcesses()
    seen.command_begins(1)
    seen.read({SERVER_PROCESSES: 5.0, SERVER_JOINED: 2.0, SERVER_ENDED: 0.0})
    assert seen.left_by is None


def test_without_a_command_nothing_is_left() -> None:
    seen = EarlierProcesses()
    seen.read({SERVER_PROCESSES: 3.0, SERVER_JOINED: 0.0, SERVER_ENDED: 0.0})
    seen.read({SERVER_PROCESSES: 5.0, SERVER_JOINED: 2.0})
    assert seen.left_by is None
