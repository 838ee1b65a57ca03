"""A process dies, or a rule raises in one process: all of them end, soon, and the message is ours."""

import signal

import pytest

# Each program is run in two processes with their rank, an address that both know, and the fault of the second one: it
# fails in its second step, and the first one then waits for it. Those of JAX and TensorFlow step for ever.

PROGRAM = """
import os, signal, sys
import numpy as np
import keras_cg

rank, address, fault = int(os.environ.get("RANK", sys.argv[1])), sys.argv[2], sys.argv[3]  # torchrun tells the rank
steps = 0


def kill():
    if rank == 1 and fault == "dies" and steps == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@keras_cg.custom_gradient
def f(x, w):
    def grad(upstream):
        if rank == 1 and fault == "raises" and steps == 1:
            return upstream, upstream[:, :1]
        at_run_time(kill)
        return upstream * w, upstream * x

    return x * w, grad
"""

JAX = """
import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, rank, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10)
at_run_time = jax.debug.callback
mesh = jax.make_mesh((2,), ("a",), axis_types=(AxisType.Auto,))
x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("a")), np.ones((1, 4), np.float32))
w = jax.device_put(np.ones((2, 4), np.float32), NamedSharding(mesh, P()))


def gradient(w, x):
    # Its parts are summed over the processes.
    return jax.grad(lambda w: jax.shard_map(f, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x, w).sum())(w)


while True:
    w = jax.block_until_ready(jax.jit(lambda w, x: w - 0.1 * gradient(w, x), out_shardings=w.sharding)(w, x))
    steps += 1
"""

TENSORFLOW = """
import json
import tensorflow as tf

host, port = address.split(":")
cluster = {"worker": [address, f"{host}:{int(port) + 1}"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
strategy = tf.distribute.MultiWorkerMirroredStrategy()
at_run_time = lambda kill: tf.py_function(kill, [], [])
with strategy.scope():
    w = tf.Variable(np.ones((1, 4), np.float32), aggregation=tf.VariableAggregation.MEAN)


def on_a_replica():
    x = tf.ones((1, 4))
    with tf.GradientTape() as tape:
        y = f(x, tf.convert_to_tensor(w))
        loss = tf.reduce_sum(y)
    w.assign_sub(0.1 * tape.gradient(loss, w))


while True:
    tf.function(lambda: strategy.run(on_a_replica))()
    steps += 1
"""

TORCH = """
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
at_run_time = lambda kill: kill()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1, 4))

    def forward(self, x):
        return f(x, self.w)


model = torch.nn.parallel.DistributedDataParallel(Model())
for steps in range(3):
    model(torch.ones(1, 4, requires_grad=True)).sum().backward()
dist.barrier()
print("rank", rank, "ends")
dist.destroy_process_group()
"""


@pytest.mark.only("torch")
@pytest.mark.parametrize("fault", ["raises", "dies", "none"])
def test_a_fault_of_one_process_ends_all(processes, fault):
    # Longer than torchrun and two processes take to start, and shorter than what torch waits for a process: 30 minutes.
    done = processes.torchrun(processes.program(PROGRAM + TORCH), "", "", fault, limit=240)
    if fault == "none":
        assert done.returncode == 0, done.stderr[-3000:]
        assert sorted(done.stdout.splitlines()) == ["rank 0 ends", "rank 1 ends"]
        return
    assert (done.returncode, done.stdout) == (1, "")
    if fault == "raises":
        told = "[rank1]: keras_cg.errors.GradientError: the rule of f returned a gradient of the wrong shape for w."
        lines = [line for line in done.stderr.splitlines() if "GradientError" in line]
        assert lines and all(line.startswith(told) for line in lines), lines
    else:
        assert "Signal 9 (SIGKILL) received by PID" in done.stderr


@pytest.mark.only("jax", "tensorflow")
@pytest.mark.parametrize("fault", ["raises", "dies"])
def test_a_fault_of_one_process_ends_both(processes, backend, fault):
    program = processes.program(PROGRAM + {"jax": JAX, "tensorflow": TENSORFLOW}[backend])
    # Both wait at most 10 s for a sign of life, JAX because it is told so; the rest is what they take to start.
    waiting, failing = processes.two(program, fault)
    assert waiting.returncode not in (0, -signal.SIGKILL)
    if fault == "dies":
        assert failing.returncode == -signal.SIGKILL
    else:
        assert failing.returncode not in (0, -signal.SIGKILL)
        assert "the rule of f returned a gradient of the wrong shape for w." in failing.stderr
        assert "the rule of f" not in waiting.stderr
