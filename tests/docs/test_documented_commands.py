"""asyncli accepts every command of the README and the documentation: its options, and the values of its plan."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from documented import PAGES, ROOT, blocks, commands

from asyncli.cli.main import _is_original_usage, _soak_forever, cli
from asyncli.cli.options import plan_from
from asyncli.cli.soak import take_collect_command

#: Placeholders for a reader's values.
_STANDS_FOR = {"PID": "4711", "URL": "http://127.0.0.1:8080/", "...": "http://127.0.0.1:8080/"}


def _parsed(words: list[str]) -> click.Context:
    words = [re.sub(r"\$\{?\w+\}?", "7", _STANDS_FOR.get(word, word)) for word in words]
    name, *rest = _soak_forever(words) if _is_original_usage(words) else words
    command = cli.get_command(click.Context(cli), name) if not name.startswith("-") else cli
    assert command is not None, name
    return command.make_context(name, rest if command is not cli else words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_commands_are_taken(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [one for one in blocks(page) if one.language in ("", "sh") or (one.language == "inline" and "[" not in one.text)]
    for inline, words in ((block.language == "inline", call) for block in shown for call in commands(block.text)):
        try:
            context = _parsed(words)
            values = dict(context.params)
            if context.command.name in ("soak", "check") and values.get("resume") is None:
                for name in ("header_file", "mqtt_login_file"):  # files of the reader's
                    values.pop(name, None)
                if context.command.name == "soak":
                    take_collect_command(values)
                urls = values.pop("urls")
                plan_from(values, urls if urls or not inline else [_STANDS_FOR["URL"]])
        except click.exceptions.Exit as end:  # --help and --version
            assert end.exit_code == 0, words
        except (click.exceptions.MissingParameter, click.exceptions.NoArgsIsHelpError):  # a sentence may name a command without its arguments
            assert inline, words
        except Exception as error:
            raise AssertionError(f"asyncli {' '.join(words)}: {error}") from error


def test_commands_are_found() -> None:
    block = "sudo $(which asyncli) soak -c 5 \\\n    http://a/ > x.txt && A=1 nohup .venv/bin/asyncli runs | head\nasyncli, 5 B\n"
    assert list(commands(block)) == [["soak", "-c", "5", "http://a/"], ["runs"]]
    assert sum(len(list(commands(block.text))) for block in blocks(ROOT / "README.md")) > 10
