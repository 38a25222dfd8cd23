"""The manual pages that the wheel's build makes from the commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from asyncli.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, ROOT / "scripts/man", folder, "1.2.3"], check=True)
    return {page.stem: page for page in folder.glob("*.1")}


def test_each_command_has_a_page_with_each_of_its_flags(pages: dict[str, Path]) -> None:
    assert set(pages) == {"asyncli", *(f"asyncli-{name}" for name in COMMANDS)}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        text = pages[f"asyncli-{name}"].read_text(encoding="utf-8").replace("\\-", "-")
        assert [one for param in command.params if isinstance(param, click.Option) for one in param.opts if one not in text] == []
        assert f"asyncli-{name}(1)" in pages["asyncli"].read_text(encoding="utf-8").replace("\\-", "-")


@pytest.mark.parametrize("checker", [["mandoc", "-Tlint", "-Wwarning"], ["man", "--warnings", "-l", "-Tutf8", "-P", "true"]])
def test_manual_readers_report_no_warning(pages: dict[str, Path], checker: list[str]) -> None:
    if shutil.which(checker[0]) is None:
        pytest.skip(f"no {checker[0]} on this machine")
    for page in pages.values():
        done = subprocess.run([*checker, page], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr, done.stdout if checker[0] == "mandoc" else "") == (0, "", "")
