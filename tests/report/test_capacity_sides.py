"""The side of a bottleneck in the report of a search."""

from __future__ import annotations

from typing import Any

import pytest

from asyncli.analysis.bottleneck import Bottleneck
from asyncli.analysis.capacity import Bracket, Search
from asyncli.report.capacity_report import Capacity, capacity_document
from asyncli.report.document import Paragraph


@pytest.mark.parametrize(
    ("side", "code", "begins"),
    [
        ("server", "slots", "the server: slots"),
        ("unknown", "connect_rate", "the server or the network: connect rate"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_a_known_bottleneck_of_an_unknown_side_is_not_this_hosts(side: Any, code: str, begins: str) -> None:
    made: dict[str, Any] = dict.fromkeys(Capacity.__struct_fields__, "") | {"steps": [], "findings": [], "limits": [], "urls": ("http://127.0.0.1:1/",)}
    made |= {"verdict": "stopped", "bracket": Bracket(1, None), "search": Search(1, 2, 0.05), "duration_s": 1.0, "environment": {}, "forecast": None}
    found = Capacity(**{**made, "pace": None, "gave_way": [Bottleneck(side, code, "evidence", "")]})
    section = next(section for section in capacity_document(found).sections if section.id == "gave-way")
    words = [str(block.words) for block in section.blocks if isinstance(block, Paragraph)]
    assert words[0] == f"Bottleneck  {begins}"
