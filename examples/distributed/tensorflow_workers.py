"""Trains the networks of networks.py on several devices with TensorFlow, and on one, and prints the losses of both.

    python examples/distributed/tensorflow_workers.py --how mirrored     # four devices of one process
    python examples/distributed/tensorflow_workers.py --how workers      # two processes
    python examples/distributed/tensorflow_workers.py --how server       # two workers, which a third process asks

On one machine `mirrored` has four logical processors, and `workers` starts its two processes itself. On a cluster, the
machines have their GPUs, and `TF_CONFIG` tells each process who it is: then the lines that say "one machine" go.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import Any

os.environ["KERAS_CG_BACKEND"] = "tensorflow"

import networks
import tensorflow as tf


def loss(name: str, weights: Any, inputs: Any, targets: Any) -> Any:
    return networks.cross_entropy(networks.scores(name, weights, inputs), targets)


def free_addresses(count: int) -> list[str]:
    """Ports of this machine that are free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [f"localhost:{each.getsockname()[1]}" for each in sockets]


def part(array: Any, index: int, count: int) -> Any:
    """One of equal parts of a batch."""
    length = len(array) // count
    return tf.constant(array[index * length : (index + 1) * length])


# --- replicas: each has all weights, and a part of the batch ------------------------------------------------


def train_replicas(strategy: tf.distribute.Strategy, name: str, steps: int) -> list[float]:
    """The losses of a training on all replicas of a strategy."""
    network = networks.NETWORKS[name]
    with strategy.scope():
        # What the replicas assign is averaged: the weights stay the same on all of them.
        weights = {
            key: tf.Variable(array, aggregation=tf.VariableAggregation.MEAN) for key, array in network.weights().items()
        }

    def on_a_replica(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(name, weights, inputs, targets)
        for weight, gradient in zip(weights.values(), tape.gradient(value, [*weights.values()]), strict=True):
            weight.assign_sub(network.rate * gradient)
        return value

    @tf.function
    def step(inputs: Any, targets: Any) -> Any:
        values = strategy.run(on_a_replica, (inputs, targets))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None)

    def parts(array: Any) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: part(array, context.replica_id_in_sync_group, strategy.num_replicas_in_sync)
        )

    return [float(step(*map(parts, batch))) for batch in network.batches(steps)]


def mirrored(name: str, steps: int) -> list[float]:
    processors = tf.config.list_physical_devices("CPU")  # one machine: this line and the two that follow
    tf.config.set_logical_device_configuration(processors[0], [tf.config.LogicalDeviceConfiguration()] * 4)
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    return train_replicas(tf.distribute.MirroredStrategy(devices), name, steps)


def workers(name: str, steps: int) -> list[float] | None:
    """In each of the processes that `TF_CONFIG` names; without it, these are started."""
    if "TF_CONFIG" in os.environ:
        losses = train_replicas(tf.distribute.MultiWorkerMirroredStrategy(), name, steps)
        return losses if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0 else None
    cluster = {"worker": free_addresses(2)}  # one machine: from here on
    processes = []
    for index in range(2):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "TF_CONFIG": config}))
    sys.exit(max(abs(process.wait()) for process in processes))


# --- a server: workers compute gradients, and one process has the weights -------------------------------------


def server(name: str, steps: int) -> list[float]:
    network = networks.NETWORKS[name]
    addresses = free_addresses(3)  # one machine: all of these servers run in this process
    cluster = tf.train.ClusterSpec({"worker": addresses[:2], "ps": addresses[2:]})
    # Servers of one process share its threads, and would wait for each other on a machine with two cores.
    threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
    jobs = (("worker", 0), ("worker", 1), ("ps", 0))
    servers = [tf.distribute.Server(cluster, job, index, config=threads) for job, index in jobs]
    assert len(servers) == 3  # on a cluster each is a process of its own, which calls `join()` of its server
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = {key: tf.Variable(array) for key, array in network.weights().items()}

    @tf.function
    def gradient(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(name, weights, inputs, targets)
        return value, tape.gradient(value, [*weights.values()])

    losses = []
    for batch in network.batches(steps):
        scheduled = [coordinator.schedule(gradient, [part(array, index, 2) for array in batch]) for index in range(2)]
        (first, ours), (second, theirs) = (each.fetch() for each in scheduled)
        losses.append(float((first + second) / 2))
        for weight, a, b in zip(weights.values(), ours, theirs, strict=True):
            weight.assign_sub(network.rate * (a + b) / 2)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a quantised network on several devices with TensorFlow.")
    parser.add_argument("--network", choices=networks.NETWORKS, default="transformer")
    parser.add_argument("--how", choices=["mirrored", "workers", "server"], default="mirrored")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    losses = {"mirrored": mirrored, "workers": workers, "server": server}[options.how](options.network, options.steps)
    if losses is not None:
        print(f"{options.network}, {options.how}:")
        print("losses:", *losses)
        print("on one:", *networks.train_alone(options.network, options.steps), flush=True)


if __name__ == "__main__":
    main()
