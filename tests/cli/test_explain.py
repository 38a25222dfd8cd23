"""asyncli explain: a paragraph of docs/method.md for each term, the catalogue's words for each finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import here


def test_without_a_term_it_lists_them(tmp_path: Path) -> None:
    done = here(tmp_path, "explain")
    terms, codes = done.out.splitlines()
    assert terms.startswith("Terms: cost, ")
    assert " worker_lost," in codes
    assert "{probe}_lost" in codes


@pytest.mark.parametrize("term", ["cost", "reconciliation", "two_levels", "tls", "handshake_rate", "nofile"])
def test_a_term_is_explained_by_its_paragraph(tmp_path: Path, term: str) -> None:
    done = here(tmp_path, "explain", term)
    assert done.status == 0
    assert done.out.strip() in Path("docs/method.md").read_text(encoding="utf-8").replace("\r", "")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("worker_lost", "worker_lost (error): "), ("status_lost", "status_lost (warning): "), ("agent_memory_slowed", "agent_memory_slowed (info): "),
        ("closed_idle", "closed_idle (a cause): connections were closed "), ("refused", "refused (a cause): connects were refused"),
    ],
)
def test_a_finding_is_explained_by_its_code(tmp_path: Path, code: str, said: str) -> None:
    assert here(tmp_path, "explain", code).out.startswith(said)
