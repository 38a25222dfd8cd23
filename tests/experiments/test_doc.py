"""docs/experiments.md equals what bench/experiments_doc.py makes from docs/records."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


def test_the_page_is_of_the_records_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root / "bench"))
    doc = importlib.import_module("experiments_doc")
    assert {one.name for one in (root / "docs" / "records").iterdir()} == {f"{name}.json.xz" for name in doc.SHOWN}
    # Renew it: python bench/experiments_doc.py
    assert doc.page(root / "docs" / "records").encode() == (root / "docs" / "experiments.md").read_bytes()
