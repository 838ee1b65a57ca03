"""Trains the networks of networks.py on several devices with Keras on JAX, and on one, and prints the losses of both.

    python examples/distributed/keras_devices.py --how data     # keras.distribution.DataParallel
    python examples/distributed/keras_devices.py --how model    # keras.distribution.ModelParallel

On one machine the processor stands for eight devices. On a cluster, `keras.distribution.initialize()` comes first in
every process, and `XLA_FLAGS` goes.
"""

from __future__ import annotations

import argparse
import os

# Before JAX is imported. On a cluster this line goes.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["KERAS_BACKEND"] = os.environ["KERAS_CG_BACKEND"] = "jax"

from typing import Any

import jax
import keras
import networks


class Network(keras.Layer):
    """A network of networks.py, from inputs to scores."""

    def __init__(self, network: str):
        super().__init__(name=network)
        for name, array in networks.NETWORKS[network].weights().items():
            self.add_weight(name=name, shape=array.shape, initializer=lambda *_, values=array, **__: values)

    def call(self, inputs: Any) -> Any:
        weights = {weight.name: weight.value for weight in self.weights}
        return networks.scores(self.name, weights, inputs)


def layout(name: str) -> keras.distribution.LayoutMap:
    """How model parallelism lays the weights over the devices."""
    mesh = keras.distribution.DeviceMesh((1, len(keras.distribution.list_devices())), ["batch", "model"])
    layouts = keras.distribution.LayoutMap(mesh)
    for key in networks.NETWORKS[name].weights():
        axis = networks.cut(key)
        if axis is not None:
            layouts[f"{name}/{key}"] = ("model", None) if axis == 0 else (None, "model")
    return layouts


def train(name: str, how: str, steps: int) -> list[float]:
    """The losses of a training on all devices."""
    if how == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    else:
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layout(name), batch_dim_name="batch")
        )
    batches = [*networks.NETWORKS[name].batches(steps)]
    inputs = keras.Input(batches[0][0].shape[1:])
    model = keras.Model(inputs, Network(name)(inputs))
    optimizer = keras.optimizers.SGD(networks.NETWORKS[name].rate)
    model.compile(optimizer, loss=lambda targets, scores: networks.cross_entropy(scores, targets))
    losses = []
    for batch in batches:
        model.reset_metrics()  # of which the loss is one: a mean over the batches since then
        losses.append(float(model.train_on_batch(*batch)))
    for weight in model.weights:
        axis = networks.cut(weight.name) if how == "model" else None
        assert weight.value.sharding.shard_shape(weight.shape) == tuple(
            length // jax.device_count() if place == axis else length for place, length in enumerate(weight.shape)
        )
    return losses


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains a quantised network on several devices with Keras on JAX.")
    parser.add_argument("--network", choices=networks.NETWORKS, default="transformer")
    parser.add_argument("--how", choices=["data", "model"], default="data")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    print(f"{options.network}, {options.how}, on {len(keras.distribution.list_devices())} devices:")
    print("losses:", *train(options.network, options.how, options.steps))
    print("on one:", *networks.train_alone(options.network, options.steps))


if __name__ == "__main__":
    main()
