"""From DOT to a file: engines, failures, names, and the SVG as it stands on a page."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn
from tinyres.graph import render
from tinyres.graph.style import DARK, DARK_RAMP, LIGHT, RAMP, GradientScale, ratio_text

SVG = "{http://www.w3.org/2000/svg}"


def residual():
    x = tr.Tensor([[1.0, 2.0]], requires_grad=True)
    w = tr.Tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    return x + (x @ w).tanh()


@pytest.fixture
def drawing():
    return tr.draw(residual(), title="x + F(x)")


def program(path, lines):
    path.write_text("#!/bin/sh\n" + lines)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in programs are shell scripts")


# ---------------------------------------------------------------- engines


@posix
def test_the_order_of_engines(monkeypatch, tmp_path):
    dot = program(tmp_path / "dot", "cat\n")
    chosen = program(tmp_path / "mine", "cat\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TINYRES_DOT", str(chosen))
    assert render.find_engine() == chosen
    monkeypatch.delenv("TINYRES_DOT")
    assert render.find_engine().name.startswith("graphviz-pure")
    monkeypatch.setattr(render, "_from_wheel", lambda: None)
    assert render.find_engine() == dot
    monkeypatch.setenv("PATH", "")
    assert render.find_engine() is None


def test_an_engine_that_is_none_is_named(monkeypatch, drawing, tmp_path):
    monkeypatch.setenv("TINYRES_DOT", str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match=r"TINYRES_DOT is .*nowhere"):
        drawing.render(tmp_path / "a.svg")


def test_without_an_engine_the_dot_text_is_kept_and_the_cure_named(monkeypatch, drawing, tmp_path):
    monkeypatch.setattr(render, "find_engine", lambda: None)
    with pytest.raises(RuntimeError, match=r"a\.gv; .*pip install \"tinyres\[demos\]\""):
        drawing.render(tmp_path / "new folder" / "a.svg")
    assert (tmp_path / "new folder" / "a.gv").read_text() == drawing.source
    assert not (tmp_path / "new folder" / "a.svg").exists()
    assert "pip install" in drawing._repr_mimebundle_()["text/plain"]
    assert drawing.render(tmp_path / "b.gv").read_text() == drawing.source


@posix
@pytest.mark.parametrize(
    "lines, words",
    [
        ("echo it broke >&2; exit 3\n", "status 3: it broke"),
        ("exit 0\n", "wrote no picture"),
        ("echo half; kill -9 $$\n", "status -9"),
    ],
    ids=["status", "silence", "killed"],
)
def test_a_failure_leaves_the_old_picture_whole(monkeypatch, drawing, tmp_path, lines, words):
    path = tmp_path / "a.svg"
    path.write_text("old")
    monkeypatch.setenv("TINYRES_DOT", str(program(tmp_path / "broken", lines)))
    with pytest.raises(RuntimeError, match=words):
        drawing.render(path)
    assert path.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svg", "broken"]


@posix
def test_a_disk_that_is_full_leaves_the_old_picture_whole(drawing, tmp_path):
    resource = pytest.importorskip("resource")
    path = drawing.render(tmp_path / "a.svg")
    old = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            tr.draw(residual().sum()).render(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["a.svg"]


@posix
def test_who_reads_the_old_picture_never_sees_half_of_the_new_one(drawing, tmp_path):
    path = drawing.render(tmp_path / "a.svg")
    with open(path, encoding="utf-8") as reader:
        begin = reader.read(100)
        new = tr.draw(residual().sum())
        new.render(path)
        assert begin + reader.read() == drawing.svg()
    assert path.read_text() == new.svg()


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    "given, written",
    [
        ("a.svg", "a.svg"),
        ("a", "a.svg"),
        ("with space.png", "with space.png"),
        ("x/y/z.SVG", "x/y/z.SVG"),
        ("block.gv", "block.gv"),
        ("Bild äß 图.svg", "Bild äß 图.svg"),
    ],
)
def test_names_of_files(drawing, tmp_path, given, written):
    path = drawing.render(tmp_path / given)
    assert path == tmp_path / written
    begins = {".svg": b"<svg", ".png": b"\x89PNG", ".gv": b"digraph"}[path.suffix.lower()]
    assert path.read_bytes().startswith(begins)
    assert drawing.render(str(path)) == path  # again, over the old one


def test_what_can_not_be_written_says_so(drawing, tmp_path):
    with pytest.raises(ValueError, match=r"a\.pdf: the suffix must be one of \.svg, \.png, \.gv"):
        drawing.render(tmp_path / "a.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="render: can't write to"):
        drawing.render(tmp_path / "file" / "a.svg")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"rankdir": "UP"}, "BT, TB, LR, RL"),
        ({"theme": "pink"}, "auto, dark, light"),
        ({"depth": -1}, "an integer, at least 0"),
        ({"depth": "all"}, "an integer, at least 0"),
    ],
)
def test_wrong_options_answer_with_what_is_allowed(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        tr.draw(residual(), **options)


def test_too_much_is_refused_with_advice():
    stack = nn.TransformerStack(8, 2, 60, rng=0)
    with tr.spelled_out():
        y = stack(tr.Tensor(np.ones((1, 2, 8)), requires_grad=True, dtype="float32"))
    with pytest.raises(ValueError, match=r"boxes at depth=3, fold=False .*depth=3 has .*depth=1"):
        tr.draw(y, depth=3, fold=False)
    assert tr.draw(y).source


def test_what_no_depth_makes_small_enough_is_to_be_drawn_in_parts(monkeypatch):
    y = nn.TransformerStack(8, 2, 3, rng=0)(np.ones((1, 2, 8), "f4"))
    monkeypatch.setattr(sys.modules["tinyres.graph.draw"], "MOST_BOXES", 4)
    with pytest.raises(ValueError, match=r"at most 4\): draw a part of it"):
        tr.draw(y, fold=False)


# ---------------------------------------------------------------- the SVG


def test_the_svg_has_a_name_words_and_tooltips(drawing):
    root = ET.fromstring(drawing.svg())
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert title.text == "x + F(x)"
    assert "1 residual additions" in description.text or "1 residual addition" in description.text
    tips = [t.text for t in root.iter(f"{SVG}title")]
    assert "matmul: (1,2) float32" in tips
    assert any(tip.startswith("skip: (1,2)") for tip in tips)
    assert not [t for t in tips if re.fullmatch(r"[nt]\d+(->[nt]\d+)?", t or "")]


def test_two_pictures_on_a_page_do_not_disturb_each_other(drawing):
    other = tr.draw(residual().sum())
    pages = [drawing.svg(), other.svg(), drawing.svg(prefix="again")]
    ids = [e.get("id") for page in pages for e in ET.fromstring(page).iter() if e.get("id")]
    assert len(ids) == len(set(ids)) > 20
    for page in pages:
        own = ET.fromstring(page).get("id")
        rules = re.findall(r"[{ ](#[\w-]+) \[", page)
        assert rules and set(rules) == {f"#{own}"}
    assert drawing.svg() == drawing.svg()


def test_dark_mode_exchanges_every_colour(drawing):
    svg = drawing.svg()
    (css,) = re.findall(r"<style>(.*?)</style>", svg)
    assert css.startswith("@media (prefers-color-scheme:dark)")
    used = set(re.findall(r'(?:fill|stroke)="(#\w+|white|black)"', svg))
    changed = set(re.findall(r'="(#\w+|white)"\]', css))
    assert used <= changed
    assert "<style>" not in tr.draw(residual(), theme="light").svg()
    dark = tr.draw(residual(), theme="dark").svg()
    assert "<style>" not in dark and "#ff8a3d" in dark and "#d55e00" not in dark


def contrast(a, b):
    """Ratio of the relative luminances, as WCAG 2.1 defines it."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours, ramp", [(LIGHT, RAMP), (DARK, DARK_RAMP)], ids=["light", "dark"])
def test_strokes_stand_out_from_their_ground(colours, ramp):
    ground = colours["ground"][0]
    strokes = {role: pair[0] for role, pair in colours.items() if role not in ("ground", "block")}
    for role, stroke in {**strokes, **dict(enumerate(ramp))}.items():
        assert contrast(stroke, ground) >= 3, role
    for role in ("text", "skip", "norm", "attention", "feed-forward"):
        text = colours["text"][0]
        assert contrast(text, colours[role][1] if role != "text" else ground) >= 4.5


HOSTILE = ["a:b", "<x>", 'quo"te', "back\\slash", "\\N \\G \\l", "{|}", "new\nline",
           "&amp; &lt;", "图像编码器", "-->", "<b>bold</b>", "x" * 300, "]]>", "\x07bell",
           "n0", "node", ""]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(name):
    class Odd(nn.Module):
        def extra(self):
            return name

        def forward(self, x):
            with tr.scope(name):
                return x * x.exp()

    odd = Odd()
    x = tr.Tensor([1.0], requires_grad=True)
    for depth in (0, 3):
        drawing = tr.draw(odd(x) * 2 + odd(x), depth=depth, title=name, names={name: x})
        root = ET.fromstring(drawing.svg())
        text = ["".join(t.itertext()) for t in root.iter(f"{SVG}text")]
        shown = re.sub(r"[\x00-\x1f]", " ", name)
        if 0 < len(name) < 40:
            found = [" ".join(t.replace("\u200b", "").split()) for t in text]
            # the title, the input, and at depth 0 the module
            assert found.count(" ".join(shown.split())) >= 2
        assert max(map(len, text)) <= 90
    assert odd is not None


def test_a_wide_script_gets_a_wide_box():
    def width(name):
        x = tr.Tensor([1.0], requires_grad=True)
        root = ET.fromstring(tr.draw(x.exp(), names={name: x}, legend=False).svg())
        paths = [p.get("d") for p in root.iter(f"{SVG}path")]
        numbers = [re.findall(r"-?[\d.]+", d)[::2] for d in paths]
        return max(max(map(float, n)) - min(map(float, n)) for n in numbers)

    assert width("图" * 10) >= 10 * 11
    assert width("图" * 10) > width("x" * 10)


# ---------------------------------------------------------------- notebooks, pairs, gradients


def test_a_pair_is_one_picture_or_names_the_two(monkeypatch, drawing, tmp_path):
    pair = tr.draw_pair(residual(), residual(), titles=("one", "other"))
    root = ET.parse(pair.render(tmp_path / "pair")).getroot()
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    named = root.find(f"*[@id='{root.get('aria-labelledby')}']")
    assert (root.get("role"), named.text) == ("group", "one and other")
    assert len(root.findall(f"{SVG}svg[@role='img']")) == 2
    assert pair.render(tmp_path / "pair.gv").read_text().count("digraph") == 2
    words = r"pair\.left\.render\('a-left\.png'\) and pair\.right\.render\('a-right\.png'\)"
    with pytest.raises(ValueError, match=words):
        pair.render(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"one of \.svg, \.gv"):
        pair.render(tmp_path / "a.pdf")
    monkeypatch.setattr(render, "find_engine", lambda: None)
    with pytest.raises(RuntimeError, match=r"b\.gv; .*pip install"):
        pair.render(tmp_path / "b.svg")
    assert (tmp_path / "b.gv").read_text() == pair.source
    assert "pip install" in pair._repr_mimebundle_()["text/plain"]


def test_a_notebook_shows_the_picture(drawing):
    bundle = drawing._repr_mimebundle_()
    assert bundle["image/svg+xml"] == drawing._repr_svg_() == drawing.svg()
    assert repr(drawing).startswith("<Drawing 'x + F(x)': Computation graph")
    assert repr(drawing).endswith("; .render('picture.svg') writes it>")
    pair = tr.draw_pair(measured("pre"), measured("post"), titles=("One", "Other"))
    assert repr(pair) == "<Pair of drawings, 'One' beside 'Other'; .render('pair.svg') writes it>"
    bundle = pair._repr_mimebundle_()
    assert bundle["text/plain"] == repr(pair) and bundle["image/svg+xml"] == pair.svg()


def measured(placement, scale=1.0):
    model = nn.TransformerLM(11, 8, 2, 3, 5, placement=placement, rng=0)
    tokens = np.zeros((2, 5), int)
    return tr.trace_backward(model.loss(tokens, tokens) * scale)


def test_the_gradient_is_drawn_as_it_was_measured():
    graph = measured("pre")
    source = tr.draw(graph, depth=1).source
    assert source.count("xlabel=") == 6
    assert re.search(r'POINT-SIZE="10">1</FONT>>', source)  # the top is compared with itself
    assert "|gradient| / |gradient at the top|" in source
    assert "|gradient| =" in source and "1e-3" in source
    assert "xlabel" not in tr.draw(graph, gradient=False).source
    # the scale is relative: ten times the loss is the same picture
    ratios = re.compile(r"xlabel=<+[^>]*>([^<]*)")
    other = tr.draw(measured("pre", 10.0), depth=1).source
    assert ratios.findall(source) == ratios.findall(other) != []


def test_before_a_backward_there_is_no_gradient_to_show():
    source = tr.draw(residual(), gradient=True).source
    assert "no gradient yet" in source and "xlabel" not in source


def test_a_pair_has_one_scale():
    left, right = measured("pre"), measured("post")
    pair = tr.draw_pair(left, right, titles=("Pre-LN", "Post-LN"), depth=1)
    ends = re.findall(r"1e-?\d+", pair.source)
    assert len(ends) == 4 and set(ends) == {"1e-3", "1e3"}
    lowest = min(right.shares)
    for edge in right.edges:
        edge.gradient = 1e-6 if edge.target == lowest else edge.gradient
    wide = tr.draw_pair(left, right, depth=1)
    assert set(re.findall(r"1e-?\d+", wide.source)) != {"1e-3", "1e3"}


def test_a_pair_is_one_svg(tmp_path):
    pair = tr.draw_pair(residual(), residual() * 2, titles=("a", "b"), theme="light")
    root = ET.fromstring(pair.render(tmp_path / "pair").read_text())
    left, right = root.findall(f"{SVG}svg")
    assert root.find(f"{SVG}style") is None  # which is only for what follows the reader's system
    assert float(right.get("x")) == pytest.approx(float(left.get("width").removesuffix("pt")), 1)
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    with pytest.raises(ValueError, match=r"written as \.svg"):
        pair.render(tmp_path / "pair.png")


def test_the_scale_of_the_gradient():
    scale = GradientScale(top=2.0, decades=3)
    assert [scale.step(2.0 * 10.0**k) for k in (-9, -3, -1, 0, 1, 3, 9)] == [0, 0, 2, 3, 4, 6, 6]
    assert (scale.width(2.0, True), scale.width(2.0, False)) == (5.75, 3.25)
    assert scale.step(0.0) == 0
    texts = [ratio_text(r) for r in (1.0, 0.84, 12.0, 0.00031, 4.2e7, 0.0, 123.0)]
    assert texts == ["1", "0.84", "12", "3.1e-4", "4.2e7", "0", "123"]


# ---------------------------------------------------------------- the lesson


def lesson(*options):
    return subprocess.run(
        [sys.executable, "-m", "demos.draw_blocks", *options], capture_output=True, text=True
    )


def test_the_lesson_on_the_command_line(tmp_path):
    out = tmp_path / "deep.svg"
    done = lesson(
        "--placement=pre", "--blocks=24", "--depth=1", "--gradient", "--rankdir=LR", f"--out={out}"
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(out))
    assert out.read_text().startswith("<svg")
    for options, words in (
        ("--placement foo", "invalid choice: 'foo'"),
        ("--blocks none", "at least 1"),
        ("--rankdir up", "LR"),
    ):
        done = lesson(*options.split())
        assert done.returncode == 2 and words in done.stderr
