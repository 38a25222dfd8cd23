"""asyncli explain: a section of docs/reference/terms.md for each term, the catalogue's text for each finding."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import here

from asyncli import findings
from asyncli.analysis.bottleneck import _READ_LIMITS, _SHORTAGES, LATE
from asyncli.cli.explain import _columns, _of_code, codes
from asyncli.findings.losses import CONNECT_WORDS, LOSS_WORDS
from asyncli.model.exit_status import LISTED


@pytest.mark.parametrize(("width", "rows"), [(0, 5), (11, 3), (19, 2), (30, 1)])
def test_names_stand_in_as_many_columns_as_fit(width: int, rows: int) -> None:
    names = ["aaaa", "b", "ccc", "dd", "eeeee"]
    columns = _columns(names, width)
    assert [name for column in columns for name in column] == names
    assert len(columns[0]) == rows


def test_without_a_term_lists_them(tmp_path: Path) -> None:
    done = here(tmp_path, "explain")
    # The width of the programs of these tests.
    assert max(map(len, done.out.splitlines())) <= 100
    terms, codes, forms, causes = done.out.strip().split("\n\n")
    assert "capacity search" in terms
    assert "worker_lost" in codes.split()
    assert {"goodbye", "lifetime", "handshake_refused"} <= set(causes.split())
    # No placeholder: each form says what its word may be.
    assert "{" not in done.out
    assert {"lost_CAUSE:", *LOSS_WORDS} <= set(forms.replace(",", "").split())
    for entry in findings.CATALOGUE:
        assert ("{" in entry.code) == bool(entry.values), entry.code


@pytest.mark.parametrize("term", ["cost", "reconciliation", "two_levels", "tls", "handshake_rate", "nofile", "unix", "RST_STREAM", "mqtt", "drain", "left over", "Hidden", "PASSED", "growth", "settling", "leaks", "stall", "unanswered", "silent", "storm", "churn", "generator", "wide", "worse", "baseline run", "baseline-run", "weighted mean", "live", "at_goal"])
def test_term_is_explained_by_its_section(tmp_path: Path, term: str) -> None:
    done = here(tmp_path, "explain", term)
    assert done.status == 0
    page = re.sub(r"`|\*\*", "", Path("docs/reference/terms.md").read_text(encoding="utf-8"))
    assert [one for one in done.out.strip().split("\n\n") if one not in page] == []


def test_left_over_is_the_residual_alone(tmp_path: Path) -> None:
    assert here(tmp_path, "explain", "left over").out == here(tmp_path, "explain", "residual").out


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


@pytest.mark.parametrize("term", ["exit", "exit status"])
def test_exit_statuses_are_those_of_the_code(tmp_path: Path, term: str) -> None:
    assert here(tmp_path, "explain", term).out.strip() == LISTED


def test_number_of_a_run_is_explained_by_its_full_key_and_its_term(tmp_path: Path) -> None:
    of_residue = here(tmp_path, "explain", "residue.live").out
    assert of_residue.startswith("residue.live: ")
    assert {"leak,", "cache", "--residue"} <= set(of_residue.replace("(", " ").split())
    said, term = (here(tmp_path, "explain", one).out for one in ("drift.server_user", "drift"))
    assert said.startswith("drift.server_user: drift.server_user.bytes_per_hour ")
    assert said.endswith(term)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("in_vain", "Connects that got no answer in the whole time limit were in vain"),
        ("events.1.in_vain.received", "Connects that got no answer in the whole time limit were in vain"),
        ("failed_at", "counts the connects that failed or got no answer at each"),
        ("not_back_at", "the clients that were not back"),
        ("at_least", "they are at least those until the hold's end"),
        ("events.1.away.at_least", "A client is away from the instant"),
        ("no_answers_s", "without answers if none had an answer"),
        ("events.2.stood_still_s", "The server stood still while a signal"),
        ("ended_repeatedly", "ended more than once"),
        ("least_held", "least_held: events.1.least_held of a run's JSON: the fewest"),
    ],
)
def test_words_of_an_event_s_keys_are_explained_by_their_paragraph(tmp_path: Path, key: str, said: str) -> None:
    first, *others = here(tmp_path, "explain", key).out.strip().split("\n\n")
    if first.startswith(f"{key}: ") and others:
        first = others[0]
    assert said in " ".join(first.split())


def test_a_last_word_of_several_numbers_is_no_term(tmp_path: Path) -> None:
    assert here(tmp_path, "explain", "p99_s").status == 2
    assert here(tmp_path, "explain", "events.1.xyzzy").status == 2


def test_a_code_of_two_forms_is_that_whose_values_name_its_word(tmp_path: Path) -> None:
    meanings = {entry.code: entry.meaning for entry in findings.CATALOGUE if entry.code.startswith("listen_{")}
    for word in ("accepted", "waiting"):
        assert here(tmp_path, "explain", f"listen_{word}").out == f"listen_{word} (warning): {meanings['listen_{where}']}\n"
    for word in ("full", "overflows", "drops"):
        assert here(tmp_path, "explain", f"listen_{word}").out == f"listen_{word} (warning): {meanings['listen_{what}']}\n"


def test_every_code_of_a_report_is_explained(tmp_path: Path) -> None:
    """The codes are read from the source of the mechanisms."""
    tree = [ast.parse(path.read_text()) for path in (*Path("asyncli/analysis/losses").glob("*.py"), Path("asyncli/analysis/bottleneck.py"))]
    calls = [node for one in tree for node in ast.walk(one) if isinstance(node, ast.Call)]
    firsts = [one.args[{"reason": 0, "_bottleneck": 1}[getattr(one.func, "id", "")]] for one in calls if getattr(one.func, "id", "") in ("reason", "_bottleneck")]
    codes = {one.value for one in firsts if isinstance(one, ast.Constant)} | {*LOSS_WORDS, *CONNECT_WORDS, *_SHORTAGES.values(), *LATE, "preflight"}
    codes |= {code for code, *_ in _READ_LIMITS} | {one.code for one in findings.CATALOGUE if "{" not in one.code}
    said = {code: here(tmp_path, "explain", code).out for code in sorted(codes)}
    assert len(codes) > 40
    assert not {code for code, lines in said.items() if f"{code} (" not in lines}
    assert len(set(said.values())) == len(said)


def _words(report: str) -> Iterator[str]:
    """Verdict, headings and row names of a report on a terminal, without the facts at its end."""
    for line in re.split(r"^(?:The plan|What differs .*|Run \w+ of|Run files)", report, flags=re.MULTILINE)[0].splitlines():
        if verdict := re.match(r"[A-Z]{3,}(?=  | with \d)", line):
            yield verdict[0]
        elif re.match(r" {0,2}\S.*?  +\S", line):
            cells = re.split(r"  +", line.strip())
            yield from cells if re.match("[A-Z]..", line) and cells[0] != "Bottleneck" else cells[:1]
        elif (heading := re.match(r" ?([A-Z][^.:,;()]*)(?:$|:| \()", line)) and len(heading[1].split()) < 6:
            yield heading[1]


def test_every_heading_row_and_verdict_of_a_report_is_explained(tmp_path: Path) -> None:
    reports = [path.read_text(encoding="utf-8") for path in Path("tests/golden").glob("*.txt") if not re.search("answers|differences|page", path.name)]
    # Neither a server's name, an address, the name of a run file, nor a number of connections is a term.
    words = {one for report in reports for one in _words(report) if not re.fullmatch(r"nginx|.*[:/].*|[\d,]+", one)}
    words |= {"R²", "R2", "first use", "inodes", "excluded", "with the clients elsewhere", "beats/s", "status", "undecided"}
    words |= {"first use included", "hidden", "wide", "cannot be told", "first limit", "no growth", "STOPPED", "HELD", "steal", "RSS", "slope"}
    assert (len(words) > 120, {one for one in words if here(tmp_path, "explain", one).status}) == (True, set())


def test_a_term_of_the_report_comes_first(tmp_path: Path) -> None:
    """Also if a code or a key of the plan is called so."""
    said = [here(tmp_path, "explain", one).out for one in ("UNTESTED", "Counts", "the ramps", "at 2,000", "keepalive", "nofle")]
    assert [re.split(r"[ :]", one)[0] for one in said] == ["Passed", "Counts", "Baseline", "The", "--keepalive", ""]


@pytest.mark.parametrize(("term", "near"), [("nofle", "nofile"), ("latancy", "latency"), ("worker lots", "worker_lost"), ("plateus", "plateaus"), ("xyzzy", None)])
def test_a_misspelt_term_has_a_suggestion(tmp_path: Path, term: str, near: str | None) -> None:
    done = here(tmp_path, "explain", term)
    assert (done.status, re.findall(r"'([^']+)'\?", done.err)) == (2, [near] if near else [])


def test_every_explanation_reads_as_whole_sentences_without_fields() -> None:
    """What a finding's fields are stands in clauses of their own, and a mechanism's fields have general words."""
    every, diagnoses = codes()
    left_out = re.compile(r"\.\.\.(?! exited)|\(\)|  | [,:;]|:$", re.MULTILINE)
    for entry in findings.CATALOGUE:
        assert entry.meaning.endswith((".", ")")), entry.code
        assert "``" not in entry.meaning, entry.code
        # A clause may not be left over where one on a field was taken out.
        assert not re.search(r"[;:,]$", entry.meaning), (entry.code, entry.meaning)
    for code in diagnoses:
        said = "\n".join(_of_code(code, exact=False))
        assert said, code
        assert "{" not in said, code
        assert not left_out.search(said.replace("asyncli ...", "asyncli")), (code, said)
    assert set(every) == {entry.code for entry in findings.CATALOGUE}


@pytest.mark.parametrize(("term", "says"), [("worst", "first warning"), ("slim", "maxconn"), ("late p99", "last second"), ("due", "first heartbeat"), ("size", "--memory"), ("not back", "turn"), ("churn", "--churn"), ("vanish", "phones")])
def test_words_of_a_live_line_and_of_a_page_are_terms(tmp_path: Path, term: str, says: str) -> None:
    assert says in here(tmp_path, "explain", term).out
