"""A training step without the interpreter: recorded once as a list of NumPy calls, then played.

A step of a deep, narrow stack is thousands of small NumPy calls, and Python spends as long between
them as NumPy spends in them: it makes tensors, nodes and pullbacks, and walks back over them. But
it does the same in each step. So one step is written down (`tinyres.recorded`), its arrays get
memory that they share (`tinyres.reuse`), and from then on a step is a loop over a list.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tinyres import checked, expect
from tinyres.arrays import CLOCK, Array
from tinyres.context import DRAWN, MODE, note_draws
from tinyres.parallel import batch_arrays
from tinyres.recorded import RECORDING, Diverged, Recorded, Recording, bare
from tinyres.reuse import share_memory
from tinyres.signatures import Arrived
from tinyres.tensor import DELIVER, Tensor

PROGRAMS = 4  # kept at a time, one for each shape of the batch
LONGEST_PAUSE = 32  # steps


class Replay:
    """`backward(*batch)`: the step is recorded once, and then played back.

    `loss` is a function of the arrays in a batch, such as `model.loss`, and `params` are the
    parameters that it uses. The loss and the gradients are those of `loss(*batch).backward()`, to
    the last bit; dropout draws as ever. The first step records. The second is computed both ways
    and compared, and so is the first one whose batch is another; from then on only the recording
    is played.

    It records anew for a batch of another shape, after train(), eval() and whatever else assigns
    an attribute of a module, and when a value on which a decision hangs has changed sides;
    `recordings` says how often. What `loss` takes from elsewhere, such as a list or a global
    variable, must stay as it is.

    >>> from tinyres import nn
    >>> model = nn.TransformerLM(vocab=9, d_model=8, heads=2, blocks=1, context=4, rng=0)
    >>> replay = Replay(model.loss, model.parameters())
    >>> losses = [replay.backward([[1, 2]], [[2, 3]]) for _ in range(3)]
    >>> losses == 3 * [model.loss([[1, 2]], [[2, 3]]).item()], replay.recordings
    (True, 1)
    """

    def __init__(self, loss: Callable[..., Tensor], params: Iterable[Tensor]):
        self._loss = expect.function("Replay: loss", loss)
        self._params = list(dict.fromkeys(checked.tensors("Replay", params)))
        if not any(p.requires_grad for p in self._params):
            raise ValueError("Replay: no tensor among params requires grad")
        self.recordings = 0
        self._programs: dict[Any, Program] = {}  # the one that was used last is the last
        self._pause, self._next_pause = 0, 1
        self._lock = threading.Lock()  # a program has one set of arrays

    def backward(self, *batch: Any) -> float:
        """Do `loss(*batch).backward()`, and return the loss as a number."""
        arrays = batch_arrays("Replay", batch)
        with self._lock:
            loss, arrived = self.step(arrays)
            DELIVER.get()(arrived)
        return loss

    @property
    def program(self) -> Program:
        """What was recorded or played last."""
        if not self._programs:
            raise RuntimeError("Replay: nothing was recorded yet: call backward(*batch) before")
        return next(reversed(self._programs.values()))

    def step(self, batch: list[Array]) -> tuple[float, Arrived]:
        """The loss and the gradients, delivered to nobody; they last until the next step."""
        mode = MODE.get()
        if self._pause or mode.check is not None or not mode.recording:
            self._pause = max(self._pause - 1, 0)
            return _run(self._loss, batch)
        key = (mode, *[(a.shape, a.dtype) for a in batch])
        program = self._programs.pop(key, None)
        if program is None or not program.fits(self._params):
            program, step = _record(self._loss, self._params, batch)
            self.recordings += 1
        else:
            try:
                step = self._played(program, batch)
            except Diverged:
                # Where decisions fall now this way, now that, recording takes longer than it saves.
                self._pause = self._next_pause - 1
                self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
                return _run(self._loss, batch)
        self._programs[key] = program
        if len(self._programs) > PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return step

    def _played(self, program: Program, batch: list[Array]) -> tuple[float, Arrived]:
        """The program's loss and gradients, and on its first steps those of `loss` beside them."""
        if program.trusted:
            return program.play(batch)
        other = program.differs(batch)
        if program.tried and not other:
            return program.play(batch)
        before = program.generator_states()
        loss, arrived = _run(self._loss, batch)
        program.set_generators(before)  # so that it draws the same once more
        _same(loss, arrived, *program.play(batch))
        program.tried, program.trusted = True, other
        return loss, arrived


class Program:
    """What was recorded, ready to be played: NumPy calls on arrays that have their places."""

    def __init__(self, recording: Recording, params: Sequence[Tensor], batch: list[Array],
                 loss: Array, arrived: Arrived, generators: list[np.random.Generator]):  # fmt: skip
        gradients = [bare(g) for _, g, _ in arrived]
        calls, moved, self.places = share_memory(recording, [loss, *gradients])
        self.names = [call.name for call in calls]
        self.turn = recording.turn  # how many calls there are before the way back begins
        # A call with options by name takes longer: they are bound to it once.
        self.calls = [
            (functools.partial(f, **options) if options else f, args) for f, args, options in calls
        ]
        self.batch, self.generators = batch, generators
        self.loss: Array = moved(loss)
        self.gradients = [(node, moved(g)) for (node, _, _), g in zip(arrived, gradients)]
        self.params = [(p._data, p._node) for p in params]
        self.change = CLOCK.last_change
        self.tried = self.trusted = False

    def fits(self, params: Sequence[Tensor]) -> bool:
        """Whether the parameters are the same arrays and no module was changed since."""
        return self.change == CLOCK.last_change and all(
            p._data is data and p._node is node for p, (data, node) in zip(params, self.params)
        )

    def differs(self, batch: list[Array]) -> bool:
        """Whether the batch is another one than last time, in all of its arrays."""
        return not any(np.array_equal(own, new) for own, new in zip(self.batch, batch))

    def play(self, batch: list[Array]) -> tuple[float, Arrived]:
        """Make the calls; the gradients lie in memory that the next step writes into."""
        before = self.generator_states()
        for own, new in zip(self.batch, batch):
            np.copyto(own, new)
        try:
            for function, args in self.calls:
                function(*args)
        except Diverged:
            self.set_generators(before)
            raise
        return self.loss.item(), [(node, g, False) for node, g in self.gradients]

    def generator_states(self) -> list[Any]:
        """Where the random generators stand from which the loss draws."""
        return [rng.bit_generator.state for rng in self.generators]

    def set_generators(self, states: list[Any]) -> None:
        """Set them back."""
        for rng, state in zip(self.generators, states):
            rng.bit_generator.state = state


def _record(
    loss: Callable[..., Tensor], params: Sequence[Tensor], batch: list[Array]
) -> tuple[Program, tuple[float, Arrived]]:
    own = [a.copy() for a in batch]
    recording = Recording()
    drawn: dict[np.random.Generator, Any] = {}
    arrays = [p._data for p in params]
    tokens = RECORDING.set(recording), DRAWN.set(drawn)
    try:
        for p in params:
            p._data = p._data.view(Recorded)
        value, arrived = _value_and_gradients(loss, [a.view(Recorded) for a in own])
    finally:
        RECORDING.reset(tokens[0])
        DRAWN.reset(tokens[1])
        note_draws(drawn)
        for p, array in zip(params, arrays):
            p._data = array
    known = {p._node for p in params}
    if any(node.pullback is None and node not in known for node, _, _ in arrived):
        raise RuntimeError(
            "Replay: loss has a gradient for a tensor that is not among params: give all tensors "
            "that loss uses"
        )
    found = [(node, bare(g), mine) for node, g, mine in arrived if node in known]
    program = Program(recording, params, own, bare(value._data), found, list(drawn))
    return program, (bare(value._data).item(), found)


def _run(loss: Callable[..., Tensor], batch: list[Array]) -> tuple[float, Arrived]:
    """The loss as a number, and the gradients, delivered to nobody yet."""
    value, arrived = _value_and_gradients(loss, batch)
    return value.item(), arrived


def _value_and_gradients(
    loss: Callable[..., Tensor], batch: Sequence[Array]
) -> tuple[Tensor, Arrived]:
    arrived: Arrived = []
    token = DELIVER.set(arrived.extend)
    try:
        value = expect.instance("what loss returns", loss(*batch), Tensor, "a tensor")
        recording = RECORDING.get()
        if recording is None or value.size != 1:  # backward refuses more than one number
            value.backward()
        else:  # recorded from the start, so that all on the way is, even what writes into zeros
            recording.turn = len(recording.calls)
            value.backward(np.ones(value.shape, value.dtype).view(Recorded))
    finally:
        DELIVER.reset(token)
    return value, arrived


def _same(loss: float, arrived: Arrived, played_loss: float, played: Arrived) -> None:
    gradients = {node: g for node, g, _ in arrived}
    same = np.array_equal(loss, played_loss, equal_nan=True) and all(
        node in gradients and np.array_equal(g, gradients[node], equal_nan=True)
        for node, g, _ in played
    )
    if not same:
        raise RuntimeError(
            f"Replay: played back, loss is {played_loss} or has other gradients; computed, it is "
            f"{loss}. It uses numbers that NumPy's calls on the batch and on params don't lead to, "
            "such as np.asarray(x), an array of zeros that is filled in, or a value that changes "
            "from call to call: write np.asanyarray(x) and np.zeros(..., like=x), or do without "
            "Replay"
        )
