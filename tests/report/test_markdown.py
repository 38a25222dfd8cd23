"""The summary for a pull request: its tables, and texts of strangers in it, which stay texts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from synthetic_run import a_run

from asyncli.analysis.cost import known_costs
from asyncli.analysis.drift import drifts
from asyncli.analysis.totals import fold
from asyncli.report import document as doc
from asyncli.report.markdown import escaped, markdown
from asyncli.report.run_report import report_markdown
from asyncli.report.summary import summarise

# A string of what a stranger may write: markup of GitHub and HTML, links, mentions, lists.
HOSTILE = ["<b>", "</table>", "[a](http://x)", "**", "__", "`", "|", "@", "#1", "http://x.y", "www.x.y", "~~", "\\", "&lt;", "\n", "- ", "1. ", "x", "$a$", "![", "<!--", "-->"]
TEXTS = st.lists(st.sampled_from(HOSTILE), max_size=12).map("".join)
RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def document(text: str) -> doc.Document:
    table = doc.DataTable(text, doc.numbers(text), [doc.TableRow(text, [text])])
    blocks: list[doc.Block] = [
        doc.VerdictLine("passed", text), doc.Paragraph(text), table, doc.ItemList([doc.ListedItem("error", "error", text, text)]), doc.Bullets([text]),
    ]  # fmt: skip
    return doc.Document("report", text, text, [], [doc.Section("a", "A", blocks)], text)


def kinds(tokens: list[Token]) -> list[str]:
    """The kinds of all tokens but texts, which a text may be split into."""
    names = []
    for token in tokens:
        if token.type == "inline":
            names += kinds(token.children or [])
        elif token.type == "html_inline":
            names.append(token.content)
        elif token.type not in ("text", "softbreak", "text_special"):
            names.append(token.type)
    return [name for name in names if name != "<!-- -->"]


@given(TEXTS)
def test_the_words_of_a_stranger_are_no_markup(text: str) -> None:
    assert kinds(RENDERER.parse(markdown(document(f"a{text}")))) == kinds(RENDERER.parse(markdown(document("a"))))


@pytest.mark.parametrize("text", ["@someone", "fixes #1", "http://x.y/", "www.x.y", "GH-12", ":tada:"])
def test_nobody_is_mentioned_and_nothing_is_linked(text: str) -> None:
    said = markdown(document(text))
    assert text not in said
    assert text in said.replace("<!-- -->", "")


def test_limits_and_costs_are_tables() -> None:
    run = a_run(2000)
    kept, crossed = "lost > 0", "cost.server_user > 1"
    run.plan = msgspec.structs.replace(run.plan, fail_if=(kept, crossed))
    tokens = RENDERER.parse(report_markdown(summarise(run), "run.db"))
    cells = [token.content.replace("\\", "") for token in tokens if token.type == "inline"]
    assert cells[cells.index(kept) + 1 : cells.index(kept) + 3] == ["kept", "0"]
    assert cells[cells.index(crossed) + 1] == "crossed"


def test_a_limit_that_is_undecided_says_why_and_what_to_do() -> None:
    run = a_run(2000, server=False)
    run.plan = msgspec.structs.replace(run.plan, fail_if=("cost.server_user > 600", "lost > 0"))
    summary = summarise(run)
    (undecided,) = [finding for finding in summary.findings if finding.code == "limit_unknown"]
    reason = known_costs(run, fold(run), drifts(run)[0]).unknown["server_user"]
    assert reason in undecided.evidence
    text = report_markdown(summary, "run.db")
    assert f"{escaped(undecided.evidence)}<br>remedy: {escaped(undecided.remedy)}" in text
    # The table has what was kept.
    assert text.count("kept") == 1
