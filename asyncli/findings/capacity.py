"""Findings of a search for a server's capacity."""

from __future__ import annotations

from asyncli.findings import Words, finding


@finding("not_at_rest", "warning")
def not_at_rest(why: str) -> Words:
    """Between two steps the server did not come back to rest, so what it still holds is measured with the next step."""
    return Words(why, "what it still holds is part of the next step")


@finding("server_gone", "error")
def server_gone(why: str) -> Words:
    """The server ended during the search, which then ends too: what is not there says nothing of a count."""
    return Words(why, "start it again, and let it be started again when it ends")
