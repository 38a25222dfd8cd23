"""The page: complete, self-contained, the answer first, the summary's numbers, and every string of a run escaped."""

from __future__ import annotations

import functools
import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser

import msgspec
import pytest
from made_runs import HOSTILE, KINDS
from matplotlib.figure import Figure
from synthetic_run import a_run

from asyncli import __version__
from asyncli.model.records import STOPPED, Finding, Phase
from asyncli.model.run import Run
from asyncli.report import document as doc
from asyncli.report.analyses import analyse
from asyncli.report.answer import doubts, headroom
from asyncli.report.cost_answer import answer
from asyncli.report.figures.drawing import NothingToDraw, Style
from asyncli.report.figures.pictures import pictures
from asyncli.report.run_report import render, run_document
from asyncli.report.summary import Summary, summarise

VOID = {"meta", "link", "br", "hr", "img", "input"}
# In SVG any element may be self-closing.
KNOWN = {
    "html", "head", "body", "meta", "link", "title", "style", "script", "header", "main", "section", "nav", "footer", "h1", "h2", "p",
    "a", "b", "i", "span", "strong", "div", "dl", "dt", "dd", "ol", "ul", "li", "figure", "figcaption", "table", "caption", "thead",
    "tbody", "tr", "th", "td", "details", "summary", "svg", "g", "path", "use", "defs", "text", "clippath", "rect", "pattern", "circle",
}  # fmt: skip


class Page(HTMLParser):
    """A parsed page: its elements, ids, references and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.figures: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._see(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._see(tag, attrs)

    def _see(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        found = {name: value or "" for name, value in attrs}
        assert len(found) == len(attrs), f"an attribute twice in <{tag}>"
        self.attributes += [(tag, name, value) for name, value in found.items()]
        if "id" in found:
            self.ids.append(found["id"])
        self.links += [one for one in found.items() if one[0] in ("href", "xlink:href", "src", "srcset", "action", "data", "poster")]
        if found.get("role") == "img":
            self.figures.append(found["aria-label"])

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another"

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "script":
            self.scripts.append(data)
        elif inside == "style":
            self.styles.append(data)
        elif data.strip():
            self.words.append(data)
            if inside in ("h1", "h2"):
                self.headings.append((inside, data))

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def undrawn(_: Style) -> Figure:
    raise NothingToDraw("It is not drawn here.")


def made(run: Run, *, drawn: bool = False) -> tuple[str, Page, Summary]:
    """The page of a run. Figures take a second or two to draw; tests/report/test_charts.py draws those of every kind."""
    analyses = analyse(run)
    summary = summarise(run, analyses)
    figures = pictures(run, summary, analyses)
    text = render(run, summary, analyses, figures if drawn else [msgspec.structs.replace(one, draw=undrawn) for one in figures])
    return text, Page(text), summary


@functools.cache
def page_of(name: str) -> tuple[str, Page, Summary]:
    return made(KINDS[name](), drawn=name == "hostile")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, str, Page, Summary]:
    return (request.param, *page_of(request.param))


def test_page_is_complete(kind: tuple[str, str, Page, Summary]) -> None:
    name, text, page, summary = kind
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert set(page.tags) <= KNOWN
    assert {page.tags[tag] for tag in ("h1", "title", "main", "nav", "script", "style")} == {1}
    assert len(page.ids) == len(set(page.ids))
    headings = [words for level, words in page.headings if level == "h2"]
    assert headings == [
        "Contents", *["Events"] * (name == "provoked"), "Cost of a connection", "Capacity", "Drift over the hold", "Timeline", "Heartbeats", "Lost connections",
        "Counts compared", "Processes", "Findings", "Plan", "Environment",
    ]  # fmt: skip
    targets = {value.removeprefix("#") for attribute, value in page.links if attribute == "href" and value.startswith("#")}
    assert targets <= set(page.ids)
    assert {"cost", "forecast", "drift", "timeline", "deaths", "counts", "findings", "plan", "environment"} <= targets
    assert all(re.fullmatch(r"[A-Z0-9].*\.", alt, re.DOTALL) for alt in page.figures)
    # Each figure is there twice, for a wide and for a narrow page.
    assert len(page.figures) == 2 * page.tags["figure"]
    if name != "hostile":
        assert not re.search(r"\bnan\b|\binf\b|\bNone\b|Undefined", page.text)
    assert summary.run.id in page.text


def test_page_is_self_contained(kind: tuple[str, str, Page, Summary]) -> None:
    name, text, page, _ = kind
    assert {value for _, value in page.links if not value.startswith("#")} == {"data:,"}
    for tag, attribute, value in page.attributes:
        # Attributes with text, which may be hostile.
        if name == "hostile" and attribute in ("aria-label", "content", "data-of"):
            continue
        assert "//" not in value, (tag, attribute, value)
        assert not attribute.startswith("on"), (tag, attribute)
    style, script = "".join(page.styles), "".join(page.scripts)
    for words in ("@import", "url(", "http", "@font-face", "expression"):
        assert words not in style
    for words in ("fetch", "XMLHttpRequest", "import", "http", "WebSocket", "eval", "innerHTML"):
        assert words not in script
    assert not re.search(r"url\((?!#)", text.replace(HOSTILE, ""))


def test_verdict_and_answer_come_first(kind: tuple[str, str, Page, Summary]) -> None:
    _, _, page, summary = kind
    text = page.text
    word = summary.verdict if summary.run.complete else "incomplete"
    top = text.index(" Contents ")
    assert text.index(f" {word} ") < top
    for said in (answer(summary), headroom(summary), *doubts(summary)):
        assert re.sub(r"\s", "", said) in re.sub(r"\s", "", text[:top]), "flags are set apart, but the words are the answer's"
    assert " ".join(summary.why.split()) in text[:top]


def test_strings_of_a_run_are_escaped() -> None:
    text, page, _ = page_of("hostile")
    assert page.tags["script"] == 1
    assert "alert" not in "".join(page.scripts)
    assert "<script>alert" not in text
    assert page.text.count(HOSTILE) > 10
    drawn = " ".join(re.findall(r"<text .*?</text>", text, re.DOTALL))
    assert HOSTILE[:29] in unescape(re.sub("<[^>]*>", "", drawn)), "a figure's words are not made into anything else"
    assert not any("alert" in value for _, name, value in page.attributes if name not in ("aria-label", "content", "data-of"))


def test_page_is_deterministic_and_folds_the_methods() -> None:
    text, _, _ = page_of("good")
    assert made(KINDS["good"]())[0] == text
    seen = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert "linear regression" in text
    assert "linear regression" not in seen


def test_verdict_and_severity_are_shown_by_word_and_shape() -> None:
    for name, word in (("good", "passed"), ("deaths", "failed"), ("invalid", "invalid"), ("untested", "untested"), ("interrupted in the ramp", "incomplete")):
        badge = re.search(r'<p class="verdict (\w+)"><svg[^>]*>(.*?)</svg><strong>(\w+)</strong>', page_of(name)[0])
        assert (badge[1], badge[3]) == (word, word)
        assert badge[2].count("<path") >= 1
    run = a_run(1000)
    run.findings = [Finding("a", "error", "first"), Finding("b", "warning", "second"), Finding("c", "info", "third")]
    items = re.findall(r'<li class="(\w+)">\s*<svg[^>]*>([^§]*?)</svg>\s*<div>\s*<p><b>(\w+)</b>', made(run)[0])
    assert {(severity, word) for severity, _, word in items} == {("error", "error"), ("warning", "warning"), ("info", "note")}
    assert len({shape for _, shape, _ in items}) == 3


def test_setup_shows_no_secret_and_copyable_numbers_have_no_commas() -> None:
    run = a_run(1000, headers=("Authorization: Bearer abc123",), server_pid=1_234_567)
    run.plan = msgspec.structs.replace(run.plan, seed=123_456_789_012)
    run.environment["asyncli"] = "0.0.9"
    text, page, _ = made(run)
    assert "abc123" not in text
    for words in ("Authorization: ***", "123456789012", "1234567"):
        assert words in page.words, words
    assert f"measured by asyncli 0.0.9, reported by asyncli {__version__}" in page.text


def test_title_of_a_run_stopped_in_its_ramp_has_no_hold() -> None:
    run = a_run(20_000)
    begin = run.phases[1].start_s + 5.0
    run.phases = [run.phases[0], Phase("ramp", run.phases[1].start_s, begin), Phase("hold", begin, begin + 0.0076)]
    run.ticks = [(t_s, tick) for t_s, tick in run.ticks if t_s <= begin]
    run.findings = [Finding(STOPPED, "warning", "stopped by the user (Ctrl-C or a signal) 5 s into the ramp of 20 s")]
    title = re.search("<title>(.*)</title>", made(run)[0])
    assert re.fullmatch(r"[\d,]+ connections on \S+, stopped by the user: failed", title[1])


def test_counts_that_are_unknown_have_their_reason_in_their_section() -> None:
    run = a_run(2000, status=False)
    sections = {one.id: one for one in run_document(summarise(run), "").sections}
    (reason,) = [block for block in sections["counts"].blocks if isinstance(block, doc.Paragraph)]
    assert "--status-url" in str(reason)
