"""The examples of several devices: the losses are those of one device, and of a reference without the decorator.

A framework takes longer to start than to train these networks, so one process, or a group of them, trains in each way.
"""

import json

import numpy as np
import pytest
import reference
from conftest import EXAMPLES

STEPS = 4

JAX = """
import json, jax_devices
for name in jax_devices.networks.NETWORKS:
    for how in ("data", "model", "shard_map", "explicit"):
        print(json.dumps([name, how, jax_devices.train(name, how, STEPS)]))
"""

KERAS = """
import json, keras_devices
for name in keras_devices.networks.NETWORKS:
    for how in ("data", "model"):
        print(json.dumps([name, how, keras_devices.train(name, how, STEPS)]))
"""

TORCH = """
import json, torch, torch_processes
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
for name in torch_processes.networks.NETWORKS:
    for how in ("ddp", "fsdp", "tensor", "pipeline", "mixed"):
        if (name, how) == ("digits", "pipeline"):
            continue
        losses = torch_processes.train(name, how, STEPS)
        if dist.get_rank() == 1:
            print(json.dumps([name, how, losses]), flush=True)
    if dist.get_rank() == 1:
        print(json.dumps([name, "alone in bfloat16", torch_processes.train_alone_in_bfloat16(name, STEPS)]), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def trained(done):
    assert done.returncode == 0, done.stderr[-3000:]
    return {(name, how): losses for name, how, losses in map(json.loads, done.stdout.splitlines())}


def check(losses, name, rtol=2e-5):
    due = reference.losses(name, STEPS)
    assert len({round(value, 2) for value in due}) == STEPS  # where nothing is learnt there is nothing to compare
    np.testing.assert_allclose(losses, due, rtol=rtol)


def check_printed(done, first, name):
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[0] == first
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines()[1:])
    several, alone = (np.array([*map(float, values.split())]) for values in lines.values())
    check(several, name)
    check(alone, name)


@pytest.mark.only("jax")
@pytest.mark.parametrize(("program", "cases"), [(JAX, 8), (KERAS, 4)], ids=["jax", "keras"])
def test_on_eight_devices(processes, program, cases):
    found = trained(processes.run(processes.program(program.replace("STEPS", str(STEPS)))))
    assert len(found) == cases
    for (name, _), losses in found.items():
        check(losses, name)


@pytest.mark.only("torch")
def test_in_two_processes(processes):
    found = trained(processes.torchrun(processes.program(TORCH.replace("STEPS", str(STEPS)))))
    assert len(found) == 11
    for (name, how), losses in found.items():
        # A weight in bfloat16 has three digits, and whether it is rounded up or down may hang on the last.
        check(losses, name, rtol=3e-2 if how in ("mixed", "alone in bfloat16") else 2e-5)
    for name in ("digits", "transformer"):
        several, one = found[name, "mixed"], found[name, "alone in bfloat16"]
        np.testing.assert_allclose(several[0], one[0], rtol=1e-5)
        np.testing.assert_allclose(several, one, rtol=2e-2)


@pytest.mark.only("jax", "torch", "tensorflow")
def test_the_commands(processes, backend):
    options = (f"--steps={STEPS}", "--network=digits")
    if backend == "torch":
        done = processes.torchrun(EXAMPLES / "torch_processes.py", "--how=ddp", *options)
        check_printed(done, "digits, ddp, in 2 processes:", "digits")
        done = processes.torchrun(EXAMPLES / "torch_processes.py", "--how=pipeline", *options)
        assert done.returncode == 1
        assert "The digits are one layer deep; a pipeline needs --network transformer." in done.stderr
    elif backend == "jax":
        done = processes.run(EXAMPLES / "jax_devices.py", "--how=shard_map", *options)
        check_printed(done, "digits, shard_map, on 8 devices:", "digits")
        done = processes.run(EXAMPLES / "keras_devices.py", "--how=model", *options)
        check_printed(done, "digits, model, on 8 devices:", "digits")
    else:
        for how in ("mirrored", "workers"):
            done = processes.run(EXAMPLES / "tensorflow_workers.py", f"--how={how}", *options)
            check_printed(done, f"digits, {how}:", "digits")


@pytest.mark.only("tensorflow")
def test_the_transformer_on_four_replicas(processes):
    done = processes.run(EXAMPLES / "tensorflow_workers.py", "--how=mirrored", f"--steps={STEPS}")
    check_printed(done, "transformer, mirrored:", "transformer")
