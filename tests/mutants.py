"""Break the package in many ways, one at a time, and see that the tests notice.

    python -m tests.mutants             all of them
    python -m tests.mutants ops fused   those of two files

Each mutant is one change in one place (a sign, a term left out, a wrong axis, a missing sum over
what was broadcast) in a scratch copy, on which the tests of that file are run. A mutant that passes
them all has survived: the tests have a hole.
"""

# ruff: noqa: E501 (the mutants are easier to compare on one line)

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent

# The file, the tests that have to notice, and (what stands there, what is written instead).
MUTANTS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "ops": (
        "test_ops.py test_known_bugs_math.py",
        [
            ("return a + b, lambda g: (g, g)", "return a + b, lambda g: (g, -g)"),
            ("return a - b, lambda g: (g, -g)", "return a - b, lambda g: (g, g)"),
            ("return a * b, lambda g: (g * b, g * a)", "return a * b, lambda g: (g * a, g * b)"),
            ("(g / b, -g * value / b)", "(g / b, g * value / b)"),
            ("(g / b, -g * value / b)", "(g / b, -g * value)"),
            ("a ** np.where(b == 0, 1, b - 1)", "a ** np.where(b == 0, 1, b)"),
            ("np.where(a > 0, value * np.log", "np.where(a > 0, np.log"),
            ("(a == b) * np.result_type(a, b).type(0.5)", "(a == b) * np.result_type(a, b).type(1)"),
            ("(g * share_a, g * (1 - share_a))", "(g * share_a, g * share_a)"),
            (
                "np.where(condition, g, zero), np.where(condition, zero, g)",
                "np.where(condition, zero, g), np.where(condition, g, zero)",
            ),
            ("lambda g: (g * by,)", "lambda g: (g,)"),
            ("return x + by, lambda g: (g,)", "return x - by, lambda g: (g,)"),
            ("exponent - 1 if exponent else 0", "exponent if exponent else 0"),
            ("(g * (exponent * x", "(g * (x"),
            ("return value, lambda g: (g * value,)", "return value, lambda g: (g * x,)"),
            ("return np.log(x), lambda g: (g / x,)", "return np.log(x), lambda g: (g * x,)"),
            ("(g / (2 * value),)", "(g / value,)"),
            ("(g * (1 - value * value),)", "(g * (1 - value),)"),
            ("(g * value * (1 - value),)", "(g * value,)"),
            ("(value > 0).astype", "(value >= 0).astype"),
            ("value = 0.5 * np.tanh(0.5 * x) + 0.5", "value = 0.5 * np.tanh(x) + 0.5"),
            ("if not keepdims:", "if keepdims:"),
            ("_spread(g / count, shape", "_spread(g, shape"),
            ("count = x.size / builtins.max(np.size(value), 1)", "count = x.size"),
            ("_spread(g * 2 / count, x.shape", "_spread(g / count, x.shape"),
            ("centred = x - x.mean(axis=axis, keepdims=True)", "centred = x"),
            ("share = ties / ties.sum(axis=axis, keepdims=True, dtype=x.dtype)", "share = ties"),
            ("unit = x / np.where", "unit = x * np.where"),
            ("ga, gb = g @ columns.swapaxes(-1, -2)", "ga, gb = g @ columns"),
            ("rows.swapaxes(-1, -2) @ g", "g.swapaxes(-1, -2) @ rows"),
            ("return g * b, g * a", "return g * a, g * b"),
            ("lambda g: (g.reshape(before),)", "lambda g: (g.reshape(before, order='F'),)"),
            ("tuple(np.argsort([a % x.ndim for a in axes]))", "tuple(a % x.ndim for a in axes)"),
            ("np.add.at(out, kept, g)", "out[kept] = g"),
            ("np.cumsum([a.shape[axis] for a in arrays])[:-1]", "np.cumsum([1 for a in arrays])[:-1]"),
            ("tuple(np.moveaxis(g, axis, 0))", "tuple(np.moveaxis(g, axis, 0)[::-1])"),
        ],
    ),
    "cotangents": (
        "test_tensor.py test_ops.py",
        [
            ("if h.shape != shape:\n        h = unbroadcast(h, shape)", "if False:\n        pass"),
            ("axis=tuple(range(g.ndim - len(shape)))", "axis=tuple(range(0))"),
            ("shape[i] == 1 != n", "shape[i] == 0"),
            ("g.sum(axis=repeated, keepdims=True)", "g.mean(axis=repeated, keepdims=True)"),
            ("np.zeros(shape, dtype, like=g)", "np.ones(shape, dtype, like=g)"),
            ("if h.dtype not in (dtype, g.dtype):", "if False:"),
            ("h.astype(dtype, copy=False)", "h"),
        ],
    ),
    "tensor": (
        "test_tensor.py test_known_bugs.py",
        [
            ("heappop(waiting)[1]", "waiting.pop()[1]"),
            ("(-source.number, source))", "(source.number, source))"),
            ("np.add(of[source], h, out=of[source])", "np.add(of[source], h, out=h)"),
            ("            elif source in summed:", "            elif True:"),
            ("of[source] = np.asanyarray(of[source] + h)", "of[source] = h"),
            ("g if ours else g.copy()", "g"),
            ("node.pullback, node.inputs, node.attrs, node.scope = _freed, (), None, None", "pass"),
            ("if not retain:", "if retain:"),
            ("if node.keeps_grad:", "if node.pullback is None:"),
            ("if node.number < CLOCK.last_write:", "if False:"),
            ("if node.grad is not None:", "if False:"),
            ("DELIVER.get()(arrived)  #", "arrived and None  #"),
            ("if mode.recording:", "if True:"),
            ("self.keeps_grad = requires_grad and pullback is None", "self.keeps_grad = requires_grad"),
            ("seed.shape != self.shape", "seed.size != self.size"),
            ("if grad is None and self.size != 1:", "if False:"),
            ("if create_graph:", "if False:"),
            ("if value and self._data.dtype.kind != \"f\":", "if False:"),
            ("self._data[...] = value\n        note_write", "self._data[...] = value\n        id"),
            ("self._differentiable().keeps_grad = True", "self._differentiable()"),
        ],
    ),
    "arrays": (
        "test_tensor.py test_known_bugs.py",
        [
            ("return np.array(data, order=\"C\", like=data)", "return data"),
            ("array.astype(np.float32) if python_numbers", "array.astype(np.float64) if python_numbers"),
            ("if array.dtype.kind not in \"biuf\":", "if False:"),
            ("[d for d in dtypes if d.kind == \"f\"] or dtypes", "dtypes"),
            ("if when > number", "if when < number"),
        ],
    ),
    "fused": (
        "test_ops.py test_fused.py test_known_bugs_math.py",
        [
            ("gx = (g @ weight.T)", "gx = (g @ weight.T * 2)"),
            ("return gx, rows.T @ g, None", "return gx, -rows.T @ g, None"),
            ("filled(len(g), 1, g.dtype) @ g\n\n    return y.reshape(*shape", "g[0]\n\n    return y.reshape(*shape"),
            ("        y += bias\n", "        y = y\n"),
            ("y * (g - (g * y).sum(axis=axis, keepdims=True))", "y * g"),
            ("(g * y).sum(axis=axis, keepdims=True)", "(g * y).sum(axis=-1, keepdims=True)"),
            ("g - np.exp(y) * g.sum(axis=axis, keepdims=True)", "g - np.exp(y) * g"),
            ("y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))", "y -= 0"),
            ("x_hat -= (x_hat @ mean_of)[:, None]", "x_hat -= 0"),
            ("x_hat = rows - rows[:, :1]", "x_hat = rows.copy()"),
            ("gx -= x_hat * (g_x_hat @ weighted_mean)[:, None]", "gx -= 0"),
            ("gx -= (g @ weighted_mean)[:, None]", "gx -= 0"),
            ("weighted_mean = mean_of if gamma is None else gamma / d", "weighted_mean = mean_of"),
            ("return gx.reshape(x.shape), ones @ g_x_hat, ones @ g", "return gx.reshape(x.shape), ones @ g, ones @ g"),
            ("gx = x_hat * -(g_x_hat @ weights)[:, None]", "gx = x_hat * (g_x_hat @ weights)[:, None]"),
            ("np.vecdot(rows, rows) / d + float(eps)", "np.vecdot(rows, rows) + float(eps)"),
            ("slope *= 6 * c * 0.044715", "slope *= 2 * c * 0.044715"),
            ("slope *= 1 - half\n", "slope *= half\n"),
            ("slope += half", "slope += 0.5"),
            ("g_bias = None if bias is None else filled(len(rows), 1, g.dtype) @ g_qkv", "g_bias = None"),
            ("rows.T @ g_qkv, g_bias", "rows.T @ qkv, g_bias"),
            ("out[rows] = np.add.reduceat(", "out[rows] = np.maximum.reduceat("),
            ("order = np.argsort(index, axis=None, kind=\"stable\")", "order = np.arange(index.size)"),
            ("out[picked] -= weight[counted, 0]", "out[picked] += weight[counted, 0]"),
            ("weight[counted] = g / count", "weight[counted] = g"),
            ("weight[counted] = g / count", "weight[...] = g / count"),
            ("return x + fx, lambda g: (g, g)", "return x + fx, lambda g: (g, 0 * g)"),
            ("((g * slope) * error, (g * -slope) * error)", "((g * slope) * error, (g * slope) * error)"),
            ("return x * keep, lambda g: (g * keep,)", "return x * keep, lambda g: (g,)"),
        ],
    ),
    "attend": (
        "test_ops.py test_fused.py test_attend.py",
        [
            ("scale = q.shape[-1] ** -0.5", "scale = q.shape[-1] ** -1"),
            ("small = e.max(", "small = True or e.max("),
            ("top[np.isneginf(top)] = 0", "top = top"),
            ("total[total == 0] = 1", "total = total"),
            ("np.divide(mixed, total, out", "np.divide(mixed, total.mean(), out"),
            ("gs -= (ones @ (gT * mixed)) / total", "gs -= 0"),
            ("gs *= e\n", "gs *= 1\n"),
            ("gT *= scale", "gT *= 1"),
            ("gv, add)", "gv, False)"),
            ("gk, add)", "gk, False)"),
            ("late = np.arange(keys)[:, None] > np", "late = np.arange(keys)[:, None] >= np"),
            ("reversed(range(len(ends)))", "range(len(ends))"),
            ("allowed[..., :some, part]", "allowed[..., :some, :size]"),
        ],
    ),
    "normal": (
        "test_ops.py test_known_bugs_math.py",
        [
            ("lambda g: (g * density,)", "lambda g: (g * bell,)"),
            ("np.where(x > 0, 1 - below, below)", "np.where(x > 0, below, below)"),
        ],
    ),
    "checked": (
        "test_fused.py",
        [
            ("np.tri(shape[-2], shape[-1])", "np.tri(shape[-1], shape[-2]).T"),
            ("lower & allowed", "lower | allowed"),
        ],
    ),
    "composed": (
        "test_fused.py",
        [
            ("x - x.max(axis, keepdims=True))", "x)"),
            ("e / e.sum(axis, keepdims=True)", "e / e.sum(-1, keepdims=True)"),
            ("(variance + eps).sqrt()", "variance.sqrt()"),
            ("q.shape[-1] ** -0.5", "k.shape[-2] ** -0.5"),
            ("-log_p.sum() / max(counted.size, 1)", "-log_p.sum()"),
        ],
    ),
    "optim": (
        "test_reference.py test_optim.py test_known_bugs.py test_known_bugs_models.py",
        [
            ("p -= self.lr * buffer", "p += self.lr * buffer"),
            ("buffer *= self.momentum", "buffer *= 1"),
            ("g += self.weight_decay * p\n        buffer", "g -= self.weight_decay * p\n        buffer"),
            ("scratch *= 1 - beta1\n", "scratch *= beta1\n"),
            ("1 / math.sqrt(1 - beta2**step)", "1"),
            ("self.lr / (1 - beta1**step)", "self.lr"),
            ("p *= 1 - self.lr * self.weight_decay", "p *= 1 - self.weight_decay"),
            ("scratch += self.eps", "scratch += 0"),
            ("self.steps[first:last] = [steps + 1] * (last - first)", "pass"),
            ("note_write(self.written.setdefault((first, last), self.data[run]))", "pass"),
            ("if factor < 1:", "if True:"),
            ("(step + 1) / max(warmup, 1)", "step / max(warmup, 1)"),
            ("(1 + math.cos(math.pi * done)) / 2", "(1 + math.cos(math.pi * done))"),
            ("math.sqrt(start / (step + 1))", "start / (step + 1)"),
        ],
    ),
    "nn/layers": (
        "test_nn.py test_known_bugs_math.py",
        [
            ("math.sqrt(6 / (n_in + n_out))", "math.sqrt(6 / n_in)"),
            ("np.ones(d_model, np.float32)) if affine", "np.zeros(d_model, np.float32)) if affine"),
            ("training=self.training", "training=True"),
        ],
    ),
    "nn/residual": (
        "test_nn.py test_placements.py",
        [
            ("return x + self.sublayer(self.norm(x))", "return x + self.sublayer(x)"),
            ("return self.norm(x + self.sublayer(x))", "return x + self.norm(self.sublayer(x))"),
            ("final_norm = True", "final_norm = False"),
        ],
    ),
    "recompute": (
        "test_recompute.py test_replay.py",
        [
            ("rng.bit_generator.state = state\n        return", "pass\n        return"),
            ("if not np.array_equal(y.data, value, equal_nan=True):", "if False:"),
            ("note_draws(drawn)  #", "pass  #"),
        ],
    ),
    "recorded": (
        "test_replay.py",
        [
            ("return NotImplemented  # a tensor", "pass  # a tensor"),
            ("                recording.made_for(function, array)", "                pass"),
            ("recording.made_for(function, *made)", "pass"),
            ("and function not in OUT_BY_NAME", ""),
            ("return recording.note(function, inputs, options)", "return None"),
            ("recording.note(_decide, (bare(self), truth), {})", "pass"),
            ("    elif function not in OF_NO_NUMBERS:  # also", "    elif False:  # also"),
            ("        if function not in OF_NO_NUMBERS:", "        if False:"),
            ("if array.shape != np.shape(value):", "if False:"),
            ('args[0], "unsafe")', "args[0])"),
            ("    def __deepcopy__(self", "    def copy_deeply(self"),
            ("    def __copy__(self", "    def copy_it(self"),
            ("if np.geterr() != self._errors:", "if False:"),
            ("array = base if isinstance(base, np.ndarray) else array", "return array"),
            ("if function is np.matmul and not options and", "if function is np.matmul and"),
            ("    if function in OF_ONE_DTYPE:", "    if True:"),
            ('not options.keys() & {"dtype", "casting"}', "True"),
            ("if any(array.dtype.hasobject for array in arrays):", "if False:"),
            ("not all(isinstance(a, Recorded | None) for a in out)", "False"),
            ("if self.ndim == 0:", "if False:"),
            ("recording.note(_fail_again, (function, args, options), {})", "pass"),
            ("    raise Diverged\n\n\ndef _under", "    return\n\n\ndef _under"),
            ("recording.note(_look_at_the_same, (function, args, options, returned), {})", "pass"),
            ('"flatten", "mean",', '"flatten",'),
            ("if id(owner(a)) not in known]", "if not any(np.may_share_memory(a, b) for b in given)]"),
        ],
    ),
    "reuse": (
        "test_replay.py",
        [
            ("last |= dict.fromkeys(kept & last.keys(), len(used))", "pass"),
            ("            if last[array] == i:", "            if True:"),
            ("if id(whose) not in places:", "if False:"),
            ("+ _address(array) - _address(whose)", ""),
            ("memory, offset, array.strides)", "memory, offset)"),
            ("free[size].pop() if free[size] else end", "end"),
        ],
    ),
    "nn/module": (
        "test_replay.py test_nn.py",
        [
            ("elif name in vars(self) or hasattr(type(self), name):", "elif False:"),
            ("if (module in EVALUATED) is module.training:", "if False:"),
            ("        EVALUATED.add(module)", "        pass"),
            ("        CLOCK.note_module_change()\n        super().__delattr__", "        super().__delattr__"),
        ],
    ),
    "replay": (
        "test_replay.py",
        [
            ("if not self.fits(params):", "if False:"),
            ("self.module_change == CLOCK.last_module_change and ", ""),
            ("p._data is data and p._node is node", "p._data is data"),
            ("p._data is data and p._node is node", "p._node is node"),
            ("key = (MODE.get(), frozenset", "key = (1, frozenset"),
            ("frozenset(map(id, EVALUATED))", "0"),
            ("self._pause = self._next_pause - 1", "self._pause = 0"),
            ("        _set_back(before)  #", "        pass  #"),
            ("            _set_back(before)\n            raise", "            raise"),
            ("        _set_back(drawn)", "        pass"),
            ("_same(step, self.play(batch))", "self.play(batch)"),
            ("        _same(step, again)", "        pass"),
            ("if not new_params and not new_arrays and self", "if self"),
            ("COMPARED = {0, 10,", "COMPARED = {10,"),
            ("new_params = self.last_write not in (None, CLOCK.last_write)", "new_params = False"),
            ("self.played not in COMPARED", "self.played"),
            ("raise Diverged from error", "raise"),
            ("if change != CLOCK.last_module_change:", "if False:"),
            ("token = DELIVER.set(_refuse_gradients)", "token = DELIVER.set(arrived.extend)"),
            ('copy(order="K")', "copy()"),
            ("a.flags.fnc)", "0)"),
            ("if len(self._programs) < PROGRAMS:", "if True:"),
            ("- self._programs[oldest].last_step <= IDLE:", "< 0:"),
            ("            p._data = array", "            pass"),
            ("[(node, g, False) for node, g in self.gradients]", "[(node, g, True) for node, g in self.gradients]"),
            ("if any(node not in known for", "if any(False for"),
            ("if not all(p.is_leaf for p", "if not all(True for p"),
            (".view(Recorded))\n    finally", ")\n    finally"),
            ("        with ONE_AT_A_TIME:", "        if True:"),
            ("if node not in ours or node not in theirs:", "if node not in theirs:"),
        ],
    ),
    "state": (
        "test_state.py",
        [
            ("os.replace(aside, path)", "shutil_copy = path.write_bytes(aside.read_bytes())"),
            ("if tree[\"format\"] != FORMAT:", "if False:"),
            ("np.load(file, allow_pickle=False)", "np.load(file, allow_pickle=True)"),
            ("aside.unlink()", "pass"),
        ],
    ),
    "checks": (
        "test_checks.py",
        [
            ("(above - below) / (2 * eps)", "(above - below) / eps"),
            ("t.data[where] = before - eps", "pass"),
            ("np.isfinite(array).all()", "True"),
        ],
    ),
    "context": (
        "test_known_bugs_models.py",
        [
            ("MODE.reset(token)", "pass"),
            ("return switched(recording=False)", "return switched(recording=True)"),
        ],
    ),
}  # fmt: skip


def environment(copy: Path) -> dict[str, str]:
    """The tests' environment, in which `import tinyres` finds the copy."""
    return {**os.environ, "PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1"}


def survives(copy: Path, part: str) -> bool:
    """Whether all the tests of a file pass."""
    tests, _ = MUTANTS[part]
    files = [f"tests/{name}" for name in tests.split()]
    files.append(f"tinyres/{part}.py")  # its examples
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *files],
            cwd=copy, env=environment(copy), capture_output=True, timeout=600,
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # one that never ends is noticed, too
        return False
    return done.returncode == 0


def scratch_copy(folder: Path) -> Path:
    """The package and its tests, to be broken."""
    folder.mkdir()
    for name in ("tinyres", "tests", "demos"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def check_that_all_apply(parts: list[str]) -> None:
    """The code moves on: a mutant of a line that is gone would be noticed by nobody."""
    stale = [
        f"{part}: no such code any more, mend the mutant: {old!r}"
        for part in parts
        for old, _ in MUTANTS[part][1]
        if old not in (ROOT / "tinyres" / f"{part}.py").read_text(encoding="utf-8")
    ]
    if stale:
        raise SystemExit("\n".join(stale))


def main(parts: list[str]) -> int:
    start = time.monotonic()
    check_that_all_apply(parts)
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        idle: queue.Queue[Path] = queue.Queue()
        for i in range(workers):
            idle.put(scratch_copy(Path(folder) / str(i)))

        def attempt(part: str, change: tuple[str, str] | None) -> bool:
            """Whether the tests pass with this change in a copy that no other worker uses."""
            copy = idle.get()
            file = copy / "tinyres" / f"{part}.py"
            whole = file.read_text(encoding="utf-8")
            try:
                if change is not None:
                    file.write_text(whole.replace(*change, 1), encoding="utf-8")
                return survives(copy, part)
            finally:
                file.write_text(whole, encoding="utf-8")
                idle.put(copy)

        sound = list(pool.map(lambda part: attempt(part, None), parts))
        failing = [MUTANTS[part][0] for part, passed in zip(parts, sound) if not passed]
        if failing:
            raise SystemExit(f"these fail without any mutant, mend that first: {failing}")
        mutants = [(part, change) for part in parts for change in MUTANTS[part][1]]
        survived = list(pool.map(lambda mutant: attempt(*mutant), mutants))
    for (part, (old, new)), alive in zip(mutants, survived):
        if alive:
            print(f"survived: {part}: {old!r} -> {new!r}")
    noticed = len(mutants) - sum(survived)
    print(f"{noticed} of {len(mutants)} mutants noticed in {time.monotonic() - start:.0f} s")
    return noticed != len(mutants)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or list(MUTANTS)))
