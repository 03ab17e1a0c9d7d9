"""The recorded DOT texts of the gallery: a change to a picture shows in a diff.

After a change that is meant, record them anew with

    python tests/test_graph_gallery.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the recording; pytest finds demos anyway

from demos.readme_pictures import graphs

DATA = Path(__file__).with_name("data")


@pytest.fixture(scope="module")
def drawings():
    return graphs()


def test_each_picture_is_as_recorded(drawings):
    recorded = {path.stem: path.read_text(encoding="utf-8") for path in DATA.glob("*.gv")}
    assert recorded.keys() == drawings.keys()
    for name, drawing in drawings.items():
        assert drawing.source == recorded[name], name


if __name__ == "__main__":
    for name, drawing in graphs().items():
        print(drawing.render(DATA / f"{name}.gv"))
