"""Trains the networks of networks.py in several processes with torch, and in one, and prints the losses of both.

    torchrun --nproc-per-node=4 examples/distributed/torch_processes.py --how ddp
    torchrun --nproc-per-node=4 examples/distributed/torch_processes.py --how fsdp       # with activation checkpointing
    torchrun --nproc-per-node=4 examples/distributed/torch_processes.py --how mixed      # FSDP in bfloat16
    torchrun --nproc-per-node=4 examples/distributed/torch_processes.py --how tensor     # weights are DTensors
    torchrun --nproc-per-node=4 examples/distributed/torch_processes.py --how pipeline

On a cluster, torchrun gets `--nnodes` and `--rdzv-endpoint` too, `DEVICE` is "cuda", and each process calls
`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` first.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ["KERAS_CG_BACKEND"] = "torch"

import networks
import numpy
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

DEVICE = "cpu"  # On a cluster: "cuda".


# --- the networks as modules --------------------------------------------------------------------------------


class Rounded(torch.nn.Linear):
    """A layer that rounds its weights."""

    def __init__(self, array: numpy.ndarray, quantised: Callable[[Any], Any]):
        super().__init__(*array.shape, bias=False)
        self.weight = torch.nn.Parameter(torch.tensor(array.T.copy()))
        self.quantised = quantised

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.quantised(self.weight))


class Layers(torch.nn.Module):
    """Layers by their names; the rest of a network asks for them with `linear`."""

    def __init__(self, names: tuple[str, ...], arrays: dict[str, numpy.ndarray], network: str, number: int | str = ""):
        super().__init__()
        for name in names:
            setattr(self, name, Rounded(arrays[f"{name}{number}"], networks.NETWORKS[network].quantised))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, name)(x)


class Digits(Layers):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return networks.digits_scores(self.linear, images)


class First(Layers):
    """What comes before the blocks."""

    def __init__(self, arrays: dict[str, numpy.ndarray]):
        super().__init__(("embed",), arrays, "transformer")
        self.position = torch.nn.Parameter(torch.tensor(arrays["position"]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x) + self.position


class Block(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # What is computed in it is computed again in the backward pass, and not kept until then.
        return checkpoint(networks.block, self.linear, x, use_reentrant=False)


class Last(Layers):
    """What comes after the blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unembed(networks.normalised(x))


def model_of(name: str) -> torch.nn.Module:
    """A network as a module, with the weights that every training starts from."""
    arrays = networks.NETWORKS[name].weights()
    if name == "digits":
        return Digits(("hidden", "output"), arrays, name)
    names = ("query", "key", "value", "project", "up", "down")
    blocks = [Block(names, arrays, name, layer) for layer in range(networks.LAYERS)]
    return torch.nn.Sequential(First(arrays), *blocks, Last(("unembed",), arrays, name))


# --- the ways to train them ---------------------------------------------------------------------------------


def batches(name: str, steps: int, is_cut: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches; or this process's part of each."""
    for batch in networks.NETWORKS[name].batches(steps):
        parts = [torch.tensor(array, device=DEVICE) for array in batch]
        if is_cut:
            parts = [part.chunk(dist.get_world_size())[dist.get_rank()] for part in parts]
        yield parts[0], parts[1]


def shard(model: torch.nn.Module, mesh: Any, dtype: torch.dtype | None = None) -> torch.nn.Module:
    """The module under FSDP: its weights are put together block by block, when they are needed, in this dtype."""
    policy = MixedPrecisionPolicy(dtype, reduce_dtype=dtype and torch.float32)
    for block in model.modules():
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=dataclasses.replace(policy, output_dtype=torch.float32))


def cut(model: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    """The module with its weights cut between the processes, each a DTensor."""
    kinds = {0: RowwiseParallel, 1: ColwiseParallel}
    plan = {path: networks.cut(path.rpartition(".")[2]) for path, _ in model.named_modules()}
    return parallelize_module(model, mesh, {path: kinds[axis]() for path, axis in plan.items() if axis is not None})


def train(name: str, how: str, steps: int) -> list[float]:
    """The losses of a training by all processes; in a pipeline, only the last one knows them."""
    if how == "pipeline":
        return train_pipeline(name, steps)
    model = model_of(name).to(DEVICE)
    mesh = dist.init_device_mesh(DEVICE, (dist.get_world_size(),))
    if how == "ddp":
        model = DistributedDataParallel(model)
    elif how == "fsdp":
        model = shard(model, mesh)
    elif how == "mixed":
        model = shard(model, mesh, torch.bfloat16)
    else:
        model = cut(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), networks.NETWORKS[name].rate)
    losses = []
    for inputs, targets in batches(name, steps, is_cut=how != "tensor"):
        optimizer.zero_grad()
        loss = networks.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)  # of equal losses, or of the losses of equal parts of the batch
        losses.append(mean.item() / dist.get_world_size())
    return losses


def train_pipeline(name: str, steps: int) -> list[float]:
    """Each process has some of the layers, and gets a quarter of a batch after the other."""
    if name != "transformer":
        raise SystemExit("The digits are one layer deep; a pipeline needs --network transformer.")
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = numpy.array_split(numpy.arange(networks.LAYERS + 2), size)
    model = torch.nn.Sequential(*[model_of(name)[index] for index in stages[rank]]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), networks.NETWORKS[name].rate)
    stage = PipelineStage(model, rank, size, torch.device(DEVICE))
    schedule = ScheduleGPipe(stage, 4, loss_fn=networks.cross_entropy)
    losses = []
    for inputs, targets in batches(name, steps, is_cut=False):
        optimizer.zero_grad()
        parts: list[torch.Tensor] = []
        given = (inputs,) if rank == 0 else ()
        ends = {"target": targets, "losses": parts} if rank == size - 1 else {}
        schedule.step(*given, **ends)
        optimizer.step()
        losses += [torch.stack(parts).mean().item()] if parts else []
    return losses


def train_alone_in_bfloat16(name: str, steps: int) -> list[float]:
    """What `mixed` is compared with: one process, the same dtypes."""
    model, rounded = model_of(name), model_of(name).bfloat16()
    losses = []
    for inputs, targets in batches(name, steps, is_cut=False):
        rounded.load_state_dict(model.state_dict())
        loss = networks.cross_entropy(rounded(inputs.bfloat16()).float(), targets)
        gradients = torch.autograd.grad(loss, [*rounded.parameters()])
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= networks.NETWORKS[name].rate * gradient
        losses.append(loss.item())
    return losses


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains a quantised network in several processes with torch.")
    parser.add_argument("--network", choices=networks.NETWORKS, default="transformer")
    parser.add_argument("--how", choices=["ddp", "fsdp", "mixed", "tensor", "pipeline"], default="ddp")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    # Who waits longer than this for another process gives up.
    dist.init_process_group(timeout=datetime.timedelta(minutes=2))
    losses = train(options.network, options.how, options.steps)
    if dist.get_rank() == dist.get_world_size() - 1:
        alone = train_alone_in_bfloat16 if options.how == "mixed" else networks.train_alone
        print(f"{options.network}, {options.how}, in {dist.get_world_size()} processes:")
        print("losses:", *losses)
        print("in one:", *alone(options.network, options.steps), flush=True)
    dist.barrier()  # no process ends while another still works
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
