"""A figure as SVG: inline for a page, with the page's colours and font, or as a file of its own. Deterministic.

Nothing in it points anywhere: no DTD, no metadata, no namespace that is fetched (an XML namespace is a name).
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from asyncli.report.figures.drawing import PALETTE, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)))
_TAG = re.compile(r"<[^>]*>")
_ID = re.compile(r'\s+id="([^"]*)"')
_REFERENCE = re.compile(r'(xlink:href="#|url\(#)([^")]+)')
# matplotlib wrote a font as CSS shorthand (weight? size families) up to 3.9, and each part by itself since.
_FONT = re.compile(r"font: (?:(normal|bold|\d+) )?([\d.]+)px [^;\"]*")
_FAMILY = re.compile(r"font-family: [^;\"]*;?\s*")
_STRAIGHT = re.compile(r'\s*transform="rotate\(-?0 [^"]*"')
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def inline_svg(figure: Figure, name: str) -> str:
    """``figure`` as an ``<svg>`` element for a page: colours as CSS variables of the names in PALETTE, text in the page's
    font, as wide as its place, ids that begin with ``name``. It is hidden from assistive technology: the page says in
    words what it shows."""
    text = _raw(figure, name, transparent=True)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<style[^>]*>.*?</style>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>\s*", "", text)
    view = re.search(r'viewBox="([^"]*)"', text)
    text = re.sub(
        r"<svg[^>]*>", f'<svg viewBox="{view[1] if view else "0 0 1 1"}" aria-hidden="true" focusable="false">', text, count=1
    )
    used = {reference for tag in _TAG.findall(text) for _, reference in _REFERENCE.findall(tag)}

    def ours(tag: re.Match[str]) -> str:
        """One tag, remade; what stands between tags is text of the figure, and is left alone."""
        inside = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", tag[0])
        inside = _REFERENCE.sub(lambda found: f"{found[1].removeprefix('xlink:')}{name}-{found[2]}", inside)
        inside = _STRAIGHT.sub("", _FAMILY.sub("", _FONT.sub(_font, inside)))
        inside = _COLOUR.sub(lambda found: _VARIABLES[found[0]], inside)
        # A hundredth of a pixel is finer than any screen; matplotlib writes six decimals.
        return _NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), inside)

    return re.sub(r">\s+<", "><", _TAG.sub(ours, text)).strip()


def file_svg(figure: Figure, name: str, description: str) -> str:
    """``figure`` as an SVG file: light, and with ``description`` as the only metadata."""
    text = _raw(figure, name, transparent=False)
    text = re.sub(r"<!DOCTYPE.*?>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    said = description.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"(<svg[^>]*>)", lambda found: f"{found[1]}\n <desc>{said}</desc>", text, count=1)


def file_png(figure: Figure, description: str) -> bytes:
    """``figure`` as a PNG of 200 dots an inch, light."""
    raw = io.BytesIO()
    with drawing():
        figure.savefig(raw, format="png", dpi=200, metadata={"Software": None, "Description": description})
    return raw.getvalue()


def _raw(figure: Figure, name: str, *, transparent: bool) -> str:
    import matplotlib as mpl

    raw = io.StringIO()
    # The salt makes ids a function of what is drawn alone; without it they are drawn by lot.
    with drawing(), mpl.rc_context({"svg.hashsalt": name}):
        colour = "none" if transparent else PALETTE["paper"][0]
        figure.savefig(raw, format="svg", facecolor=colour, metadata={"Date": None, "Creator": None})
    return raw.getvalue()


def _font(found: re.Match[str]) -> str:
    weight = "" if found[1] in (None, "normal", "400") else "font-weight: 600; "
    return f"{weight}font-size: {found[2]}px"
