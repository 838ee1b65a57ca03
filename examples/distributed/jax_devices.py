"""Trains the networks of networks.py on several devices with JAX, and on one, and prints the losses of both.

    python examples/distributed/jax_devices.py --how data          # batches are cut, the compiler adds what is needed
    python examples/distributed/jax_devices.py --how model         # weights are cut
    python examples/distributed/jax_devices.py --how shard_map     # weights are cut, and the sums are written by hand
    python examples/distributed/jax_devices.py --how explicit      # batches are cut, and types say how

On one machine the processor stands for eight devices. On a cluster, every process calls `jax.distributed.initialize()`
first, `XLA_FLAGS` goes, and each process puts its part of a batch into the array, by
`jax.make_array_from_process_local_data(sharding, batch)` in the place of `jax.device_put`.
"""

from __future__ import annotations

import argparse
import os

# Before JAX is imported. On a cluster this line goes.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["KERAS_CG_BACKEND"] = "jax"

from collections.abc import Callable
from typing import Any

import jax
import networks
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import keras_cg

AXIS = "devices"


def weight_spec(name: str) -> PartitionSpec:
    """How model parallelism lays a weight over the devices."""
    return {None: PartitionSpec(), 0: PartitionSpec(AXIS, None), 1: PartitionSpec(None, AXIS)}[networks.cut(name)]


def value_and_grad(name: str, how: str, mesh: Any, specs: dict[str, PartitionSpec]) -> Callable[..., Any]:
    """The loss of a network and its gradient with respect to the weights, as a function of weights and a batch."""

    def loss(weights: Any, inputs: Any, targets: Any) -> Any:
        return networks.cross_entropy(networks.scores(name, weights, inputs), targets)

    def loss_of_a_part(weights: Any, inputs: Any, targets: Any) -> Any:
        scores = networks.scores(name, weights, inputs, total=lambda part: jax.lax.psum(part, AXIS))
        return networks.cross_entropy(scores, targets)

    if how == "shard_map":
        whole = PartitionSpec()
        loss = jax.shard_map(loss_of_a_part, mesh=mesh, in_specs=(specs, whole, whole), out_specs=whole)
    return keras_cg.value_and_grad(loss)


def train(name: str, how: str, steps: int) -> list[float]:
    """The losses of a training on all devices."""
    network = networks.NETWORKS[name]
    kind = AxisType.Explicit if how == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(kind,))
    is_cut = how in ("model", "shard_map")
    arrays = network.weights()
    specs = {key: weight_spec(key) if is_cut else PartitionSpec() for key in arrays}
    batch = NamedSharding(mesh, PartitionSpec() if is_cut else PartitionSpec(AXIS))
    losses = []
    with jax.set_mesh(mesh):
        weights = {key: jax.device_put(array, NamedSharding(mesh, specs[key])) for key, array in arrays.items()}
        both = value_and_grad(name, how, mesh, specs)

        @jax.jit
        def step(weights: Any, inputs: Any, targets: Any) -> Any:
            value, gradient = both(weights, inputs, targets)
            return value, {key: weights[key] - network.rate * gradient[key] for key in weights}

        for inputs, targets in network.batches(steps):
            value, weights = step(weights, jax.device_put(inputs, batch), jax.device_put(targets, batch))
            losses.append(float(value))
    for key, weight in weights.items():
        assert weight.sharding.is_equivalent_to(NamedSharding(mesh, specs[key]), weight.ndim)
    return losses


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains a quantised network on several devices with JAX.")
    parser.add_argument("--network", choices=networks.NETWORKS, default="transformer")
    parser.add_argument("--how", choices=["data", "model", "shard_map", "explicit"], default="data")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    print(f"{options.network}, {options.how}, on {jax.device_count()} devices:")
    print("losses:", *train(options.network, options.how, options.steps))
    print("on one:", *networks.train_alone(options.network, options.steps))


if __name__ == "__main__":
    main()
