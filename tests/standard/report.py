"""Writes docs/ops.md, of every function on every backend: `PYTHONPATH=tests python -m standard.report`.

With the name of a backend that lives elsewhere, and a file, it writes a page on that one alone:
`python -m standard.report mlx contrib/keras-cg-mlx/ops.md`.
"""

import collections
import pathlib
import sys

import keras_cg
from keras_cg.namespaces import standard
from standard import comparison
from standard.differences import DIFFERENCES, NO_GRADIENT

BACKENDS = ("jax", "torch", "tensorflow", "numpy")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "ops.md"

INTRO = f"""\
# Write backend-neutral code

<!-- Made by `nox -s ops`, and compared with a run by tests/namespaces/test_ops_standard.py. Do not edit. -->

`keras_cg.ops` contains the functions of the
[Python array API standard](https://data-apis.org/array-api/{standard.VERSION}/), version {standard.VERSION}, on every
backend. They have the standard's signatures. `ops` also contains
[functions that rules need](#functions-that-rules-need). Code that uses only these functions runs on every backend,
except for the differences below.

On each backend, `ops` also has the other functions of the framework's own namespace (`jax.numpy`,
`array_api_compat.torch`, `tf.experimental.numpy`, `autograd.numpy`). These are not portable. If the framework has a
function in another module, such as `jax.nn.gelu`, `ops.gelu` raises an error that names it.

```python
from keras_cg import grad, ops


def loss(x):
    centred = x - ops.mean(x, axis=0, keepdims=True)
    covariance = ops.matmul(ops.matrix_transpose(centred), centred)
    return ops.linalg.slogdet(covariance + ops.eye(2, dtype="float32")).logabsdet


x = ops.asarray([[1.0, 2.0], [3.0, 5.0], [4.0, 4.0]], dtype="float32")
assert ops.permute_dims(grad(loss)(x), (1, 0)).shape == (2, 3)
assert float(grad(lambda x: x * ops.stop_gradient(x))(3.0)) == 3.0
```

- You may pass a Python number instead of a tensor. A number next to a tensor does not change the dtype: float32 stays
  float32.
- A dtype may be a name, such as `"float32"`, or `ops.float32`.
- Arguments that NumPy accepts by position work by position: `ops.sum(x, 0)`, `ops.zeros((2, 3), "float32")`,
  `ops.reshape(x, -1)`.
- The differentiable functions have gradients, also in batches and in compiled code (`jax.jit`,
  `torch.compile(fullgraph=True)`, `tf.function`). XLA on TensorFlow has no determinants, so `linalg.det` and
  `linalg.slogdet` raise there.

## Functions that rules need

These are beyond the standard, and on every backend. The [reference](reference/ops.md) has their formulas.

| function | what it computes |
|---|---|
| `stop_gradient(x)` | `x`, and blocks gradients through it, in any order, inside and outside of a rule |
| `sum_to(gradient, like)` | the gradient of an argument that was broadcast, in the shape of that argument |
| `sigmoid(x)`, `softplus(x)`, `relu(x)`, `erf(x)` | the function of each element |
| `softmax(x, axis=-1)`, `log_softmax(x, axis=-1)` | the softmax along an axis, and its logarithm |
| `logsumexp(x, axis=None, keepdims=False)` | the logarithm of a sum of exponentials |

- Each is the framework's own, and right in every order for numbers of any size, at infinity, too. But `softmax`,
  `log_softmax` and the gradient of `logsumexp` are NaN where an element is infinity, or all are minus infinity, as in
  each framework. [`recipes.log_sum_exp`](recipes.md#log_sum_exp) has gradients there, and a mask.
- Integers are computed in the framework's default floating dtype. `relu` keeps them. Half precision keeps its dtype.
- On NumPy they are composed of `autograd.numpy`, and need no SciPy. `erf` calls `math.erf` for each element there.

```python
import keras_cg


@keras_cg.custom_gradient
def affine(x, b):
    return x + b, lambda upstream: (ops.sum_to(upstream, x), ops.sum_to(upstream, b))


assert affine(x, ops.asarray([1.0, 2.0], dtype="float32")).shape == (3, 2)
assert float(grad(affine, 1)(x, 2.0)) == 6.0
assert float(grad(ops.softplus)(1e4)) == 1.0
```

## Traps

- **Default dtypes depend on the framework.** `ops.asarray([1.0])` and `ops.ones(3)` are float64 on NumPy and
  TensorFlow, and float32 on JAX and torch. `ops.arange(3)` is int32 on JAX and int64 elsewhere. JAX has 64-bit dtypes
  only with `jax_enable_x64`. Pass `dtype` where it matters.
- **`bool * float` on TensorFlow is boolean**, in either order. `x * (x > 0)` loses the values of `x`. Write
  `ops.where(x > 0, x, 0)` or `ops.multiply(x, x > 0)`.
- **Operators belong to the framework.** With two dtypes, `x + y` raises on TensorFlow. `ops.add(x, y)` promotes.
- **The standard does not define mixed kinds of dtypes.** An int32 plus a float32 is float32 on JAX and torch, and
  float64 on NumPy. On TensorFlow, `ops.add` gives float64. `ops.mean` of integers raises on torch.
- **Methods belong to the framework**, such as `x.reshape` and `x.astype`. The functions of `ops` are on every backend.
- **Equal elements:** the framework chooses which of them gets the gradient of `max`, `sort` or `maximum`.
- **Sizes that depend on the data:** JAX cannot compile `nonzero`, `unique_values`, or `repeat` with a tensor.

"""

LEGEND = """\
## What differs

Tests call each function as the standard writes it: with random arrays of float32, complex64, integers and booleans,
with infinities, NaN and zeros of both signs, with Python numbers, and with every default by name. They compare names,
shapes, dtypes and values with array-api-strict, the standard's reference implementation.

- **same**: like array-api-strict.
- **default dtype**: like array-api-strict, but in the framework's default dtype if you pass none.
- A function without a gradient raises an error that names the function and the backend.
"""

SUITE = """
## The standard's own tests

`nox -s standard -- PATH` runs [array-api-tests](https://github.com/data-apis/array-api-tests), 8 examples for each
test, on `keras_cg.ops` and on the namespace under it. What comes out different is tried again with 100 examples.

- NumPy, JAX and PyTorch: `ops` fails no test that `numpy`, `jax.numpy` or `array_api_compat.torch` passes.
- TensorFlow: the suite does not start on `tf.experimental.numpy`. On `ops`, 1,143 tests pass and {count} fail. Most
  fail because of TensorFlow's tensors: `x.shape` is not a tuple, `x + y` does not promote, and there are no in-place
  operators, `x[i] = y`, `x.T`, `x.mT`, `x.size` or `x.to_device`. The suite also passes integers that do not fit. The
  failing tests, with their number of cases if there are several:

{names}
"""


def failing():
    """The tests of the suite that fail on TensorFlow, file by file."""
    lines = pathlib.Path(__file__).with_name("tensorflow_failures.txt").read_text("utf-8").splitlines()
    counts = collections.Counter(line.partition("[")[0] for line in lines)
    files = {}
    for name, count in sorted(counts.items()):
        file, _, test = name.partition("::")
        files.setdefault(file, []).append(f"`{test}`" + (f" ({count})" if count > 1 else ""))
    return SUITE.format(
        count=len(lines), names="\n".join(f"- {file}: {', '.join(tests)}" for file, tests in files.items())
    )


def outcomes(backend):
    """The outcome of every function of a backend, by its name."""
    with keras_cg.use_backend(backend):
        return {name: comparison.compare(backend, name)[0] for name in standard.FUNCTIONS}


def row(*cells):
    return f"| {' | '.join(cells)} |"


def cell(backend, name, outcome):
    if outcome == comparison.DIFFERS:
        return DIFFERENCES[backend, name]
    refused = NO_GRADIENT.get((backend, name))
    return f"{outcome}; {refused}" if refused else outcome


def link(name):
    """The name of a function, with its page in the standard."""
    part = "extensions" if "." in name else "API_specification"
    return f"[`{name}`](https://data-apis.org/array-api/{standard.VERSION}/{part}/generated/array_api.{name}.html)"


def render(found):
    """The page, of the outcomes of each backend."""
    cells = {name: [cell(each, name, found[each][name]) for each in BACKENDS] for name in standard.FUNCTIONS}
    differing = {name for name, row_of in cells.items() if set(row_of) != {comparison.SAME}}
    lines = [INTRO + LEGEND, row("function", *BACKENDS), "|" + "---|" * (len(BACKENDS) + 1)]
    lines += [row(link(name), *cells[name]) for name in standard.FUNCTIONS if name in differing]
    lines += ["", "## The same on every backend", "", "Each name links to the standard."]
    for heading, signatures in standard.SECTIONS.items():
        names = [signature.partition("(")[0] for signature in signatures]
        lines += ["", f"**{heading}:**", ",\n".join(link(name) for name in names if name not in differing) + "."]
    lines += ["", "**Constants and dtypes:**"]
    lines[-1] += " " + ", ".join(f"`{name}`" for name in (*standard.CONSTANTS, *standard.DTYPES)) + "."
    return "\n".join(lines) + "\n" + failing()


def column(backend):
    """What the page says of a backend: a cell by the name of each function."""
    place = BACKENDS.index(backend) + 1
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| [`")]
    differing = {cells[0].split("`")[1]: cells[place] for cells in rows}
    return dict.fromkeys(standard.FUNCTIONS, comparison.SAME) | differing


def alone(backend):
    """The page on one backend: what is as the standard says, and what comes instead where it is not."""
    with keras_cg.use_backend(backend):
        found = {name: comparison.compare(backend, name) for name in standard.FUNCTIONS}
    lines = [
        f"# What is in `keras_cg.ops` on {backend}",
        "",
        "<!-- Made by `python -m standard.report`. Do not edit. -->",
    ]
    for outcome in (comparison.SAME, comparison.DEFAULT, comparison.REFUSED):
        names = [f"`{name}`" for name, (came, _) in found.items() if came == outcome]
        lines += ["", f"**{outcome}** ({len(names)}): {', '.join(names)}."] if names else []
    differing = {name: differences for name, (came, differences) in found.items() if came == comparison.DIFFERS}
    missing = [name for name, differences in differing.items() if "AttributeError" in str([*differences])]
    lines += ["", f"**missing** ({len(missing)}): {', '.join(f'`{name}`' for name in missing)}."]
    others = {name: each for name, each in differing.items() if name not in missing}
    lines += ["", f"**{comparison.DIFFERS}** ({len(others)}), for one of the calls that the standard allows:", ""]
    lines += [
        f"- `{name}` {next(iter(each)).splitlines()[0].split('. The ')[0][:100]}" for name, each in others.items()
    ]
    return "\n".join(lines) + "\n"


def write(path, page):
    """Writes a page; ends with a word if it was another one."""
    is_stale = not path.exists() or path.read_text("utf-8") != page
    path.write_text(page, encoding="utf-8")
    sys.exit(f"{path.name} was out of date and was written again: look at it and commit it." if is_stale else None)


if __name__ == "__main__":
    if sys.argv[1:]:
        write(pathlib.Path(sys.argv[2]), alone(sys.argv[1]))
    write(PAGE, render({backend: outcomes(backend) for backend in BACKENDS}))
