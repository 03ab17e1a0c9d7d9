"""Probes: what flows through a stack, as plain arrays.

Each takes a `TransformerLM` and a batch `(tokens, targets)`. Axis `place` of an array counts the
places of the residual stream: 0 is what the embedding gives, l what block l returns. A target of
-1 does not count. A probe works on a copy of the model in eval mode: it changes neither the model
nor the gradients in it, and without dropout there is no noise in what it measures.
"""

from tinyres.arrays import Array
from tinyres.nn.transformer import TransformerLM
from tinyres.probe.stream import (
    Batch, neighbour_angle, neighbour_cosine, states, stream, stream_rms, token_cosine,
)  # fmt: skip
from tinyres.probe.gradient import (
    by_crossings, conserved_product, gradient_by_path_length, mean_gradients, skip_share,
    stream_gradient, token_gradient, weight_gradients,
)  # fmt: skip
from tinyres.probe.inside import attention_entropy, dependency, norm_input_rms
from tinyres.probe.change import ablation, model_update, output_shift, update_ratio

__all__ = [
    "Batch", "neighbour_angle", "neighbour_cosine", "states", "stream", "stream_rms",
    "token_cosine", "by_crossings", "conserved_product", "gradient_by_path_length",
    "mean_gradients", "skip_share", "stream_gradient", "token_gradient", "weight_gradients",
    "attention_entropy", "dependency", "norm_input_rms", "ablation", "model_update",
    "output_shift", "update_ratio", "report", "CHEAP",
]  # fmt: skip

CHEAP = (
    stream_rms, token_cosine, neighbour_cosine, neighbour_angle, stream_gradient,
    conserved_product, norm_input_rms, attention_entropy,
)  # fmt: skip


def report(model: TransformerLM, batch: Batch) -> dict[str, Array]:
    """All the probes that cost no more than a step of training each, by name.

    >>> import tinyres as tr
    >>> model = tr.nn.TransformerLM(vocab=5, d_model=8, heads=2, blocks=3, context=4, rng=0)
    >>> report(model, ([[1, 2, 3]], [[2, 3, 4]]))["stream_rms"].shape
    (4,)
    """
    return {probe.__name__: probe(model, batch) for probe in CHEAP}
