"""Environment variables with secrets, which child processes do not inherit."""

from __future__ import annotations

import os

#: Headers, one ``Name: value`` a line, sent beside those of the plan.
HEADERS_VARIABLE = "ASYNCLI_HEADERS"
#: The token of an agent.
TOKEN_VARIABLE = "ASYNCLI_AGENT_TOKEN"
_kept: dict[str, str] = {}


def keep_secrets() -> None:
    """Remove them from this process's environment; :func:`secret` still gives them."""
    for name in (HEADERS_VARIABLE, TOKEN_VARIABLE):
        if name in os.environ:
            _kept[name] = os.environ.pop(name)


def secret(name: str) -> str:
    """The value of one of them; "" where it is not set."""
    return _kept.get(name) or os.environ.get(name, "")


def for_child() -> dict[str, str]:
    """The environment without them: a notebook's own stays."""
    return {name: value for name, value in os.environ.items() if name not in (HEADERS_VARIABLE, TOKEN_VARIABLE)}
