"""Findings of a search for a server's capacity."""

from __future__ import annotations

from asyncli.findings import finding


@finding("not_at_rest", "warning", "connections that the server still holds count towards the next step")
def not_at_rest(why: str) -> str:
    """The server still held connections between two steps, and the next step includes them."""
    return why


@finding("server_gone", "error", "start it again, under a supervisor that restarts it")
def server_gone(why: str) -> str:
    """The server ended during the search, so the search ended."""
    return why
