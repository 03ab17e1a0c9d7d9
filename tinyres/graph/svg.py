"""What Graphviz's SVG lacks to stand on a page: a name, ids of its own, dark mode, tooltips."""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from tinyres.graph.style import THEMES, dark_counterparts

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def prefix_of(source: str) -> str:
    """What the ids of a picture begin with, made from its DOT text."""
    return "tinyres-" + hashlib.sha256(source.encode()).hexdigest()[:8]


def finished(svg: bytes, prefix: str, theme: str, title: str, description: str) -> str:
    """Graphviz's SVG made fit for a page on which there are others.

    All ids begin with the prefix, and the stylesheet holds for this picture alone.
    """
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    root = ET.fromstring(svg)
    _tooltips(root)
    _prefix_ids(root, prefix)
    root.set("id", prefix)
    root.set("class", "tinyres")
    root.set("role", "img")
    root.set("aria-labelledby", f"{prefix}-title {prefix}-desc")
    root.set("style", "max-width:100%;height:auto")
    parts = [("title", title, f"{prefix}-title"), ("desc", description, f"{prefix}-desc")]
    if theme == "auto":
        parts.append(("style", _dark_mode(prefix), ""))
    for i, (tag, text, id_) in enumerate(parts):
        element = ET.Element(f"{{{SVG}}}{tag}", {"id": id_} if id_ else {})
        element.text = text
        root.insert(i, element)
    return ET.tostring(root, encoding="unicode")


def beside(pictures: Sequence[str], prefix: str, across: bool, theme: str, title: str) -> str:
    """Finished SVGs in one: from left to right standing on one line, or one below the other."""
    roots = [ET.fromstring(picture) for picture in pictures]
    sizes = [(_points(root.get("width")), _points(root.get("height"))) for root in roots]
    widths, heights = zip(*sizes)
    width, height = (sum(widths), max(heights)) if across else (max(widths), sum(heights))
    outer = ET.Element(f"{{{SVG}}}svg", {
        "width": f"{width:g}pt", "height": f"{height:g}pt", "viewBox": f"0 0 {width:g} {height:g}",
        "class": "tinyres", "role": "group", "style": "max-width:100%;height:auto",
    })  # fmt: skip
    outer.set("id", prefix)
    outer.set("aria-labelledby", f"{prefix}-title")
    ET.SubElement(outer, f"{{{SVG}}}title", id=f"{prefix}-title").text = title
    if theme == "auto":
        ET.SubElement(outer, f"{{{SVG}}}style").text = _dark_mode(prefix)
    ground = THEMES[theme].stroke("ground").lower()
    ET.SubElement(outer, f"{{{SVG}}}rect", width="100%", height="100%", fill=ground)
    x = y = 0.0
    for root, (w, h) in zip(roots, sizes):
        root.attrib.pop("style", None)
        root.attrib.update(
            x=f"{x:g}", y=f"{height - h if across else y:g}", width=f"{w:g}", height=f"{h:g}"
        )
        outer.append(root)
        x, y = (x + w, y) if across else (x, y + h)
    return ET.tostring(outer, encoding="unicode")


def _points(length: str | None) -> float:
    return float((length or "0").removesuffix("pt"))


def _tooltips(root: ET.Element) -> None:
    """Graphviz names a part by its identifier and links its tooltip; browsers show the title."""
    for part in root.findall(f".//{{{SVG}}}g[{{{SVG}}}title]"):
        title = part.findall(f"{{{SVG}}}title")[0]
        link = part.find(f"{{{SVG}}}g/{{{SVG}}}a")
        if link is not None:
            part.remove(next(g for g in part.findall(f"{{{SVG}}}g") if link in list(g)))
            part.extend(list(link))
        tooltip = "" if link is None else link.get(f"{{{XLINK}}}title", "").strip()
        kind = part.get("class", "").split()[0]
        if kind in ("node", "cluster"):
            part.set("data-name", title.text or "")
        if tooltip:
            title.text = tooltip
        else:
            part.remove(title)


def _prefix_ids(root: ET.Element, prefix: str) -> None:
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", f"{prefix}-{element.attrib['id']}")


def _dark_mode(prefix: str) -> str:
    """Each colour exchanged for its dark counterpart where the reader's system is dark."""
    rules = []
    for light, dark in dark_counterparts().items():
        # Graphviz writes colours in lower case, and some versions write white by its name.
        for written in (light.lower(), "white") if light == "#FFFFFF" else (light.lower(),):
            for attribute in ("fill", "stroke"):
                rules.append(f'#{prefix} [{attribute}="{written}"]{{{attribute}:{dark}}}')
    return f"@media (prefers-color-scheme:dark){{{' '.join(rules)}}}"
