"""TAB completion of ``asyncli``, for the bash, zsh and fish scripts beside this file; ``asyncli
completion SHELL``.

A script calls asyncli with $_ASYNCLI_COMPLETE set and the words up to the cursor as arguments. It
reads tab-separated lines: ``word``, a word, its help; or ``files``, a pattern, for the shell to
list. A flag's metavar says what it takes.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete

from asyncli.cli.command import Command

SHELLS = ("bash", "zsh", "fish")
_CHOICES = re.compile(r"[\w.]+(\|[\w.]+)+")
_FILES = re.compile(r"(?:FILE|(DIR|FOLDER)|[A-Z]+(?=\.))(\.[a-z]+)?(?: .*)?")


@click.command(name="completion", cls=Command, no_args_is_help=True)
@click.argument("shell", metavar="|".join(SHELLS), type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the TAB completion script of a shell.

    \b
    bash:  echo 'source <(asyncli completion bash)' >> ~/.bashrc
    zsh:   echo 'source <(asyncli completion zsh)' >> ~/.zshrc       (after compinit)
    fish:  asyncli completion fish > ~/.config/fish/completions/asyncli.fish

    A package installed into /usr or /usr/local already has them where these shells look.
    """
    click.echo(Path(__file__).with_name(f"asyncli.{shell}").read_text(encoding="utf-8"), nl=False)
    return 0


def offers(root: click.Group, words: list[str]) -> Iterator[str]:
    """The lines for a script.

    ``words``: those after ``asyncli`` up to the cursor, the last one unfinished.
    """
    before = [word for word in words[:-1] if word != "="]
    current = words[-1].lstrip("=\"'") if words else ""
    context = click.Context(root)
    names = root.list_commands(context)
    if not before and not current.startswith("-"):
        yield from (f"word\t{name}\t" for name in names if name.startswith(current))
        return
    # Without a command, it is a soak.
    if not before or before[0] not in names:
        before.insert(0, "soak")
    with _metavars_as_types(root.get_command(context, before[0])):
        yield from _of_command(root, before, current)


def _of_command(root: click.Group, before: list[str], current: str) -> Iterator[str]:
    """The flags of a command, or the values of its flag or argument."""
    prefix = ""
    if current.startswith("--") and "=" in current:
        flag, _, current = current.partition("=")
        before.append(flag)
        prefix = f"{flag}="
    for item in ShellComplete(root, {}, "asyncli", "").get_completions(before, current):
        if item.type == "files":
            yield f"files\t{item.value}\t"
        else:
            help_text = " ".join((item.help or "").split())
            yield f"word\t{prefix}{item.value}\t{help_text}"


@contextlib.contextmanager
def _metavars_as_types(command: click.Command | None) -> Iterator[None]:
    """Complete the command's parameters by their metavars, in place of their types."""
    taken = []
    for parameter in command.params if command is not None else ():
        if parameter.metavar and not getattr(parameter, "is_flag", False):
            taken.append((parameter, parameter.type))
            parameter.type = _Values()
    try:
        yield
    finally:
        for parameter, its_type in taken:
            parameter.type = its_type


class _Values(click.ParamType):  # type: ignore[type-arg]
    """The values of a parameter, by its metavar."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        metavar = (param.metavar or "").strip("[]")
        items = []
        files = _FILES.fullmatch(metavar)
        if files:
            pattern = "*/" if files[1] else f"*{files[2] or ''}"
            items.append(CompletionItem(pattern, type="files"))
        for word, help_text in _words(ctx.info_name or "", param, metavar).items():
            if word.startswith(incomplete):
                items.append(CompletionItem(word, help=help_text))
        return items


def _words(command: str, param: click.Parameter, metavar: str) -> Mapping[str, str]:
    """The words that a parameter takes, with their help."""
    if metavar == "FILE.toml":
        return dict.fromkeys(_plans(command), "")
    if metavar == "LIMIT":
        return dict.fromkeys(_numbers(command), "")
    if metavar == "TERM":
        return dict.fromkeys(_terms(), "")
    if metavar == "NAME" and command == "experiment":
        from asyncli.experiments import ABOUT

        return ABOUT
    if metavar == "NAME" and (command, param.name) in (("lab", "name"), ("demo", "server")):
        from asyncli.lab import NAMES

        return {name: server.description for name, server in NAMES.items()}
    if _CHOICES.fullmatch(metavar):
        return dict.fromkeys(metavar.split("|"), "")
    return {}


def _plans(command: str) -> list[str]:
    """The built-in plans: one of a bench, the others of soaks."""
    from asyncli.lab.resources import config_file

    plans = sorted(path.stem for path in config_file("smoke.toml").parent.glob("*.toml"))
    is_bench = command == "bench"
    return [plan for plan in plans if (plan == "bench") == is_bench]


def _terms() -> Iterator[str]:
    """What ``asyncli explain`` knows: terms and codes."""
    from asyncli.cli.explain import codes, terms

    words = [term.replace(" ", "_") for term in terms()]
    for codes_of_finding in codes():
        words += codes_of_finding
    for word in words:
        if "{" not in word:
            yield word


def _numbers(command: str) -> Iterable[str]:
    """The keys of a run's JSON that --fail-if takes, and each key's last word if it is unique."""
    from asyncli.report.thresholds import keys

    if command == "bench":
        from asyncli.analysis.bench_result import BenchResult

        of_result = keys(BenchResult)
    else:
        from asyncli.report.summary import Summary

        of_result = keys(Summary)
    numbers = [key.removesuffix("*") for key in of_result]
    last_words = Counter(key.rpartition(".")[2] for key in numbers)
    unique = [word for word, times in last_words.items() if word and times == 1]
    return [*numbers, *unique]
