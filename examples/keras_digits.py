"""Trains a convolutional network with 2-bit weights and 2-bit activations by Keras, on any of its backends.

Rounding has the gradient zero, so a network that rounds its weights cannot be trained by plain differentiation.
`keras_cg.keras.layers.Quantize` passes the gradient straight through, and learns how far apart its levels are (Esser
et al., 2020, arXiv:1902.08153). The script trains the same network three times with `model.fit`:

  1. rounded to 2 bits, with the gradient of `Quantize`;
  2. rounded to 2 bits, with rounding's own gradient, which teaches it next to nothing;
  3. not rounded at all.

The images are scikit-learn's bundled digits: 1,797 of 8 x 8 pixels. The backend is the one that KERAS_BACKEND names:

    pip install "keras-cg[keras,examples,jax]"
    KERAS_BACKEND=jax python examples/keras_digits.py --save digits.npz
    KERAS_BACKEND=numpy python examples/keras_digits.py --weights digits.npz

Keras has no `fit` on its NumPy backend. There the script ends with status 2 and says so, unless `--weights` names what
a run on another backend has saved: then it tells, as on any backend, how many test images those networks get right.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy

try:
    import keras
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:
    sys.exit(f'keras_digits.py needs {error.name}: pip install "keras-cg[keras,examples]"')

from keras_cg.keras import layers

BATCH = 64
RATE = 3e-3


# --- the network --------------------------------------------------------------------------------------------


class PlainQuantize(layers.Quantize):
    """The same levels, with the gradient that the framework gives them: that of rounding is zero."""

    def call(self, inputs: Any) -> Any:
        """The levels nearest to `inputs`."""
        low, high = (-2, 1) if self.signed else (0, 3)
        return self.step * keras.ops.round(keras.ops.clip(inputs / self.step, low, high))


class Convolution(keras.layers.Layer):
    """A convolution without a bias, whose weights go through `quantizer` first; None leaves them as they are."""

    def __init__(self, filters: int, size: int, strides: int, padding: str, quantizer: layers.Quantize | None):
        super().__init__()
        self.filters, self.size = filters, size
        self.strides, self.padding = strides, padding
        self.quantizer = quantizer

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the kernel, and the step for it."""
        shape = (self.size, self.size, input_shape[-1], self.filters)
        self.kernel = self.add_weight(shape=shape, initializer="glorot_uniform", name="kernel")
        if self.quantizer is not None:
            self.quantizer.adapt(self.kernel)

    def call(self, inputs: Any) -> Any:
        """Convolves `inputs`, batches of images."""
        kernel = self.kernel if self.quantizer is None else self.quantizer(self.kernel)
        return keras.ops.conv(inputs, kernel, strides=self.strides, padding=self.padding)


def network(quantize: type[layers.Quantize] | None) -> keras.Model:
    """Three convolutions; every weight of them, and what comes out of the first two, goes through `quantize`."""

    def convolution(filters: int, size: int, strides: int = 1, padding: str = "same") -> Convolution:
        return Convolution(filters, size, strides, padding, quantize and quantize(bits=2, gradient_scale="lsq"))

    def activation() -> keras.layers.Layer:
        return keras.layers.ReLU() if quantize is None else quantize(bits=2, signed=False)

    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            convolution(16, 3),
            keras.layers.BatchNormalization(momentum=0.9),
            activation(),
            convolution(32, 3, strides=2),
            keras.layers.BatchNormalization(momentum=0.9),
            activation(),
            convolution(10, 4, padding="valid"),
            keras.layers.Flatten(),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(RATE), loss=loss, metrics=["accuracy"])
    return model


# --- the training -------------------------------------------------------------------------------------------

TRAININGS: dict[str, tuple[str, type[layers.Quantize] | None]] = {
    "quantize": ("2 bits, gradient of Quantize", layers.Quantize),
    "no_gradient": ("2 bits, rounding's own gradient", PlainQuantize),
    "full_precision": ("full precision", None),
}


class Digits(NamedTuple):
    """Images of 8 x 8 x 1 numbers from 0 to 1, float32, and the digits that they show."""

    images: numpy.ndarray
    digits: numpy.ndarray
    test_images: numpy.ndarray
    test_digits: numpy.ndarray


def load() -> Digits:
    """The data, in the split that every run uses: 1,347 images to train on, 450 to test on."""
    data = load_digits()
    images = (data.images[..., None] / 16).astype("float32")
    images, test_images, digits, test_digits = train_test_split(
        images, data.target, test_size=0.25, random_state=0, stratify=data.target
    )
    return Digits(images, digits, test_images, test_digits)


def train(data: Digits, epochs: int, seed: int, console: Console) -> tuple[dict[str, keras.Model], dict[str, Any]]:
    """The three networks, and the loss and the test accuracy of their trainings after every epoch."""
    models, histories = {}, {}
    for key, (title, quantize) in TRAININGS.items():
        console.rule(f"{title}, seed {seed}")
        keras.utils.set_random_seed(seed)
        models[key] = network(quantize)
        test = data.test_images, data.test_digits
        fitted = models[key].fit(data.images, data.digits, BATCH, epochs, validation_data=test)
        histories[key] = fitted.history
    return models, histories


def accuracies(models: dict[str, keras.Model], data: Digits) -> dict[str, float]:
    """How many test images each network gets right."""
    guesses = {key: model.predict(data.test_images, verbose=0).argmax(1) for key, model in models.items()}
    return {key: float((guess == data.test_digits).mean()) for key, guess in guesses.items()}


# --- weights in a file --------------------------------------------------------------------------------------


def save(models: dict[str, keras.Model], path: Path) -> None:
    """Writes the weights of all networks, in Keras's order."""
    arrays = {f"{key}/{i}": array for key, model in models.items() for i, array in enumerate(model.get_weights())}
    with path.open("wb") as file:
        numpy.savez(file, **arrays)


def restore(path: Path) -> dict[str, keras.Model]:
    """The networks, with the weights of a file that `save` wrote."""
    models = {key: network(quantize) for key, (_, quantize) in TRAININGS.items()}
    with numpy.load(path) as file:
        for key, model in models.items():
            model.set_weights([file[f"{key}/{i}"] for i in range(len(model.weights))])
    return models


# --- the results --------------------------------------------------------------------------------------------


def show(correct: list[dict[str, float]], histories: list[dict[str, Any]], heading: str, console: Console) -> None:
    """The table of the means over all seeds, with the losses where there was a training."""
    table = Table(title=heading)
    table.add_column("network")
    columns = ("first loss", "last loss", "test accuracy") if histories else ("test accuracy",)
    for column in columns:
        table.add_column(column, justify="right")
    if len(correct) > 1:
        table.add_column("lowest to highest", justify="right")
    for key, (title, _) in TRAININGS.items():
        losses = [f"{numpy.mean([each[key]['loss'][i] for each in histories]):.4f}" for i in (0, -1) if histories]
        rates = [each[key] for each in correct]
        extremes = [f"{min(rates):.1%} to {max(rates):.1%}"] if len(rates) > 1 else []
        table.add_row(title, *losses, f"{numpy.mean(rates):.1%}", *extremes)
    console.print(table)


def draw(histories: list[dict[str, Any]], correct: list[dict[str, float]], path: Path) -> None:
    """Loss and accuracy after every epoch: a thick line for the mean over all seeds, a thin one for each seed."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    styles = (("tab:blue", "-"), ("tab:red", "--"), ("0.35", ":"))
    for (key, (title, _)), (colour, dashes) in zip(TRAININGS.items(), styles, strict=True):
        label = f"{title}:\n{numpy.mean([each[key] for each in correct]):.1%} correct"
        for axes, what in zip(panels, ("loss", "val_accuracy"), strict=True):
            curves = numpy.array([each[key][what] for each in histories])
            epochs = range(1, curves.shape[1] + 1)
            axes.plot(epochs, curves.T, color=colour, linestyle=dashes, linewidth=0.8, alpha=0.5)
            axes.plot(epochs, curves.mean(0), color=colour, linestyle=dashes, linewidth=2.5)
            if what == "loss":
                # The label is next to the end of its line, and needs no legend.
                place = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
                axes.annotate(label, (epochs[-1], curves.mean(0)[-1]), color=colour, annotation_clip=False, **place)
    panels[0].set_yscale("log")
    panels[0].set_title("cross entropy on the training images")
    panels[1].set_ylim(0, 1.02)
    panels[1].set_title("accuracy on the test images")
    for axes in panels:
        axes.set_xlabel("epochs")
        axes.grid(which="major", color="0.9")
        axes.grid(which="minor", color="0.95", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    network = f"A CNN of 2-bit weights and activations on handwritten digits (Keras on {keras.backend.backend()}"
    figure.suptitle(f"{network}{f', mean of {len(histories)} seeds' if len(histories) > 1 else ''})")
    figure.savefig(path, dpi=150)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Trains a 2-bit CNN on handwritten digits with Keras.",
        epilog="The backend is the one that KERAS_BACKEND names. Status 2: Keras cannot train on its NumPy backend.",
    )
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training images (default: 12)")
    seeds = "for the initial weights and the batches; of several, the means are shown (default: 0)"
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="SEED", help=seeds)
    parser.add_argument("--output", type=Path, help="the PNG of the curves (default: keras_digits-<backend>.png)")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="also write the weights of the first seed to this file, as .npz"
    )
    parser.add_argument("--weights", type=Path, metavar="FILE", help="train nothing, evaluate the weights of this file")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    console = Console()
    backend = keras.backend.backend()
    data = load()
    if options.weights is not None:
        try:
            models = restore(options.weights)
        except (OSError, KeyError, ValueError) as error:
            sys.exit(f"cannot take weights from {options.weights}: {error}")
        correct = accuracies(models, data)
        show([correct], [], f"The weights of {options.weights} with Keras on {backend}", console)
        return 0
    if backend == "numpy":
        print(
            "Keras cannot train on its NumPy backend. Train on another one with KERAS_BACKEND=jax, torch or tensorflow,"
            " add --save FILE, and evaluate that here with --weights FILE.",
            file=sys.stderr,
        )
        return 2
    started = time.perf_counter()
    runs = [train(data, options.epochs, seed, console) for seed in options.seeds]
    histories = [history for _, history in runs]
    correct = [accuracies(models, data) for models, _ in runs]
    seconds = time.perf_counter() - started
    show(correct, histories, f"Handwritten digits with Keras on {backend}, {seconds:.1f} s", console)
    output = options.output or Path(f"keras_digits-{backend}.png")
    draw(histories, correct, output)
    console.print(f"curves: {output}", soft_wrap=True)
    if options.save is not None:
        save(runs[0][0], options.save)
        console.print(f"weights: {options.save}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
