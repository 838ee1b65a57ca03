"""Writes docs/ops.md, of every function on every backend: `PYTHONPATH=tests python -m standard.report`.

With the name of a backend that lives elsewhere, and a file, it writes a page on that one alone:
`python -m standard.report mlx contrib/keras-cg-mlx/ops.md`.
"""

import pathlib
import sys

import keras_cg
from keras_cg.namespaces import standard
from standard import comparison
from standard.differences import DIFFERENCES, NO_GRADIENT

BACKENDS = ("jax", "torch", "tensorflow", "numpy")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "ops.md"

INTRO = f"""\
# What is in `keras_cg.ops`

<!-- Made by `nox -s ops`, and compared with a run by tests/test_ops_standard.py. Do not edit. -->

`keras_cg.ops` has the functions of the
[Python array API standard](https://data-apis.org/array-api/{standard.VERSION}/), version {standard.VERSION},
on every backend, with the standard's signatures, and `stop_gradient`. What else the framework's own namespace has
(`jax.numpy`, `array_api_compat.torch`, `tf.experimental.numpy`, `autograd.numpy`) is there under its name, on that
backend.

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

- A number of Python may stand for a tensor. Beside a tensor it has no say in the dtype: float32 stays float32.
- A dtype may be given by its name, as `"float32"`, or as `ops.float32`.
- What NumPy takes by position is taken so, too: `ops.sum(x, 0)`, `ops.zeros((2, 3), "float32")`, `ops.reshape(x, -1)`.
- `ops.stop_gradient(x)` has the values of `x` and no gradient, in any order, inside of a rule and outside.
- What is differentiable is differentiated, also in batches and where `jax.jit`, `torch.compile(fullgraph=True)` and
  `tf.function` compile it. TensorFlow's XLA has no determinants: `linalg.det` and `linalg.slogdet` raise there.

## Traps

- **Default dtypes** are the framework's: `ops.asarray([1.0])` and `ops.ones(3)` are float64 on NumPy and TensorFlow,
  float32 on JAX and torch; `ops.arange(3)` is int32 on JAX, int64 elsewhere. JAX has 64 bits only with
  `jax_enable_x64`. Where it matters, give `dtype`.
- **`bool * float` on TensorFlow** is boolean, in either order: `x * (x > 0)` has lost `x`. Write
  `ops.where(x > 0, x, 0)` or `ops.multiply(x, x > 0)`.
- **Operators are the framework's own**: between two dtypes, `x + y` raises on TensorFlow, and `ops.add(x, y)` promotes.
- **Mixed kinds** are not in the standard: an int32 added to a float32 is float32 on JAX and torch, float64 on NumPy
  and, by `ops.add`, on TensorFlow; `ops.mean` of integers raises on torch.
- **Methods** of tensors are the framework's own (`x.reshape`, `x.astype`): the functions are on every backend.
- **Equal elements**: which of them has the gradient of `max`, `sort` or `maximum`, is the framework's choice.
- **Sizes that follow the data** (`nonzero`, `unique_values`, `repeat` by a tensor) cannot be compiled by JAX.

"""

LEGEND = """\
## Functions

Each is called as the standard writes it: with random arrays of float32, complex64, integers and booleans, with
infinities, NaN and zeros of both signs, with numbers of Python, and with every default by its name. Names, shapes,
dtypes and values are compared with array-api-strict, the standard's reference implementation.

- **same**: as array-api-strict.
- **default dtype**: the same but for the dtype where none is given: of what the framework makes by default.
- A letter stands for what differs, or is refused with an error that names the function and the backend: told below.
"""


def outcomes(backend):
    """The outcome of every function of a backend, by its name."""
    with keras_cg.use_backend(backend):
        return {name: comparison.compare(backend, name)[0] for name in standard.FUNCTIONS}


def row(*cells):
    return f"| {' | '.join(cells)} |"


def marks():
    reasons = dict.fromkeys((*DIFFERENCES.values(), *NO_GRADIENT.values()))
    return {reason: chr(ord("a") + place) for place, reason in enumerate(reasons)}


def cell(backend, name, outcome):
    if outcome == comparison.DIFFERS:
        return f"({marks()[DIFFERENCES[backend, name]]})"
    refused = NO_GRADIENT.get((backend, name))
    return f"{outcome} ({marks()[refused]})" if refused else outcome


def render(found):
    """The page, of the outcomes of each backend."""
    lines = [INTRO + LEGEND]
    for heading, signatures in standard.SECTIONS.items():
        lines += [f"### {heading}", "", row("function", *BACKENDS), "|" + "---|" * (len(BACKENDS) + 1)]
        for signature in signatures:
            name = signature.partition("(")[0]
            cells = [cell(backend, name, found[backend][name]) for backend in BACKENDS]
            lines.append(row(f"`{signature}`", *cells))
        lines.append("")
    lines += ["### Constants and dtypes", "", "On every backend: "]
    lines[-1] += ", ".join(f"`{name}`" for name in (*standard.CONSTANTS, *standard.DTYPES)) + "."
    lines += ["", "### What differs", ""]
    lines += [f"- ({mark}) {reason}." for reason, mark in marks().items()]
    return "\n".join(lines) + "\n"


def column(backend):
    """What the page says of a backend: a cell by the name of each function."""
    place = BACKENDS.index(backend) + 1
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    return {cells[0].strip("`").partition("(")[0]: cells[place] for cells in rows}


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
    sys.exit(f"{path.name} was out of date and is written anew: look at it and commit it." if is_stale else None)


if __name__ == "__main__":
    if sys.argv[1:]:
        write(pathlib.Path(sys.argv[2]), alone(sys.argv[1]))
    write(PAGE, render({backend: outcomes(backend) for backend in BACKENDS}))
