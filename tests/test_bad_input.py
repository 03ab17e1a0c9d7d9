"""Whatever is given: it works, or the error says which argument is wrong, and what came.

Every argument of every public function in turn is replaced by all the strange values of its kind
(`input_kinds.py`). Some must be refused; the others may work, and then the gradient must come back,
too.
"""

from __future__ import annotations

import copy
import inspect
import reprlib
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from input_kinds import KINDS
from input_rows_modules import ROWS
from op_cases import OPS

import tinyres as tr
from tinyres import interop
from tinyres.graph import render
from tinyres.graph.render import Drawing, Pair

REFUSALS = (ValueError, TypeError, IndexError, KeyError, FloatingPointError)
# How messages of NumPy and of Python begin that no function of the package has put into words.
BARE = (
    "operands could not", "setting an array", "could not broadcast", "unsupported operand",
    "cannot reshape", "axis ", "index ", "list index", "tuple index", "loop of ufunc", "ufunc ",
    "could not convert", "float() arg", "int() arg", "only integer", "shapes ", "all the input",
    "'NoneType'", "'str'", "'int'", "'object'", "'float'", "object of type",
)  # fmt: skip


def public() -> set[str]:
    """The names of all public functions and classes, and of the public methods of some."""
    names = set()
    for prefix, module in (("", tr), ("nn.", tr.nn), ("optim.", tr.optim), ("probe.", tr.probe),
                           ("composed.", tr.composed), ("interop.", interop)):  # fmt: skip
        for name, value in vars(module).items():
            if name.startswith("_") or isinstance(value, ModuleType) or not callable(value):
                continue
            own = getattr(value, "__module__", "").startswith("tinyres")
            if prefix in (
                "probe.",
                "composed.",
                "optim.",
                "interop.",
            ):  # these also import for themselves
                own = getattr(value, "__module__", "").startswith(module.__name__)
            names |= {prefix + name} if own else set()
    for kind in (tr.Tensor, tr.nn.Module, tr.optim.Optimizer, tr.nn.TransformerLM,
                 tr.nn.MultiHeadAttention, tr.nn.TransformerStack, Drawing, Pair):  # fmt: skip
        for parent in kind.__mro__:
            whole = kind in (tr.Tensor, Drawing, Pair)
            if parent.__module__.startswith("tinyres") and (kind is parent or whole):
                names |= {
                    f"{kind.__name__}.{name}"
                    for name, value in vars(parent).items()
                    if inspect.isfunction(value) and not name.startswith("_")
                }
    return names


# What is there to be overridden, or is an argument's check and no tool.
NOT_TO_BE_CALLED = {
    "Module.forward", "Optimizer.update", "TransformerLM.forward", "MultiHeadAttention.forward",
    "TransformerStack.forward", "interop.Entry",
    "interop.read_safetensors",  # needs a package; tests/test_interop.py
}  # fmt: skip


def test_every_public_function_has_a_row():
    missing = public() - ROWS.keys() - NOT_TO_BE_CALLED
    assert not missing, f"give these a row in tests/input_rows.py: {sorted(missing)}"


# Arguments without a kind, since they are tried elsewhere or are Python's own.
TRIED_ELSEWHERE = {
    ("nn.ModuleList", "iterable"),  # a list's
    ("save", "state"),  # tests/test_state.py
    ("Tensor.backward", "create_graph"),  # tests/test_tensor.py: it is always refused
}


def public_object(name: str) -> Any:
    places = {"Module": tr.nn, "Optimizer": tr.optim, "TransformerLM": tr.nn, "Drawing": render,
              "Pair": render, "MultiHeadAttention": tr.nn, "TransformerStack": tr.nn}  # fmt: skip
    found = interop if name.startswith("interop.") else places.get(name.split(".")[0], tr)
    for part in name.removeprefix("interop.").split("."):
        found = getattr(found, part)
    return found


def test_every_argument_of_a_public_function_has_a_kind():
    missing = {
        (name, p.name)
        for name in public() - NOT_TO_BE_CALLED
        for p in inspect.signature(public_object(name)).parameters.values()
        # Keywords that are handed on are named in the row, those of placements in that of Residual.
        if p.kind is not p.VAR_KEYWORD and p.name != "self" and p.name not in ROWS[name].args
    }
    assert missing <= TRIED_ELSEWHERE, sorted(missing - TRIED_ELSEWHERE)


def test_every_public_name_is_exported_to_type_checkers():
    for prefix, module in (("", tr), ("nn.", tr.nn), ("probe.", tr.probe)):
        names = {n.removeprefix(prefix) for n in public() if n.startswith(prefix)}
        own = {name for name in names if "." not in name and hasattr(module, name)}
        assert own <= {*module.__all__, "keep_pages", "collect_rarely"} and own


def copied(value: Any) -> Any:
    """Each call gets arguments of its own; the end of a graph can't be copied."""
    return value if isinstance(value, tr.Tensor) and not value.is_leaf else copy.deepcopy(value)


def run(row: Any, **changed: Any) -> Any:
    """The row's function with good arguments but one, and back again where there is a gradient."""
    given = {name: copied(value) for name, (_, value) in row.args.items()} | changed
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty|Degrees of freedom|invalid value|overflow")
        out = row.call(**given)
        if isinstance(out, tr.Tensor) and out.requires_grad:
            inputs = [t for t in given.values() if isinstance(t, tr.Tensor) and t.requires_grad]
            out.backward(np.ones(out.shape))
            assert all(t.grad is None or t.grad.shape == t.shape for t in inputs)
    return out


@pytest.mark.parametrize("name", ROWS)
def test_good_arguments_are_taken(name, tmp_path):
    if name in ("save", "load", "Drawing.render", "Pair.render"):  # test_state, test_graph_render
        return
    run(ROWS[name])


def what_came(value: Any) -> set[str]:
    """Ways of saying what was given."""
    words = {reprlib.repr(value), str(value), type(value).__name__}
    if isinstance(value, type | str):
        words |= {"datetime64"} if value == "M8[s]" else {str(value).split("'")[-2:][0]}
    elif not is_ragged(value):
        words |= {str(np.shape(value)), str(getattr(value, "dtype", words))}
    if isinstance(value, dict):
        words |= {str(list(value))}
    if isinstance(value, list | np.ndarray) and not is_ragged(value) and np.size(value) == 0:
        words |= {"empty"}
    if isinstance(value, bool):
        words |= {str(int(value))}  # which it is, as a number
    if isinstance(value, list | tuple):
        for part in value:
            words |= what_came(part)
    return words | ({"at least one"} if isinstance(value, list | dict) and not value else set())


# Where the argument has another name in the message than in the row.
OTHER_NAMES = {
    "nn.Parameter": ["Tensor"], "checkpoint": ["Tensor"], "gradcheck": ["double"],
    "gelu_exact": ["Tensor", "normal_cdf"],
    **{n: ["TransformerLM", "embedding", "cross_entropy"] for n in ROWS if n.startswith("probe.")},
    **{n: OPS.keys() for n in ROWS
       if n.startswith(("nn.", "TransformerLM.", "MultiHeadAttention.")) or "()" in n},
    **{n: ["Tensor", *OPS] for n in ROWS if n.startswith("TransformerStack.")},
    **{f"interop.BertEncoder{n}": ["BertEncoder", "Embedding", *OPS] for n in ("", "()")},
    "data_parallel": ["mul"],
    "probe.mean_gradients": ["probe: batch"],
    "probe.model_update": ["load_state_dict", "probe: batch"],
    **{n: ["trace"] for n in ("trace_backward", "draw", "draw_pair")},
    **{name: ["shift", "scale", "raise_to"] for name in ROWS if name.startswith("Tensor.__")},
}  # fmt: skip


def is_ragged(value: Any) -> bool:
    try:
        np.shape(value)
    except ValueError:
        return True
    return False


def complaint(error: Exception, name: str, argument: str, value: Any) -> str | None:
    """What is wrong with an error message."""
    text = str(error.args[0]) if error.args else ""
    function = name.split(".")[-1].strip("_()")
    words = {function, argument, *OTHER_NAMES.get(name, ())}
    if name.startswith("composed."):
        words |= OPS.keys()  # it is made of these, and the one that fails says so
    if not isinstance(error, REFUSALS):
        return "is of the wrong type"
    if text.startswith(BARE):
        return "is bare"
    if not any(word in text for word in words):
        return f"names neither {function} nor {argument}"
    if not any(word in text for word in what_came(value)):
        return "does not say what came"
    return None


@pytest.mark.parametrize(
    "name, argument", [(n, a) for n, r in ROWS.items() for a in r.args], ids=str
)
def test_a_strange_argument_works_or_is_explained(name, argument):
    kind = KINDS[ROWS[name].args[argument][0]]
    wrong = []
    for value in (*kind.refused, *kind.either):
        what = f"{name}({argument}={reprlib.repr(value)})"
        try:
            run(ROWS[name], **{argument: value})
        except Exception as error:
            reason = complaint(error, name, argument, value)
            if reason is not None:
                wrong.append(f"{what}: {type(error).__name__} {reason}: {error}")
        else:
            if any(value is v for v in kind.refused):
                wrong.append(f"{what} was taken")
    assert not wrong, "\n".join(wrong)


def test_what_only_some_callers_meet(monkeypatch):
    p = tr.nn.Parameter([1.0])
    p.grad = np.ones(1)
    with pytest.raises(TypeError, match="Optimizer has no update method: write one"):
        tr.optim.Optimizer([p], 0.1).step()
    with pytest.raises(ValueError, match="copy=False away"):
        np.array(tr.Tensor([1.0]), copy=False)
    assert tr.maximum(tr.Tensor(np.arange(3)), 1.5).dtype == np.float32
    assert tr.concatenate([[1, 2], np.float32([0.5])]).dtype == np.float32
    assert tr.add(np.arange(2), 0.5).data.tolist() == [0.5, 1.5]
    model = tr.nn.TransformerEncoderDecoder(5, 4, 2, 1, context=3, rng=0)
    with pytest.raises(ValueError, match=r"must be \(batch, at most 3\), got \(1, 4\)"):
        model([[1, 2, 3, 4]], [[1]])
    # Where the C library is no glibc, memory is left to it.
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert tr.keep_pages() is False
