"""Trains a network with 2-bit weights and 2-bit activations on handwritten digits, on any backend.

Rounding has the gradient zero, so a network that rounds its weights cannot be trained by plain
differentiation. The straight-through estimator (Bengio et al., 2013, arXiv:1308.3432) replaces the
gradient of rounding by 1; here it is a few lines with `keras_cg.custom_gradient`. The script trains the same
network three times, from the same weights and on the same batches:

  1. rounded to 2 bits, with the straight-through gradient;
  2. rounded to 2 bits, with rounding's own gradient, which teaches it nothing;
  3. not rounded at all.

The images are scikit-learn's bundled digits: 1,797 of 8 x 8 pixels. Nothing here names a framework.

    pip install "keras-cg[examples]"
    python examples/digits.py
    KERAS_CG_BACKEND=jax python examples/digits.py --output digits.png
    python examples/digits.py --compare
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy

import keras_cg
from keras_cg import ops

try:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:
    sys.exit(f'digits.py needs {error.name}: pip install "keras-cg[examples]"')

HIDDEN = 256
BATCH = 128
RATE = 0.2

Weights = dict[str, Any]
Rounding = Callable[[Any], Any]


# --- the network --------------------------------------------------------------------------------------------


def nearest(x: Any) -> Any:
    """The nearest integer, with the gradient that the framework gives it: zero."""
    return ops.floor(x + 0.5)


@keras_cg.custom_gradient
def straight_through(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The nearest integer, with the gradient of the identity."""

    def grad(upstream: Any) -> Any:
        return upstream

    return nearest(x), grad


def exact(x: Any) -> Any:
    """The number itself."""
    return x


# For `keras-cg check examples/digits.py`: the gradient is that of the number itself.
straight_through.example_args = {"x": "rng.normal(size=(4, 3))"}
straight_through.expected = exact


def two_bits(x: Any, low: float, high: float, rounding: Rounding) -> Any:
    """`x`, clipped to [low, high] and rounded to one of four evenly spaced levels."""
    step = (high - low) / 3
    return low + step * rounding((ops.clip(x, low, high) - low) / step)


def logits(weights: Weights, images: Any, rounding: Rounding) -> Any:
    """The network: one hidden layer, no biases, so that every parameter is rounded.

    Pixels, rounded weights (-3, -1, 1, 3) and activations (0, 1, 2, 3) are small integers and the scales are
    powers of two. Products of them are exact in float32, so that all backends compute the same logits.
    """
    hidden = ops.matmul(images, two_bits(weights["hidden"], -3.0, 3.0, rounding)) / 64
    # Half a grid step keeps clear of the ends of the clipping, where every framework has a gradient of its own.
    hidden = hidden + 1 / 128
    return ops.matmul(two_bits(hidden, 0.0, 3.0, rounding), two_bits(weights["output"], -3.0, 3.0, rounding)) / 16


def loss(weights: Weights, images: Any, labels: Any, rounding: Rounding) -> Any:
    """The mean cross entropy; `labels` are one-hot."""
    scores = logits(weights, images, rounding)
    scores = scores - ops.max(scores, axis=1, keepdims=True)
    return ops.mean(ops.log(ops.sum(ops.exp(scores), axis=1)) - ops.sum(scores * labels, axis=1))


# --- the training -------------------------------------------------------------------------------------------

TRAININGS: dict[str, tuple[str, Rounding]] = {
    "straight_through": ("2 bits, straight-through gradient", straight_through),
    "no_gradient": ("2 bits, rounding's own gradient", nearest),
    "full_precision": ("full precision", exact),
}


class Digits(NamedTuple):
    """Images as rows of 64 pixels from 0 to 16, and their labels; all float32, the training labels one-hot."""

    images: numpy.ndarray
    labels: numpy.ndarray
    test_images: numpy.ndarray
    test_digits: numpy.ndarray


def load() -> Digits:
    """The data, in the split that every run uses: 1,347 images to train on, 450 to test on."""
    data = load_digits()
    images, test_images, digits, test_digits = train_test_split(
        data.data.astype("float32"), data.target, test_size=0.25, random_state=0, stratify=data.target
    )
    return Digits(images, numpy.eye(10, dtype="float32")[digits], test_images, test_digits)


def initial_weights(seed: int) -> dict[str, numpy.ndarray]:
    """The weights that every training starts from, on every backend."""
    random = numpy.random.default_rng(seed)
    shapes = {"hidden": (64, HIDDEN), "output": (HIDDEN, 10)}
    return {name: random.uniform(-3, 3, shape).astype("float32") for name, shape in shapes.items()}


def train(
    rounding: Rounding, data: Digits, passes: int, seed: int, finished: Callable[[], None]
) -> tuple[list[float], float]:
    """Trains one network with Adam, its rate falling linearly to zero.

    Args:
        rounding: What rounds weights and activations.
        data: The digits.
        passes: How many times the training images are gone through.
        seed: For the initial weights and the order of the images.
        finished: Called after every pass.

    Returns:
        The loss on all training images before the first pass and after each, and the accuracy on the test images.
    """
    weights: Weights = {name: ops.asarray(array) for name, array in initial_weights(seed).items()}
    mean = {name: ops.zeros_like(weight) for name, weight in weights.items()}
    square = dict(mean)
    everything = ops.asarray(data.images), ops.asarray(data.labels)
    losses = [float(loss(weights, *everything, rounding))]
    gradient_of = keras_cg.grad(loss)
    random = numpy.random.default_rng(seed)
    batches = len(data.images) // BATCH
    step = 0
    for _ in range(passes):
        # The few images that fill no batch differ from pass to pass; a batch of another size would weigh them more.
        for batch in random.permutation(len(data.images))[: batches * BATCH].reshape(batches, BATCH):
            rate = RATE * (1 - step / (passes * batches))
            step += 1
            gradient = gradient_of(weights, ops.asarray(data.images[batch]), ops.asarray(data.labels[batch]), rounding)
            for name, arriving in gradient.items():
                mean[name] = 0.9 * mean[name] + 0.1 * arriving
                square[name] = 0.99 * square[name] + 0.01 * arriving**2
                spread = (square[name] / (1 - 0.99**step)) ** 0.5 + 1e-8
                weights[name] = weights[name] - rate / (1 - 0.9**step) * mean[name] / spread
        losses.append(float(loss(weights, *everything, rounding)))
        finished()
    guesses = numpy.asarray(logits(weights, ops.asarray(data.test_images), rounding)).argmax(1)
    return losses, float((guesses == data.test_digits).mean())


def run(passes: int, seed: int, console: Console) -> dict[str, Any]:
    """The three trainings on the active backend, with a progress bar; returns what `--json` writes."""
    started = time.perf_counter()
    data = load()
    results: dict[str, Any] = {}
    columns = TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        tasks = {key: progress.add_task(title, total=passes, start=False) for key, (title, _) in TRAININGS.items()}
        for key, (_, rounding) in TRAININGS.items():
            progress.start_task(tasks[key])
            losses, accuracy = train(rounding, data, passes, seed, partial(progress.advance, tasks[key]))
            results[key] = {"losses": losses, "accuracy": accuracy}
    return {
        "backend": keras_cg.backend(),
        "passes": passes,
        "seed": seed,
        "seconds": time.perf_counter() - started,
        "trainings": results,
    }


# --- the results --------------------------------------------------------------------------------------------


def show(result: dict[str, Any], console: Console) -> None:
    """The table of one backend."""
    table = Table(title=f"Handwritten digits on {result['backend']}, {result['seconds']:.1f} s")
    for column in ("network", "first loss", "last loss", "test accuracy"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for key, (title, _) in TRAININGS.items():
        training = result["trainings"][key]
        first, last = training["losses"][0], training["losses"][-1]
        table.add_row(title, f"{first:.5f}", f"{last:.5f}", f"{training['accuracy']:.1%}")
    console.print(table)


def show_all(results: list[dict[str, Any]], console: Console) -> None:
    """The table of several backends; the losses are those of the straight-through training."""
    table = Table(title="Handwritten digits: straight-through losses, test accuracies")
    table.add_column("backend", no_wrap=True)
    for column in ("first\nloss", "last\nloss", "straight-\nthrough", "own\ngradient", "full\nprecision", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        losses = result["trainings"]["straight_through"]["losses"]
        accuracies = [f"{result['trainings'][key]['accuracy']:.1%}" for key in TRAININGS]
        table.add_row(
            result["backend"], f"{losses[0]:.5f}", f"{losses[-1]:.5f}", *accuracies, f"{result['seconds']:.1f}"
        )
    console.print(table)


def style(axes: Any) -> None:
    """What the panels of both figures share."""
    axes.set_yscale("log")
    axes.set_xlabel("passes over the training images")
    axes.grid(which="major", color="0.9")
    axes.grid(which="minor", color="0.95", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw(result: dict[str, Any], path: Path) -> None:
    """The loss curves of one backend."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for (key, (title, _)), colour in zip(TRAININGS.items(), ("tab:blue", "tab:red", "0.45"), strict=True):
        training = result["trainings"][key]
        axes.plot(training["losses"], color=colour, linewidth=2, label=f"{title}: {training['accuracy']:.1%} correct")
    axes.set_ylabel("cross entropy on the training images")
    axes.set_title(f"A network of 2-bit weights and activations on handwritten digits ({result['backend']})")
    style(axes)
    axes.legend(title="test images", frameon=False)
    figure.savefig(path, dpi=150)


def draw_all(results: list[dict[str, Any]], path: Path) -> None:
    """The loss curves of several backends, one panel per training."""
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    panels = figure.subplots(1, len(TRAININGS), sharey=True)
    for axes, (key, (title, _)) in zip(panels, TRAININGS.items(), strict=True):
        for index, result in enumerate(results):
            # Curves that agree hide each other: the first is the widest, so that every one can be seen.
            width = 1.2 + 1.8 * (len(results) - 1 - index)
            training = result["trainings"][key]
            label = f"{result['backend']}: {training['accuracy']:.1%} correct"
            axes.plot(training["losses"], linewidth=width, solid_capstyle="round", label=label)
        axes.set_title(title)
        style(axes)
        axes.legend(title="test images", frameon=False)
    panels[0].set_ylabel("cross entropy on the training images")
    figure.suptitle("The same training on every backend: handwritten digits, 2-bit weights and activations")
    figure.savefig(path, dpi=150)


def compare(backends: list[str], passes: int, seed: int, output: Path, report: Path | None, console: Console) -> int:
    """Runs every backend in a process of its own, one after another.

    Args:
        backends: Their names.
        passes: As for `train`.
        seed: As for `train`.
        output: Where the figure goes.
        report: Where the results go as JSON; None for nowhere.
        console: Where the table goes.

    Returns:
        The exit status: 1 if a backend failed.
    """
    results, failures = [], []
    with tempfile.TemporaryDirectory() as folder:
        for backend in backends:
            written = Path(folder, f"{backend}.json")
            command = [sys.executable, __file__, "--passes", str(passes), "--seed", str(seed)]
            command += ["--json", str(written), "--output", str(Path(folder, f"{backend}.png"))]
            with console.status(f"running {backend} ..."):
                environment = os.environ | {"KERAS_CG_BACKEND": backend}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
            if done.returncode == 0:
                results.append(json.loads(written.read_text(encoding="utf-8")))
                console.print(f"{backend}: done in {results[-1]['seconds']:.1f} s")
            else:
                lines = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
                failures.append(f"{backend} failed: {lines[-1].strip()}")
    if results:
        show_all(results, console)
        draw_all(results, output)
        console.print(f"curves: {output}", soft_wrap=True)
    if report is not None:
        report.write_text(json.dumps(results, indent=2), encoding="utf-8")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Trains a 2-bit network on handwritten digits with a straight-through custom gradient.",
        epilog="The backend is the one that KERAS_CG_BACKEND names, NumPy if there is none.",
    )
    parser.add_argument("--passes", type=int, default=30, help="passes over the training images (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="for the initial weights and the batches (default: 0)")
    parser.add_argument("--output", type=Path, help="the PNG of the loss curves (default: digits-<backend>.png)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write losses and accuracies to this file")
    parser.add_argument(
        "--compare",
        nargs="*",
        metavar="BACKEND",
        help="run these backends, all installed ones if none is named, and draw their curves over each other"
        " (default output: digits-compare.png)",
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    console = Console()
    if options.compare is not None:
        backends = options.compare or list(keras_cg.available_backends())
        output = options.output or Path("digits-compare.png")
        return compare(backends, options.passes, options.seed, output, options.json, console)
    output = options.output or Path(f"digits-{keras_cg.backend()}.png")
    result = run(options.passes, options.seed, console)
    show(result, console)
    draw(result, output)
    console.print(f"curves: {output}", soft_wrap=True)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
