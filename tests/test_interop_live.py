"""The three layouts against the PyTorch that is installed here."""

from __future__ import annotations

import pytest
from interop_cases import CASES, LAYOUTS, X, weights
from reference_cases import TOLERANCE, assert_close

from tinyres import interop

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_same_as_pytorch(name, dtype):
    ours, theirs = CASES[name]
    assert_close(ours(name, dtype), theirs(torch, name, dtype), dtype)


def test_a_state_dict_goes_there_and_back():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    stack = LAYOUTS["nn.TransformerEncoder, norm last"].ours(weights(encoder_shapes(encoder)))
    interop.load_torch_encoder(stack, encoder.state_dict())
    assert abs(stack(X).data - encoder(torch.tensor(X)).detach().numpy()).max() < 1e-12
    back = {name: torch.tensor(a) for name, a in interop.to_torch_encoder(stack).items()}
    assert all(torch.equal(tensor, back[name]) for name, tensor in encoder.state_dict().items())
    encoder.load_state_dict(back)


def encoder_shapes(encoder):
    return {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
