"""Module: parameters and modules inside modules, found by looking at the attributes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy.typing as npt

from tinyres import expect
from tinyres.arrays import CLOCK, Array, as_array, note_write
from tinyres.context import EVALUATED, SCOPE, Scope
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor


class Parameter(Tensor):
    """A tensor that a module learns.

    >>> Parameter([1.0, 2.0])
    Parameter([1. 2.], requires_grad=True)
    """

    __slots__ = ()
    _kind = "parameter"

    def __init__(
        self,
        data: Tensor | ArrayLike,
        *,
        requires_grad: bool = True,
        dtype: npt.DTypeLike | None = None,
    ):
        super().__init__(data, requires_grad=requires_grad, dtype=dtype)


class Module:
    """A function with parameters. Assign parameters and modules to attributes, write `forward`.

    Attributes may also be lists, tuples and dicts of them. Nothing has to be registered.

    >>> class Affine(Module):
    ...     def __init__(self):
    ...         self.gain, self.offset = Parameter([2.0]), Parameter([1.0])
    ...     def forward(self, x):
    ...         return self.gain * x + self.offset
    >>> Affine()(3.0)
    Tensor([7.], op='add')
    """

    # For drawings: the depth up to which this is one node (-1: never, None: one more than the
    # module around it), and which colour it has ("attention", "feed-forward", "norm" or none).
    level: ClassVar[int | None] = None
    role: ClassVar[str] = ""
    training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every module writes its own."""
        raise TypeError(f"{type(self).__name__} has no forward method: write one")

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        token = SCOPE.set(Scope(type(self).__name__, self.level, owner=self))
        try:
            # Few modules return anything else: placements that carry several streams.
            output: Tensor = self.forward(*args, **kwargs)
            return output
        finally:
            SCOPE.reset(token)

    def __setattr__(self, name: str, value: Any) -> None:
        learned = isinstance(vars(self).get(name), Parameter)
        if learned and not (value is None or isinstance(value, Tensor)):
            raise TypeError(
                f"{type(self).__name__}.{name} is a Parameter, and would no longer be learned: "
                f"write new values into it (.{name}.data = ...), or assign a Parameter or None, "
                f"got {expect.shown(value)}"
            )
        if name == "training":
            _note_training(self, value)
        elif name in vars(self) or hasattr(type(self), name):  # not while a module is made
            CLOCK.note_module_change()
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        CLOCK.note_module_change()
        super().__delattr__(name)

    # ---- what is inside

    def members(self) -> Iterator[tuple[str, Parameter | Module]]:
        """The parameters and modules that are attributes of this one, with their names.

        >>> [name for name, _ in Sequential(Module(), Module()).members()]
        ['layers.0', 'layers.1']
        """
        for name, value in vars(self).items():
            yield from _found(name, value)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all inside it, each once."""
        seen: set[int] = set()
        waiting: list[tuple[str, Module]] = [(prefix, self)]
        while waiting:
            path, module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            inside = [(n, m) for n, m in module.members() if isinstance(m, Module)]
            waiting += [(f"{path}.{n}" if path else n, m) for n, m in reversed(inside)]

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their paths; one that is used in two places comes once."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, value in module.members():
                if isinstance(value, Parameter) and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def modules(self) -> Iterator[Module]:
        """This module and all inside it."""
        return (module for _, module in self.named_modules())

    def parameters(self) -> list[Parameter]:
        """All parameters, a tied one once."""
        return [parameter for _, parameter in self.named_parameters()]

    def num_parameters(self) -> int:
        """How many numbers the module learns."""
        return sum(p.size for p in self.parameters())

    # ---- what is done to all of it

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters():
            p.grad = None

    def train(self, mode: bool = True) -> Module:
        """Switch dropout on (or off) in all modules inside."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Switch dropout off."""
        return self.train(False)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Without dropout for a while; afterwards each module is in the mode in which it was."""
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training

    def astype(self, dtype: npt.DTypeLike) -> Module:
        """Compute in another float dtype: float64 to check gradients, float32 to train."""
        dtype = expect.dtype("astype", dtype, "f")
        for p in self.parameters():
            learned = p.requires_grad
            p._data, p._node = p._data.astype(dtype), None
            p.requires_grad = learned
        return self

    # ---- state

    def state_dict(self) -> dict[str, Array]:
        """A copy of every parameter by its path."""
        return {name: p.data.copy() for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Tensor | ArrayLike]) -> None:
        """Write the given values into the parameters; all are checked before the first is written.

        Raises KeyError for missing or surplus names and ValueError for a wrong shape.
        """
        expect.instance("load_state_dict: state", state, Mapping, "a dict of arrays by name")
        own = dict(self.named_parameters())
        missing, surplus = own.keys() - state.keys(), state.keys() - own.keys()
        if missing or surplus:
            raise KeyError(f"load_state_dict: missing {sorted(missing)}, surplus {sorted(surplus)}")
        arrays = {name: as_array(state[name], what=f"load_state_dict: {name}") for name in own}
        for name, p in own.items():
            if arrays[name].shape != p.shape:
                raise ValueError(
                    f"load_state_dict: {name} must have shape {p.shape}, got {arrays[name].shape}"
                )
        for name, p in own.items():
            p.data[...] = arrays[name]
            note_write(p.data)

    # ---- text

    def extra(self) -> str:
        """A few words for the repr and for drawings, such as "32 > 128"."""
        return ""

    def __repr__(self) -> str:
        return "\n".join(_tree(self))


def _note_training(module: Module, training: bool) -> None:
    """Keep the list of modules that are evaluated, by which `Replay` knows a model's state."""
    if (module in EVALUATED) is module.training:  # a copy, which nobody has noted
        CLOCK.note_module_change()
    if training:
        EVALUATED.discard(module)
    else:
        EVALUATED.add(module)


def _found(name: str, value: Any) -> Iterator[tuple[str, Parameter | Module]]:
    if isinstance(value, Parameter | Module):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _found(f"{name}.{key}", item)


def _tree(module: Module, above: frozenset[int] = frozenset()) -> list[str]:
    """What a module is, and below it what it holds; equal ones in a row of a list stand once."""
    extra = f"({module.extra()})" if module.extra() else ""
    lines = [f"{type(module).__name__}{extra}  [{_count(module.num_parameters())}]"]
    above |= {id(module)}  # a child may know its parent
    inside = [(name, m) for name, m in module.members() if id(m) not in above]
    if any(isinstance(m, Module) for _, m in inside):  # a layer's own weights go without saying

        def looks(numbered: tuple[int, tuple[str, Parameter | Module]]) -> tuple[Any, list[str]]:
            i, (name, value) = numbered
            shown = _tree(value, above) if isinstance(value, Module) else [_weight(value)]
            row, _, n = name.rpartition(".")
            return (row, int(n) - i) if row and n.isdigit() else name, shown

        for (_, (head, *rest)), group in itertools.groupby(enumerate(inside), looks):
            names = [name for _, (name, _) in group]
            if len(names) > 1:
                head = f"{len(names)} x {head[:-1]} each]"
                names = [f"{names[0]} to {names[-1]}"]
            lines += [f"  {names[0]}: {head}", *(f"  {line}" for line in rest)]
    return lines


def _weight(parameter: Parameter) -> str:
    return f"{type(parameter).__name__} {parameter.shape}  [{_count(parameter.size)}]"


def _count(numbers: int) -> str:
    return f"{numbers:,} parameter{'' if numbers == 1 else 's'}"


class Sequential(Module):
    """Modules (or functions) one after the other.

    >>> Sequential(lambda x: x + 1.0, lambda x: x * 2.0)(Tensor([1.0]))
    Tensor([4.])
    """

    level = -1

    def __init__(self, *layers: Callable[..., Any]):
        self.layers = [expect.function("Sequential: a layer", layer) for layer in layers]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Callable[..., Any]:
        return self.layers[index]

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class ModuleList(list[Any]):
    """A list of modules. A plain list does as well; the name is here for users of PyTorch.

    >>> len(ModuleList([Module(), Module()]))
    2
    """
