"""A figure as deterministic SVG: inline for a page, or as a file. It refers to nothing outside: no DTD, no metadata."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from asyncli.report.figures.drawing import PALETTE, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)))
_HEAD = re.compile(r"<!DOCTYPE.*?>\s*|<metadata>.*?</metadata>\s*", re.DOTALL)
_STYLE = re.compile(r"<style[^>]*>.*?</style>\s*|<!--.*?-->\s*", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_ID = re.compile(r'\s+id="([^"]*)"')
_REFERENCE = re.compile(r'(?:xlink:)?(href="#|url\(#)([^")]+)')
# matplotlib wrote a font as CSS shorthand (style? weight? size families) up to 3.9, and each part separately since.
_FONT = re.compile(r"font: ((?:[\w.]+ )*)([\d.]+)px [^;\"]*")
_FAMILY = re.compile(r"font-family: [^;\"]*;?\s*")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def inline_svg(figure: Figure, name: str) -> str:
    """``figure`` as an ``<svg>`` element: CSS variables of PALETTE as colours, the page's font, ids with the prefix ``name``.
    Hidden from assistive technology: the page has its text.
    """
    text = _STYLE.sub("", _raw(figure, name, "none"))
    width, height = figure.get_size_inches() * 72
    svg = f'<svg viewBox="0 0 {width:g} {height:g}" aria-hidden="true" focusable="false">'
    text = re.sub(r".*?<svg[^>]*>", lambda _: svg, text, count=1, flags=re.DOTALL)
    used = {reference for tag in _TAG.findall(text) for _, reference in _REFERENCE.findall(tag)}

    def ours(tag: re.Match[str]) -> str:
        """Rewrite one tag; text between tags stays."""
        inside = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", tag[0])
        inside = _REFERENCE.sub(lambda found: f"{found[1]}{name}-{found[2]}", inside)
        inside = _FAMILY.sub("", _FONT.sub(_font, inside))
        inside = _COLOUR.sub(lambda found: _VARIABLES[found[0]], inside)
        # A hundredth of a pixel is enough; matplotlib writes six decimals.
        return _NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), inside)

    return re.sub(r">\s+<", "><", _TAG.sub(ours, text)).strip()


def file_svg(figure: Figure, name: str, description: str) -> str:
    """``figure`` as an SVG file with ``description`` as its only metadata."""
    text = _raw(figure, name, PALETTE["paper"][0])
    return re.sub(r"<svg[^>]*>", lambda found: f"{found[0]}\n <desc>{escape(description)}</desc>", text, count=1)


def file_png(figure: Figure, description: str) -> bytes:
    """``figure`` as a PNG of 200 dpi."""
    raw = io.BytesIO()
    with drawing():
        figure.savefig(raw, format="png", dpi=200, metadata={"Software": None, "Description": description})
    return raw.getvalue()


def _raw(figure: Figure, name: str, background: str) -> str:
    import matplotlib as mpl

    raw = io.StringIO()
    # The salt makes ids deterministic.
    with drawing(), mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(raw, format="svg", facecolor=background, metadata={"Date": None, "Creator": None})
    return _HEAD.sub("", raw.getvalue())


def _font(found: re.Match[str]) -> str:
    return f"{'font-weight: 600; ' if 'bold' in found[1] else ''}font-size: {found[2]}px"
