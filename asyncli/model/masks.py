"""The mask of a text that may be secret: the query of a URL, its login. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Replaces a value that may be secret, wherever a plan is shown or recorded.
MASK = "***"
# What asks Apache for its page in the form for programs.
_PAGE_FOR_PROGRAMS = "auto"
#: The login of a URL, ``user:password@``.
LOGIN = re.compile(r"(?<=://)[^/?#@]*@")


def masked_url(url: str) -> str:
    """``url`` without the query's text: ``https://host/path?***``."""
    address, question_mark, _ = url.partition("?")
    if not question_mark:
        return url
    return f"{address}?{MASK}"


def masked_login(url: str) -> str:
    """``url`` without its login: ``https://***@host/path``."""
    return LOGIN.sub(f"{MASK}@", url, count=1)


def masked_page(url: str) -> str:
    """The URL of a status page without its login and its query: Apache's ``?auto`` is no secret."""
    page = masked_login(url)
    if not query_of_page(url):
        return page
    return masked_url(page)


def query_of_page(url: str) -> list[str]:
    """The query of a status page's URL, if it may be secret."""
    _, _, query = url.partition("?")
    if query in ("", _PAGE_FOR_PROGRAMS):
        return []
    return [query]


def masked_if_url(text: str) -> str:
    """A text that may be a URL, written in the place of another value."""
    address, _, _ = text.partition("?")
    if "://" not in address:
        return text
    return masked_url(text)


def without_queries(text: str, words: Iterable[str]) -> str:
    """``text`` with the queries masked that it repeats of ``words``, those of a command line.

    ``--flag=URL`` is a word too, and a URL may lack its scheme or be taken for a path.
    """
    queries = (word.partition("?")[2] for word in words if "/" in word.partition("?")[0])
    for query in sorted(filter(None, queries), key=len, reverse=True):
        text = text.replace(f"?{query}", f"?{MASK}")
    return text
