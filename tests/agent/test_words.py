"""What an agent says, as it is taken in: words of another host, and instants by its clock."""

from __future__ import annotations

import pytest

from asyncli.agent.collector import _INSTANT


@pytest.mark.parametrize(
    ("words", "instants"),
    [
        ("the server ended at 300:01:05: what was lost is due to that", ["300:01:05"]),
        ("from 0:00:07 to 0:00:09.", ["0:00:07", "0:00:09"]),
        ("status page http://[fd00::10:20:30]:8081/: no answer", []),
        ("http://[2001:12:34::1]/ and 2001:10:20:30::8", []),
    ],
)
def test_instants_are_told_from_addresses(words: str, instants: list[str]) -> None:
    assert [match[0] for match in _INSTANT.finditer(words)] == instants
