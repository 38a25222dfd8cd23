"""A command whose options are also read from environment variables: ``ASYNCLI_SOAK_HOLD`` is
``--hold`` of ``asyncli soak``.

A flag overrides its variable, and a variable overrides the plan file. An empty variable is not set.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from asyncli.model.errors import AsyncliError
from asyncli.model.secret_variables import HEADERS_VARIABLE, secret

PREFIX = "ASYNCLI"
# What Kubernetes sets for a Service called asyncli-soak.
_OF_A_SERVICE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT(_\d+_(TCP|UDP)\w*)?)")
# Names that share a prefix are alike by that alone.
_ALIKE = 0.85


class _Lines(click.types.StringParamType):
    """A repeatable option's values in a variable, one per line: a header has blanks in it."""

    def split_envvar_value(self, rv: str) -> list[str]:
        values = []
        for line in rv.splitlines():
            if line.strip():
                values.append(line.strip())
        return values


class _Pairs(_Lines):
    """A repeatable option of a time and what is done then: "30s storm" on each line."""

    def split_envvar_value(self, rv: str) -> list[str]:
        values = []
        for line in super().split_envvar_value(rv):
            time, _, words = line.partition(" ")
            values += [time, words]
        return values


class Command(click.Command):
    """A command of asyncli: a function that returns the exit status."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for option in self.params:
            if not isinstance(option, click.Option):
                continue
            option.envvar = variable_of(self.name or "", option)
            if option.multiple:
                option.type = _Lines() if option.nargs == 1 else _Pairs()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        self._take_flags()
        if not args and self._has_variables():
            self.no_args_is_help = False
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            option = error.param
            if option is None or not _is_of_variable(ctx, option):
                raise
            message = error.message
            if isinstance(option.type, click.types.BoolParamType):
                value = os.environ.get(str(option.envvar), "")
                message = f"{value!r} is neither true nor false"
            raise click.BadParameter(message, ctx, option, f"${option.envvar}") from None

    def _take_flags(self) -> None:
        """Of an option that may stand without its value, "true" stands for that, and "false" for
        none.
        """
        for option in self.params:
            if not isinstance(option, click.Option) or option.is_flag:
                continue
            # Click has no name for "none is set" that all of its versions share.
            if not isinstance(option.flag_value, str):
                continue
            name = str(option.envvar)
            said = os.environ.get(name, "").lower()
            if said == "true":
                os.environ[name] = option.flag_value
            elif said == "false":
                del os.environ[name]

    def _has_variables(self) -> bool:
        names = [option.envvar for option in self.params if isinstance(option, click.Option)]
        return any(os.environ.get(str(name)) for name in names)

    def invoke(self, ctx: click.Context) -> Any:
        # A value may be secret, so no child process inherits one.
        for name in variables(ctx):
            os.environ.pop(name, None)
        try:
            return super().invoke(ctx)
        except AsyncliError as error:
            _raise_naming_variables(ctx, error)


def main_flag(option: click.Parameter) -> str:
    """The name of an option in messages: its first long one, before its aliases."""
    for flag in option.opts:
        if flag.startswith("--"):
            return flag
    return option.opts[0]


def variable_of(command: str, option: click.Option) -> str:
    """The environment variable of an option."""
    name = main_flag(option).lstrip("-").replace("-", "_")
    return f"{PREFIX}_{command}_{name}".upper()


def _is_of_variable(ctx: click.Context, option: click.Parameter) -> bool:
    return ctx.get_parameter_source(option.name or "") == ParameterSource.ENVIRONMENT


def variables(ctx: click.Context | None = None) -> list[str]:
    """The environment variables whose values the running command uses."""
    ctx = ctx or click.get_current_context(silent=True)
    if ctx is None:
        return []
    names = []
    for option in ctx.command.params:
        if _is_of_variable(ctx, option):
            names.append(str(option.envvar))
    return names


def is_of_variable(name: str) -> bool:
    """Whether the running command has the option called ``name`` from the environment."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.get_parameter_source(name) == ParameterSource.ENVIRONMENT


def variables_of_command() -> str:
    """The form of the running command's variables in errors, as of a plan's layer."""
    ctx = click.get_current_context(silent=True)
    command = "SOAK" if ctx is None else str(ctx.command.name).upper()
    return f"${PREFIX}_{command}_{{key}}"


def environment_lines(*, quiet: bool = False) -> list[str]:
    """The line that names the variables that the running command uses, without their values, which
    may be secret; and a line for each that looks like one of its variables and is none. The latter
    is a mistake, so a ``quiet`` command tells it too, and nothing else.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return []
    if quiet:
        return _unknown_variables(ctx)
    names = variables(ctx)
    takes_headers = any(option.name == "header" for option in ctx.command.params)
    if takes_headers and secret(HEADERS_VARIABLE):
        names.append(HEADERS_VARIABLE)
    lines = []
    if names:
        lines.append(f"from the environment: {', '.join(names)}")
    lines += _unknown_variables(ctx)
    return lines


def _unknown_variables(ctx: click.Context) -> list[str]:
    """A line for each variable of this command's form that none of its options has."""
    command = str(ctx.command.name)
    prefix = f"{PREFIX}_{command}_".upper()
    known = []
    for option in ctx.command.params:
        if isinstance(option, click.Option):
            known.append(variable_of(command, option))
    lines = []
    for name in sorted(os.environ):
        if not name.startswith(prefix) or name in known:
            continue
        if _OF_A_SERVICE.fullmatch(name.removeprefix(prefix)):
            continue
        hint = f"'asyncli {command} --help' lists its options"
        for near in difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE):
            hint = f"did you mean {near}?"
        lines.append(f"{name} in the environment is not used: no such option; {hint}")
    return lines


def _raise_naming_variables(ctx: click.Context, error: AsyncliError) -> NoReturn:
    """Raise ``error`` with the variable in place of each flag that was given by one."""
    text = str(error)
    for option in ctx.command.params:
        if not _is_of_variable(ctx, option):
            continue
        flag = re.escape(main_flag(option))
        text = re.sub(rf"(?<![\w-]){flag}(?![\w-])", f"${option.envvar}", text)
    if text != str(error):
        error.args = (text, *error.args[1:])
    raise error
