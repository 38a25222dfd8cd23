"""A document as one HTML file that needs no network and no JavaScript. The template escapes every
string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from asyncli import __version__
from asyncli.report.document import (
    Block,
    DataTable,
    Document,
    Picture,
    View,
    cell_text,
    plain,
    typeset,
)
from asyncli.report.figures.drawing import NARROW, PALETTE, WIDE, NothingToDraw, inline_svg

if TYPE_CHECKING:
    from markupsafe import Markup


class DrawnPicture(NamedTuple):
    """A picture on the page: two SVGs, or ``missing``, the reason in a sentence."""

    number: int
    alt: str
    wide: str
    narrow: str
    missing: str = ""


def page(document: Document) -> str:
    """The page as HTML. The same document gives the same page, byte for byte."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("asyncli.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "flags": _unbroken_flags,
        "plain": plain,
        "kind": lambda block: type(block).__name__,
        "cell": cell_text,
        "typeset": typeset,
        "beside": _beside,
    }
    sections = []
    for section in document.sections:
        blocks: list[Block] = []
        for block in section.blocks:
            if not block.view & View.PAGE:
                continue
            if isinstance(block, DataTable):
                blocks.append(block.for_view(View.PAGE))
            else:
                blocks.append(block)
        if blocks or section.heading:
            sections.append((section, blocks))
    figures = _figures(document)
    text = environment.get_template("document.html.jinja").render(
        document=document,
        sections=sections,
        figures=figures,
        palette=PALETTE,
        made=f"asyncli {__version__}",
    )
    return text.rstrip("\n") + "\n"


def _figures(document: Document) -> dict[str, DrawnPicture]:
    """Every picture of the document, numbered."""
    from markupsafe import Markup

    figures: dict[str, DrawnPicture] = {}
    number = 0
    for picture in _pictures(document):
        try:
            wide = inline_svg(picture.draw(WIDE), f"{picture.name}-w")
            narrow = inline_svg(picture.draw(NARROW), f"{picture.name}-n")
        except NothingToDraw as nothing:
            figures[picture.name] = DrawnPicture(0, "", "", "", str(nothing))
        else:
            number += 1
            figures[picture.name] = DrawnPicture(
                number, picture.alt(), Markup(wide), Markup(narrow)
            )
    return figures


def _pictures(document: Document) -> Iterator[Picture]:
    for section in document.sections:
        for block in section.blocks:
            if isinstance(block, Picture):
                yield block


_FLAG = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")


def _unbroken_flags(words: str) -> Markup:
    """``words``, escaped, with each ``--flag`` on one line: browsers break after a hyphen."""
    from markupsafe import Markup, escape

    return Markup(_FLAG.sub(r'<span class="flag">\1</span>', str(escape(words))))


def _beside(text: str) -> str:
    """The cell with its second line in brackets; lines break only before a range, or in it."""
    first, _, beside = text.partition("\n")
    if not beside:
        return text
    whole = f"{first} ({beside})".replace(" ", "\xa0")
    return whole.replace("\xa0(", " (").replace("\xa0to\xa0", "\xa0to ")
