"""asyncli explain: a section of docs/method.md for each term, the catalogue's text for each finding."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from programs import here

from asyncli import findings
from asyncli.analysis.bottleneck import _READ_LIMITS, _SHORTAGES, LATE
from asyncli.findings.losses import CONNECT_WORDS, LOSS_WORDS


def test_without_a_term_lists_them(tmp_path: Path) -> None:
    done = here(tmp_path, "explain")
    terms, codes, causes = (" ".join(text.split()) for text in re.split(r"\n(?=\w)", done.out))
    assert terms.startswith("Terms: cost, ")
    assert " worker_lost," in codes
    assert "{probe}_lost" in codes
    assert {"goodbye", "lifetime", "handshake_refused"} <= set(causes.rstrip(".").split(": ")[1].split(", "))


@pytest.mark.parametrize("term", ["cost", "reconciliation", "two_levels", "tls", "handshake_rate", "nofile", "unix", "RST_STREAM", "mqtt", "drain", "left over", "Hidden"])
def test_term_is_explained_by_its_section(tmp_path: Path, term: str) -> None:
    done = here(tmp_path, "explain", term)
    assert done.status == 0
    assert done.out.strip() in Path("docs/method.md").read_text(encoding="utf-8").replace("`", "").replace("**", "")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("worker_lost", "worker_lost (error): "), ("status_lost", "status_lost (warning): "), ("agent_memory_slowed", "agent_memory_slowed (info): "),
        ("closed_idle", "closed_idle (a cause): connections were closed "), ("refused", "refused (a cause): connects were refused"),
        ("generator_lost", "generator_lost (a cause): "), ("verdict_passed", "verdict_passed (info): "), ("verdict_failed", "verdict_failed (error): "),
    ],
)
def test_finding_is_explained_by_its_code(tmp_path: Path, code: str, said: str) -> None:
    assert here(tmp_path, "explain", code).out.startswith(said)


def test_every_code_of_a_report_is_explained(tmp_path: Path) -> None:
    """The codes are read from the source of the mechanisms."""
    tree = [ast.parse(path.read_text()) for path in (*Path("asyncli/analysis/losses").glob("*.py"), Path("asyncli/analysis/bottleneck.py"))]
    calls = [node for one in tree for node in ast.walk(one) if isinstance(node, ast.Call)]
    firsts = [one.args[{"reason": 0, "_bottleneck": 1}[getattr(one.func, "id", "")]] for one in calls if getattr(one.func, "id", "") in ("reason", "_bottleneck")]
    codes = {one.value for one in firsts if isinstance(one, ast.Constant)} | {*LOSS_WORDS, *CONNECT_WORDS, *_SHORTAGES.values(), *LATE, "preflight"}
    codes |= {code for code, *_ in _READ_LIMITS} | {one.code for one in findings.CATALOGUE if "{" not in one.code}
    said = {code: here(tmp_path, "explain", code).out for code in sorted(codes)}
    assert len(codes) > 40
    # These two are terms as well.
    assert {code for code, lines in said.items() if not lines.startswith(code)} == {"agent", "preflight"}
    assert len(set(said.values())) == len(said)
