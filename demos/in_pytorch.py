"""The model of demos.same_as_pytorch in PyTorch's own parts, and its training. Needs PyTorch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from demos.recorded import Arrays, Results, results


class LanguageModel(nn.Module):
    """Token and position embeddings, a stack of blocks, a linear head."""

    def __init__(
        self, vocab: int, d_model: int, heads: int, blocks: int, context: int, d_ff: int,
        norm_first: bool,
    ):  # fmt: skip
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, d_model), nn.Embedding(context, d_model)
        layer = nn.TransformerEncoderLayer(
            d_model, heads, d_ff, 0.0, "gelu", batch_first=True, norm_first=norm_first
        )
        norm = nn.LayerNorm(d_model) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, blocks, norm, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab)

    def forward(self, tokens: Any) -> Any:
        x = self.token(tokens) + self.position.weight
        mask = nn.Transformer.generate_square_subsequent_mask(len(x[0]), dtype=x.dtype)
        return self.head(self.encoder(x, mask, is_causal=True))


def make(sizes: dict[str, int], norm_first: bool, state: Arrays) -> Any:
    """The language model with `nn.TransformerEncoder` inside, in the dtype of the given weights."""
    model = LanguageModel(**sizes, norm_first=norm_first)
    tensors = {name: torch.tensor(array) for name, array in state.items()}
    model.to(tensors["token.weight"].dtype).load_state_dict(tensors)
    return model


def train(model: Any, batches: list[Any], lr: float) -> tuple[Results, float]:
    """A step of Adam on each batch: what is compared, and milliseconds a step."""
    optimizer = torch.optim.Adam(model.parameters(), lr)

    def loss_of(tokens: np.ndarray, targets: np.ndarray) -> tuple[Any, Any]:
        logits = model(torch.tensor(tokens))
        flat = torch.tensor(targets).flatten()
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), flat)

    logits, loss = loss_of(*batches[0])
    loss.backward()
    gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    losses, times = [], []
    for batch in batches:
        start = time.perf_counter()
        optimizer.zero_grad()
        _, loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
    rows = results(logits.detach().numpy(), gradients, losses, weights)
    return rows, 1e3 * float(np.median(times))
