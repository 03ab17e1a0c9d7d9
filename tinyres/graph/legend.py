"""The words below a picture: its title, and what its colours mean."""

from __future__ import annotations

import html

from tinyres.graph.frames import ROLES
from tinyres.graph.labels import shortened
from tinyres.graph.style import Look, Theme


def legend(title: str, look: Look, theme: Theme, occurring: dict[str, str], measured: bool) -> str:
    if not look.legend:
        keys = []
    elif look.gradient:
        keys = _ramp_keys(look, theme) if measured else [_text("no gradient yet")]
    else:
        roles = [role for role in ("skip", "norm", *ROLES) if role in occurring]
        pairs = [(_swatch(theme.stroke(role), 26, 9), _text(occurring[role])) for role in roles]
        keys = [key for pair in pairs for key in pair]
    rows = [f"<TR>{''.join(keys)}</TR>"] if keys else []
    if title:
        text = f'<FONT POINT-SIZE="13"><B>{_html(shortened(title, 80))}</B></FONT>'
        rows.insert(0, f'<TR><TD COLSPAN="{max(len(keys), 1)}">{text}</TD></TR>')
    table = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="3">'
    return f"<{table}{''.join(rows)}</TABLE>>" if rows else ""


def _ramp_keys(look: Look, theme: Theme) -> list[str]:
    low, high = (f"1e{sign}{look.decades:g}" for sign in ("-", ""))
    ramp = [_swatch(colour, 30, 4 + 1.5 * i) for i, colour in enumerate(theme.ramp)]
    return [_text(f"|gradient| / |gradient at the top|   {low} "), *ramp, _text(f" {high}")]


def _swatch(colour: str, width: int, height: float) -> str:
    return f'<TD BGCOLOR="{colour}" WIDTH="{width}" HEIGHT="{height:.0f}" FIXEDSIZE="TRUE"></TD>'


def _text(text: str) -> str:
    return f'<TD ALIGN="LEFT"><FONT POINT-SIZE="10">{_html(text)}</FONT></TD>'


def _html(text: str) -> str:
    """Text as it is in a label of HTML.

    There \\G would become the name of the graph, and a backslash can't be escaped; a space of no
    width behind it does.
    """
    return html.escape(text).replace("\\", "\\&#8203;")
