"""Findings of a heap that is collected: why what is alive in it is unknown."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.model.units import format_count, format_duration, format_many, format_share


@finding(
    "live_unknown",
    "info",
    "ask for collections (--plateaus 5 --collect auto), or hold more connections, which fill the "
    "heap more often: a line needs four collections, some of them while connections are opened",
)
def live_unknown(collections: int, rising: int) -> str:
    """What is alive in a collected heap is known only right after a collection, and too few came.

    ``collections``: those that the page of metrics showed; ``rising``: of these, while connections
    were opened.
    """
    cannot = "what the connections keep alive in the server's heap cannot be told"
    if not collections:
        return f"{cannot}: its page of metrics showed no collection"
    return (
        f"{cannot} by {format_many(collections, 'collection')}, {format_count(rising)} of them "
        "while connections were opened"
    )


@finding("heap_of_a_part", "warning")
def heap_of_a_part(share: float | None, processes: int | None) -> Words:
    """What is alive is known of one process. It is divided by the connections only if that process
    holds them all: its descriptors rise by one for each.

    ``share``: the descriptors, or connections by its own count, that the process of the page of
    metrics opened for each connection held; null: the page does not say. ``processes``: those of
    the server then.
    """
    not_divided = "so what it keeps alive is not divided by them"
    if share is not None:
        return Words(
            "the page of metrics is of a process that opened descriptors or connections for "
            f"{format_share(share)} of those that were opened: it does not hold them all, or holds "
            f"others too, {not_divided}",
            "let one worker serve, or name a page that adds up all workers (--server-metrics)",
        )
    return Words(
        f"the server has {format_count(processes or 0)} processes, and what is alive is known of "
        f"one that does not tell its descriptors: others may hold connections too, {not_divided}",
        "start the server with one process, or name a page that tells its descriptors "
        "(--server-metrics)",
    )


@finding("collections_forced", "info")
def collections_forced(collections: int, longest_s: float) -> str:
    """asyncli asked the server's runtime for collections (--collect). The server stands still in
    each, and its memory is not what it would be without them: resident memory, latencies and the
    heap's goal are to be measured in another run.
    """
    return (
        f"asyncli asked the server for {format_many(collections, 'collection')} of its heap; the "
        f"longest took {format_duration(longest_s)}, and heartbeats waited for it"
    )


@finding(
    "collection_failed",
    "warning",
    "mend that, or leave --collect out",
)
def collection_failed(why: str) -> str:
    """The server's runtime could not be asked for a collection. The run goes on without them."""
    return f"no collection of the server's heap was asked for any more: {why}"
