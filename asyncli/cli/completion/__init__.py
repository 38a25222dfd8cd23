"""TAB completion of ``asyncli``, for the bash, zsh and fish scripts beside this file; ``asyncli completion SHELL``.

A script calls asyncli with $_ASYNCLI_COMPLETE set and the words up to the cursor as arguments. It reads tab-separated lines:
``word``, a word, its help; or ``files``, a pattern, for the shell to list. A flag's metavar says what it takes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete

SHELLS = ("bash", "zsh", "fish")
_CHOICES = re.compile(r"[\w.]+(\|[\w.]+)+")
_FILES = re.compile(r"(?:FILE|(DIR|FOLDER)|[A-Z]+(?=\.))(\.[a-z]+)?(?: .*)?")


@click.command(name="completion", no_args_is_help=True)
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
    """The lines for a script. ``words``: those after ``asyncli`` up to the cursor, the last one unfinished."""
    *before, current = [word for word in words[:-1] if word != "="] + [word.lstrip("=\"'") for word in words[-1:] or [""]]
    context, names = click.Context(root), root.list_commands(click.Context(root))
    if not before and not current.startswith("-"):
        yield from (f"word\t{name}\t" for name in names if name.startswith(current))
        return
    # Without a command, it is a soak.
    if not before or before[0] not in names:
        before.insert(0, "soak")
    command = root.get_command(context, before[0])
    for one in command.params if command is not None else ():
        if one.metavar and not getattr(one, "is_flag", False):
            one.type = _Values()
    flag, equals, text = current.partition("=") if current.startswith("--") else ("", "", current)
    if not equals:
        flag, text = "", current
    for item in ShellComplete(root, {}, "asyncli", "").get_completions([*before, *([flag] if equals else [])], text):
        if item.type == "files":
            yield f"files\t{item.value}\t"
        else:
            yield f"word\t{flag}{equals}{item.value}\t{' '.join((item.help or '').split())}"


class _Values(click.ParamType):  # type: ignore[type-arg]
    """The values of a parameter, by its metavar."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        metavar = (param.metavar or "").strip("[]")
        files = [f"*{'/' if match[1] else match[2] or ''}"] if (match := _FILES.fullmatch(metavar)) else []
        words = _words(ctx.info_name or "", param, metavar)
        return [CompletionItem(one, type="files") for one in files] + [
            CompletionItem(word, help=words[word]) for word in words if word.startswith(incomplete)
        ]


def _words(command: str, param: click.Parameter, metavar: str) -> Mapping[str, str]:
    """The words that a parameter takes, with their help."""
    if metavar == "FILE.toml":
        from asyncli.lab.resources import config_file

        plans = sorted(one.stem for one in config_file("smoke.toml").parent.glob("*.toml"))
        return dict.fromkeys((one for one in plans if (one == "bench") == (command == "bench")), "")
    if metavar == "LIMIT":
        return dict.fromkeys(_numbers(command), "")
    if metavar == "TERM":
        from asyncli.cli.explain import codes, terms

        known = [*(one.replace(" ", "_") for one in terms()), *(one for some in codes() for one in some)]
        return dict.fromkeys((one for one in known if "{" not in one), "")
    if metavar == "NAME" and command == "experiment":
        from asyncli.experiments import ABOUT

        return ABOUT
    if metavar == "NAME" and (command, param.name) in (("lab", "name"), ("demo", "server")):
        from asyncli.lab import NAMES

        return {name: known.description for name, known in NAMES.items()}
    return dict.fromkeys(metavar.split("|"), "") if _CHOICES.fullmatch(metavar) else {}


def _numbers(command: str) -> Iterable[str]:
    """The keys of a run's JSON that --fail-if takes, and each key's last word if it is unique."""
    from asyncli.report.thresholds import keys

    if command == "bench":
        from asyncli.analysis.bench_result import BenchResult

        known = keys(BenchResult)
    else:
        from asyncli.report.summary import Summary

        known = keys(Summary)
    known = [key.removesuffix("*") for key in known]
    last = Counter(key.rpartition(".")[2] for key in known)
    return [*known, *(word for word, times in last.items() if word and times == 1)]
