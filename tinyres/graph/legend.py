"""The words below a picture: its title, and what its colours mean."""

from __future__ import annotations

import html

from tinyres.graph.frames import ROLES
from tinyres.graph.labels import shortened
from tinyres.graph.style import Look, Theme


def legend(title: str, look: Look, theme: Theme, occurring: dict[str, str], measured: bool) -> str:
    """The label of the whole picture: its title, and what the colours mean that occur in it."""
    rows: list[list[str]] = []
    if look.legend and look.gradient:
        rows = _ramp(look, theme) if measured else [[_text("no gradient yet")]]
    elif look.legend:
        roles = [role for role in ("skip", "norm", *ROLES) if role in occurring]
        pairs = [(_swatch(theme.stroke(role), 26, 9), _text(occurring[role])) for role in roles]
        rows = [[key for pair in pairs for key in pair]] if pairs else []
    if title:
        text = f'<FONT POINT-SIZE="13"><B>{_html(shortened(title, 80))}</B></FONT>'
        rows.insert(0, [f"<TD>{text}</TD>"])
    widest = max(map(len, rows), default=1)
    lines = [_over(widest, row[0]) if len(row) == 1 else "".join(row) for row in rows]
    body = "".join(f"<TR>{line}</TR>" for line in lines)
    table = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="3">'
    return f"<{table}{body}</TABLE>>" if rows else ""


def _over(columns: int, cell: str) -> str:
    """A cell that is as wide as the row with the most."""
    return cell.replace("<TD", f'<TD COLSPAN="{columns}"', 1)


def _ramp(look: Look, theme: Theme) -> list[list[str]]:
    low, high = (f"1e{sign}{look.decades:g}" for sign in ("-", ""))
    ramp = [_swatch(colour, 18, 4 + 1.5 * i) for i, colour in enumerate(theme.ramp)]
    return [
        [_text("|gradient| / |gradient at the top|", "CENTER")],
        [_text(low), *ramp, _text(high)],
    ]


def _swatch(colour: str, width: int, height: float) -> str:
    return f'<TD BGCOLOR="{colour}" WIDTH="{width}" HEIGHT="{height:.0f}" FIXEDSIZE="TRUE"></TD>'


def _text(text: str, align: str = "LEFT") -> str:
    return f'<TD ALIGN="{align}"><FONT POINT-SIZE="10">{_html(text)}</FONT></TD>'


def _html(text: str) -> str:
    """Text as it is in a label of HTML.

    There \\G would become the name of the graph, and a backslash can't be escaped; a space of no
    width behind it does.
    """
    return html.escape(text).replace("\\", "\\&#8203;")
