"""What a type checker, and so an editor, knows of code that uses the package.

Nothing here is run: `python -m mypy` reads it together with the package (see pyproject.toml).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import tinyres as tr

if TYPE_CHECKING:
    from typing import Any, assert_type

    from tinyres.arrays import Array
    from tinyres.signatures import Op, ValueAndPullback

    @tr.op
    def cube(x: Array) -> ValueAndPullback:
        return x**3, lambda g: (3 * x**2 * g,)

    def spelled_out(x: tr.Tensor) -> tr.Tensor:
        return x * x * x

    @tr.op(spelled_out=spelled_out)
    def cube_too(x: Array) -> tuple[Array, Any]:
        return x**3, lambda g: (3 * x**2 * g,)

    assert_type(cube, Op)
    assert_type(cube_too, Op)
    x, array = tr.Tensor([1.0]), np.ones(3)

    # Whatever may become an array is taken where a tensor is.
    for given in (x, array, [1.0, 2.0], 3):
        assert_type(cube(given), tr.Tensor)
        assert_type(tr.softmax(given, axis=-1), tr.Tensor)
        assert_type(tr.composed.softmax(given), tr.Tensor)
        assert_type(tr.concatenate([given, x]), tr.Tensor)
        assert_type(tr.dropout(given, 0.5, np.random.default_rng(0)), tr.Tensor)
        assert_type(tr.checkpoint(cube, given), tr.Tensor)
        assert_type(tr.Tensor(given), tr.Tensor)
        assert_type(x + given, tr.Tensor)
        assert_type(x @ given, tr.Tensor)
        assert_type(tr.nn.Linear(2, 3).forward(given), tr.Tensor)
        assert_type(tr.nn.TransformerStack(8, 2, blocks=1).forward(given, mask=given), tr.Tensor)
        x.backward(given)
        x.grad = given
    assert_type(x.grad, npt.NDArray[Any] | None)

    # A module gives a tensor, and a placement of one's own is one line without a cast.
    class Halved(tr.nn.Residual):
        def forward(self, x: tr.Tensor) -> tr.Tensor:
            return x + 0.5 * self.sublayer(self.norm(x))

    model = tr.nn.TransformerLM(10, 8, 2, blocks=2, context=4, placement=Halved)
    assert_type(model([[1, 2]]), tr.Tensor)
    assert_type(model.loss([[1, 2]], np.ones((1, 2), int)), tr.Tensor)
    assert_type(tr.probe.stream_rms(model, ([[1, 2]], [[2, 3]])), npt.NDArray[Any])
