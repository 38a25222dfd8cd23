"""Files that say what was said before: compared with, or written again with --refresh."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHOWN = 24
_refreshed = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh", action="store_true", help="Write the golden files again, and list those that changed.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (changed := config.stash.get(_refreshed, None)) is not None:
        terminalreporter.section(f"{len(changed)} golden files changed")
        for name in changed:
            terminalreporter.write_line(name)


@pytest.fixture(autouse=True)
def without_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable COLUMNS, which some terminals set, says how wide tables are."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[dict[str, str]], None]:
    """``golden({name: text})``: each text is that of the file of this name, or fails with the first lines that differ."""

    def compare(texts: dict[str, str]) -> None:
        differs = {name: text for name, text in texts.items() if _known(name) != text}
        if request.config.getoption("--refresh", default=False):
            request.config.stash.setdefault(_refreshed, []).extend(differs)
            for name, text in differs.items():
                (HERE / name).write_text(text, encoding="utf-8")
        elif differs:
            said = [line for name, text in differs.items() for line in _difference(name, text)]
            pytest.fail("\n".join([*said, "If all of this is meant: pytest tests/golden --refresh, and read git diff"]), pytrace=False)

    return compare


def _known(name: str) -> str:
    path = HERE / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _difference(name: str, text: str) -> list[str]:
    lines = list(difflib.unified_diff(_known(name).splitlines(), text.splitlines(), f"tests/golden/{name}", "as it is now", "", "", 0, ""))
    more = [f"... and {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]
