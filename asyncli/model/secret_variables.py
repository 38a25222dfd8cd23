"""Environment variables that hold secrets, which child processes do not inherit."""

from __future__ import annotations

import os

#: Headers, one ``Name: value`` per line, sent in addition to the plan's.
HEADERS_VARIABLE = "ASYNCLI_HEADERS"
#: An agent's token.
TOKEN_VARIABLE = "ASYNCLI_AGENT_TOKEN"
_kept: dict[str, str] = {}


def keep_secrets() -> None:
    """Move them out of this process's environment; :func:`secret` still returns them."""
    for name in (HEADERS_VARIABLE, TOKEN_VARIABLE):
        if name in os.environ:
            _kept[name] = os.environ.pop(name)


def secret(name: str) -> str:
    """The value of one of them; "": not set."""
    return _kept.get(name) or os.environ.get(name, "")


def for_child() -> dict[str, str]:
    """A copy of the environment without them; a notebook's own environment stays unchanged."""
    environment = {}
    # Another thread may remove a variable meanwhile.
    for name in list(os.environ):
        value = os.environ.get(name)
        if value is not None and name not in (HEADERS_VARIABLE, TOKEN_VARIABLE):
            environment[name] = value
    return environment
