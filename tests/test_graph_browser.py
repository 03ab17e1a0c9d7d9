"""What a browser makes of the pictures: a page of several, loaded in headless Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn
from tinyres.graph.style import DARK, LIGHT

BROWSERS = ("chromium", "google-chrome", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no browser is installed (looked for {', '.join(BROWSERS)})"
)

# Run in the page: what each picture is to a reader, as JSON in the document.
SCRIPT = """
const style = (part, name) => part && getComputedStyle(part)[name];
const words = ids => ids.split(' ').map(id => document.getElementById(id).textContent);
const tip = part => { const t = part.querySelector(':scope > title'); return t && t.textContent; };
const drawn = part => part.querySelector('path, polygon, ellipse');
const all = (from, what) => [...from.querySelectorAll(what)];
function under(part) {
    const box = drawn(part).getBoundingClientRect();
    const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return hit && tip(hit.closest('g.node, g.edge') || hit);
}
const facts = all(document, 'svg[role=img]').map(svg => ({
    name: words(svg.getAttribute('aria-labelledby'))[0],
    description: words(svg.getAttribute('aria-labelledby'))[1],
    boxes: all(svg, 'g.node').filter(g => g.querySelector('text')).map(g => [tip(g), under(g)]),
    edges: all(svg, 'g.edge').map(tip),
    colours: {
        ground: style(svg.querySelector('g.graph > polygon'), 'fill'),
        skip: style(svg.querySelector('g.edge.skip path'), 'stroke'),
        norm: style(svg.querySelector('g.node.norm path'), 'stroke'),
        text: style(svg.querySelector('g.node text'), 'fill'),
    },
    size: [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height],
}));
const ids = all(document, '[id]').map(part => part.id);
const group = document.querySelector('svg[role=group]');
document.body.dataset.facts = JSON.stringify({
    pictures: facts,
    repeated: ids.filter((id, i) => ids.indexOf(id) !== i),
    group: words(group.getAttribute('aria-labelledby'))[0],
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
});
"""


def pictures():
    """A pair that follows the reader's system, one picture that does too, and one that is light."""
    x = tr.Tensor(np.ones((2, 8), np.float32), requires_grad=True)
    blocks = [nn.PreLN, nn.PostLN]
    made = [rule(nn.Linear(8, 8, rng=0), lambda: nn.LayerNorm(8)) for rule in blocks]
    pair = tr.draw_pair(*(m(m(x)) for m in made), titles=("Pre-LN", "Post-LN"), depth=2)
    alone = tr.draw(made[1](made[1](x)), title='alone <&> "quoted"', depth=2)
    light = tr.draw(made[1](made[1](x)), title="light", depth=2, theme="light")
    return pair, alone, light


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    body = "\n".join(picture.svg() for picture in pictures())
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(
        '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>pictures</title><body>{body}<script>{SCRIPT}</script>",
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="module", params=["light", "dark"])
def loaded(request, page, tmp_path_factory):
    """The colour scheme of the reader's system, and what the page says under it."""
    profile = tmp_path_factory.mktemp("profile")
    scheme = {"dark": 0, "light": 1}[request.param]
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=1600,3000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    found = re.search(r'data-facts="([^"]*)"', done.stdout)
    assert found, f"the page did not run: {done.stderr[-500:]}"
    return request.param, json.loads(html.unescape(found[1]))


def rgb(colour):
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_pictures_have_names_and_words(loaded):
    _, facts = loaded
    names = [picture["name"] for picture in facts["pictures"]]
    assert names == ["Pre-LN", "Post-LN", 'alone <&> "quoted"', "light"]
    assert facts["group"] == "Pre-LN and Post-LN"
    for picture in facts["pictures"]:
        assert "2 residual additions on the orange skip path" in picture["description"]
        assert min(picture["size"]) > 100


def test_boxes_and_edges_tell_what_they_are_where_the_mouse_rests(loaded):
    _, facts = loaded
    for picture in facts["pictures"]:
        assert len(picture["boxes"]) >= 8 and len(picture["edges"]) >= 10
        for tip, under in picture["boxes"]:
            assert tip == under and "(2,8) float32" in tip
        tips = [tip for tip in picture["edges"] if tip]
        assert all(re.fullmatch(r"(skip: )?\(2,8\) float32(, RMS [\d.]+)?", tip) for tip in tips)
        assert len(tips) == len(picture["edges"]) and sum("skip" in tip for tip in tips) >= 2


def test_ids_are_unique_on_the_page(loaded):
    assert loaded[1]["repeated"] == []


def test_colours_follow_the_system_and_not_the_neighbour(loaded):
    scheme, facts = loaded
    assert facts["dark"] == (scheme == "dark")
    for picture in facts["pictures"]:
        dark = scheme == "dark" and picture["name"] != "light"
        wanted = DARK if dark else LIGHT
        assert picture["colours"] == {role: rgb(wanted[role][0]) for role in picture["colours"]}
