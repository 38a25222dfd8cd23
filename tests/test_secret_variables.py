"""The environment of the programs that asyncli starts."""

from __future__ import annotations

import os

import pytest

from asyncli.model.secret_variables import for_child


class Changing(dict[str, str]):
    """Another thread removes a variable after its name was listed."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter([*super().__iter__(), "REMOVED_MEANWHILE"])

    def items(self):  # type: ignore[no-untyped-def]
        return [(name, self[name]) for name in self]


def test_a_variable_that_another_thread_removes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", Changing(PATH="/bin", ASYNCLI_AGENT_TOKEN="secret"))
    assert for_child() == {"PATH": "/bin"}
