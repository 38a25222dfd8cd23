"""``asyncli size``: what it prints of a stored run, and wrong input."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from programs import complaint, here

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.db").write_bytes(lzma.decompress((GOLDEN / "clean.db.xz").read_bytes()))
    return tmp_path


def test_terminal_page_and_json_have_the_same_answer(folder: Path) -> None:
    asked = ["size", "run.db", "-c", "1M", "--memory", "64G"]
    printed, page = here(folder, *asked), here(folder, *asked, "--html", "size.html")
    assert (printed.status, page.status, page.out) == (0, 0, "size.html\n")
    document = json.loads(here(folder, *asked, "--json").out)
    found = document["size"]
    assert (found["connections"], found["host_bytes"]) == (1_000_000, 64e9)
    # The residual of this run may be more than all parts together: its parts are the least.
    total = f"{found['at_least_bytes'] / 1e9:.1f} GB"
    assert total in printed.out
    assert total in (folder / "size.html").read_text(encoding="utf-8")
    assert found["at_least_bytes"] == pytest.approx(sum(part["ci95"][0] for part in found["parts"]))
    assert found["rest_at_most_bytes"] > sum(part["ci95"][1] for part in found["parts"])
    assert found["total_bytes"] is None
    assert found["hosts"] >= 1
    assert document["doubts"]


@pytest.mark.parametrize(
    "wrong", [("-c", "none"), ("-c", "0"), ("-c", "1M", "--memory", "64"), ("-c", "1M", "--memory", "-1G"), ("-c", "1M", "--html", "run.db"), ()]
)
def test_wrong_input_is_one_line(folder: Path, wrong: tuple[str, ...]) -> None:
    complaint(here(folder, "size", "run.db", *wrong))


def test_a_file_that_is_no_run(folder: Path) -> None:
    (folder / "text.db").write_text("no run")
    complaint(here(folder, "size", "text.db", "-c", "1M"))
