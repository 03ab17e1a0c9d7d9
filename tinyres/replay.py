"""A training step without tensors and pullbacks: NumPy calls, recorded once and then played.

A step of a deep, narrow stack is thousands of small NumPy calls, and Python spends as long between
them as NumPy spends in them: it makes tensors, nodes and pullbacks, and walks back over them. But
it does the same in each step. So one step is written down (`tinyres.recorded`), its arrays get
memory that they share (`tinyres.reuse`), and from then on a step is a loop over a list.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tinyres import checked, expect
from tinyres.arrays import CLOCK, Array
from tinyres.context import DRAWN, EVALUATED, MODE, note_draws
from tinyres.parallel import batch_arrays
from tinyres.recorded import RECORDING, Diverged, Recorded, Recording, bare
from tinyres.reuse import share_memory
from tinyres.signatures import Arrived
from tinyres.tensor import DELIVER, Node, Tensor

PROGRAMS = 8  # kept at a time, one for each shape of the batch
IDLE = 100  # steps after which a program makes room for another one
LONGEST_PAUSE = 128  # steps, some ten times what it takes to record one
USEFUL = 32  # steps after which a program has saved about what it took to record it
COMPARED = {0, 10, 100, 1_000, 10_000, 100_000}  # the step after so many is computed, too
# Recording puts other arrays into the parameters, which several threads may share.
ONE_AT_A_TIME = threading.Lock()

Step = tuple[float, Arrived]  # the loss, and the gradients on their way


class Replay:
    """`backward(*batch)`: the step is recorded once, and then played back.

    `loss` is a function of the arrays in a batch, such as `model.loss`, and `params` are the
    parameters that it uses. The loss and the gradients are those of `loss(*batch).backward()`, to
    the last bit; dropout draws as ever. The step is computed, too, and compared, when it is
    recorded, in the next step, when an array of the batch or the parameters are others for the
    first time, and after 10, 100, 1,000 and more steps: a difference is a RuntimeError.

    When it records, `loss` runs twice, and all arrays of the step are in memory at the same time;
    that takes as long as some fifteen steps. It records for each shape of the batch, up to eight of
    them, for train() and for eval(), anew whenever something else assigns an attribute of a module,
    and when a value on which a decision or a shape hangs is another one; `recordings` says how
    often, and where that is in many steps it takes longer than it saves. Played back, no other
    Python code in `loss` runs, and what that takes from elsewhere, such as a list, a global
    variable or a random number of its own, must stay as it is: give what changes to `backward` as
    one more array.

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
        if not all(p.is_leaf for p in self._params):
            raise ValueError("Replay: a tensor among params was made by an op: pass leaves")
        self.recordings = 0
        self._programs: dict[Any, Program] = {}  # the one that was used last is the last
        self._latest: Program | None = None
        self._pause, self._next_pause = 0, 1
        self._steps = 0
        self._lock = threading.Lock()  # a program has one set of arrays

    def __repr__(self) -> str:
        kept, pause = len(self._programs), self._pause
        return f"Replay(recordings={self.recordings}, programs={kept}, pause={pause})"

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
        if self._latest is None:
            raise RuntimeError("Replay: nothing was recorded yet: call backward(*batch) before")
        return self._latest

    def step(self, batch: list[Array]) -> Step:
        """The loss and the gradients, delivered to nobody; they last until the next step."""
        if self._pause:
            self._pause -= 1
            return _computed(self._loss, batch)
        self._steps += 1
        shapes = [(a.shape, a.dtype, a.flags.fnc) for a in batch]
        key = (MODE.get(), frozenset(map(id, EVALUATED)), *shapes)
        program = self._programs.pop(key, None)
        if program is None and not self._room():
            return _computed(self._loss, batch)
        if program is None:
            program, step = self._recorded(batch)
        else:
            try:
                step = program.checked(self._loss, self._params, batch)
            except Diverged:
                self._take_a_pause(program)
                return _computed(self._loss, batch)
        self._programs[key] = self._latest = program
        program.last_step = self._steps
        return step

    def _room(self) -> bool:
        """Whether one more program can be kept; one that was idle for long is forgotten."""
        if len(self._programs) < PROGRAMS:
            return True
        oldest = next(iter(self._programs))
        if self._steps - self._programs[oldest].last_step <= IDLE:
            return False
        del self._programs[oldest]
        return True

    def _recorded(self, batch: list[Array]) -> tuple[Program, Step]:
        """A new program, and the step as it was computed."""
        drawn: dict[np.random.Generator, Any] = {}
        token = DRAWN.set(drawn)
        try:
            step = _computed(self._loss, batch)
        finally:
            DRAWN.reset(token)
        note_draws(drawn)
        _set_back(drawn)
        with ONE_AT_A_TIME:
            program, again = _record(self._loss, self._params, batch, list(drawn))
        _same(step, again)
        self.recordings += 1
        return program, step

    def _take_a_pause(self, program: Program) -> None:
        """Compute some steps: where a decision falls now this way, now that, to record costs more
        than is saved. The pauses grow, unless the program was of use for long."""
        self._next_pause = 1 if program.played > USEFUL else self._next_pause
        self._pause = self._next_pause - 1
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)


class Program:
    """What was recorded, ready to be played: NumPy calls on arrays that have their places."""

    def __init__(self, recording: Recording, params: Sequence[Tensor], batch: list[Array],
                 generators: list[np.random.Generator], loss: Array, arrived: Arrived):  # fmt: skip
        calls, moved, self.places = share_memory(recording, [loss, *[g for _, g, _ in arrived]])
        self.names = [call.name for call in calls]
        self.turn = recording.turn  # how many calls there are before the way back begins
        # A call with options by name takes longer: they are bound to it once.
        self.calls = [
            (functools.partial(f, **options) if options else f, args) for f, args, options in calls
        ]
        self.batch, self.generators = batch, generators
        self.loss: Array = moved(loss)
        self.gradients = [(node, moved(g)) for node, g, _ in arrived]
        self.params = [(p._data, p._node) for p in params]
        self.module_change = CLOCK.last_module_change
        self.played = self.last_step = 0
        self.unseen = set(range(len(batch)))  # arrays of the batch that were always the same
        self.last_write: int | None = CLOCK.last_write  # None: parameters were others since

    def fits(self, params: Sequence[Tensor]) -> bool:
        """Whether the parameters are the same arrays and no module was changed since."""
        return self.module_change == CLOCK.last_module_change and all(
            p._data is data and p._node is node for p, (data, node) in zip(params, self.params)
        )

    def checked(
        self, loss: Callable[..., Tensor], params: Sequence[Tensor], batch: list[Array]
    ) -> Step:
        """Play it, and compare with the step as it is computed where that can tell something."""
        if not self.fits(params):
            raise Diverged
        new_params = self.last_write not in (None, CLOCK.last_write)
        new_arrays = {i for i in self.unseen if not np.array_equal(self.batch[i], batch[i])}
        self.last_write = None if new_params else self.last_write
        self.unseen -= new_arrays
        if not new_params and not new_arrays and self.played not in COMPARED:
            return self.play(batch)
        before = self.generator_states()
        step = _computed(loss, batch)
        _set_back(before)  # so that it draws the same once more
        _same(step, self.play(batch))
        return step

    def play(self, batch: list[Array]) -> Step:
        """Make the calls; the gradients lie in memory that the next step writes into."""
        before = self.generator_states()
        for own, new in zip(self.batch, batch):
            np.copyto(own, new)
        try:
            for function, args in self.calls:
                function(*args)
        except Exception as error:  # which loss will raise itself if it is not one of playing
            _set_back(before)
            raise Diverged from error
        note_draws(before)
        self.played += 1
        return self.loss.item(), [(node, g, False) for node, g in self.gradients]

    def generator_states(self) -> dict[np.random.Generator, Any]:
        """The random generators from which the loss draws, each with its state."""
        return {rng: rng.bit_generator.state for rng in self.generators}


def _set_back(states: dict[np.random.Generator, Any]) -> None:
    for rng, state in states.items():
        rng.bit_generator.state = state


def _record(
    loss: Callable[..., Tensor],
    params: Sequence[Tensor],
    batch: list[Array],
    generators: list[np.random.Generator],
) -> tuple[Program, Step]:
    own = [a.copy(order="K") for a in batch]
    change = CLOCK.last_module_change
    with _written_down(params) as recording:
        value, arrived = _value_and_gradients(loss, [a.view(Recorded) for a in own])
    if change != CLOCK.last_module_change:
        raise RuntimeError(
            "Replay: loss assigns an attribute of a module, which would not happen when it is "
            "played back: return it, or do without Replay"
        )
    known = {p._node for p in params}
    if any(node not in known for node, _, _ in arrived):
        raise RuntimeError(
            "Replay: loss has a gradient for a tensor that is not among params: give all tensors "
            "that loss uses, and call retain_grad() in a step without Replay"
        )
    of_params = [(node, bare(g), False) for node, g, _ in arrived]
    result = bare(value._data)
    program = Program(recording, params, own, generators, result, of_params)
    return program, (result.item(), of_params)


@contextlib.contextmanager
def _written_down(params: Sequence[Tensor]) -> Iterator[Recording]:
    """While it lasts, what NumPy does with the parameters is noted."""
    recording = Recording()
    arrays = [p._data for p in params]
    token = RECORDING.set(recording)
    try:
        for p in params:
            p._data = p._data.view(Recorded)
        yield recording
    finally:
        RECORDING.reset(token)
        for p, array in zip(params, arrays):
            p._data = array


def _computed(loss: Callable[..., Tensor], batch: list[Array]) -> Step:
    value, arrived = _value_and_gradients(loss, batch)
    return value.item(), arrived


def _value_and_gradients(
    loss: Callable[..., Tensor], batch: Sequence[Array]
) -> tuple[Tensor, Arrived]:
    """The loss and the gradients, delivered to nobody."""
    arrived: Arrived = []
    token = DELIVER.set(_refuse_gradients)
    try:
        value = expect.instance("what loss returns", loss(*batch), Tensor, "a tensor")
        DELIVER.set(arrived.extend)
        recording = RECORDING.get()
        if recording is None or value.size != 1:  # backward refuses more than one number
            value.backward()
        else:
            recording.turn = len(recording.calls)
            # The seed is recorded, so each cotangent that is made of it is, too.
            value.backward(np.ones(value.shape, value.dtype).view(Recorded))
    finally:
        DELIVER.reset(token)
    return value, arrived


def _refuse_gradients(arrived: Arrived) -> None:
    raise RuntimeError("Replay: loss calls backward() itself: do without Replay")


def _same(computed: Step, recorded: Step) -> None:
    """Refuse a recording that does not give what was computed."""
    different = ""
    if not np.array_equal(computed[0], recorded[0], equal_nan=True):
        different = f"the loss is {recorded[0]} instead of {computed[0]}"
    else:
        ours, theirs = _by_leaf(computed[1]), _by_leaf(recorded[1])
        for node in ours.keys() | theirs.keys():
            if node not in ours or node not in theirs:
                different = f"a gradient of shape {node.shape} is there in one of the two only"
            elif not np.array_equal(ours[node], theirs[node], equal_nan=True):
                different = f"a gradient of shape {node.shape} is another one"
    if different:
        raise RuntimeError(
            f"Replay: played back, {different}. Something in loss can't be seen when it is "
            "recorded: np.asarray(x) (write np.asanyarray(x)), an array that np.zeros makes and "
            "that is filled in (np.zeros(..., like=x)), table[x] of a plain table "
            "(np.asarray(table, like=x)[x]); or it changes from call to call, as random numbers or "
            "a weight of the loss do: give that to backward(*batch) as one more array"
        )


def _by_leaf(arrived: Arrived) -> dict[Node, Array]:
    """The gradient of each leaf, which may arrive in several parts."""
    total: dict[Node, Array] = {}
    for node, g, _ in arrived:
        total[node] = total[node] + g if node in total else g
    return total
