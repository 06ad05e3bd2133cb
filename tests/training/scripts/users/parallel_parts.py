"""Ranks that hold different parts of a model: stages of a pipeline, experts, parts of layers; two copies of each.
Further argument: which."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from witness import numbers, steps, write

import belay_training as bt

kind = sys.argv[4]


class Exchange(torch.autograd.Function):
    """All to all, forward and backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), group=ctx.group)
        return out, None


def pipeline(run, model, step, across, copies):
    """Two stages: the first sends activations, the second gradients."""
    stage, peer = across.get_local_rank(), dist.get_global_rank(across.get_group(), 1 - across.get_local_rank())
    if stage == 0:
        out = model(numbers(step, copies.get_local_rank(), 6, 8))
        dist.send(out.detach(), peer)
        grad = torch.empty_like(out)
        dist.recv(grad, peer)
        out.backward(grad)
        return torch.zeros(())
    received = torch.empty(6, 8)
    dist.recv(received, peer)
    received.requires_grad_()
    loss = (model(received) - 1).square().mean()
    loss.backward()
    dist.send(received.grad, peer)
    return loss.detach()


def experts(run, model, step, across, copies):
    """Half of the rows go to the expert of the other rank."""
    x = Exchange.apply(numbers(step, run.rank, 6, 8), across.get_group())
    loss = (Exchange.apply(model(x), across.get_group()) - 1).square().mean()
    loss.backward()
    return loss.detach()


def tensor(run, model, step, across, copies):
    """Each layer divided over two ranks, which see the same data."""
    loss = (model(numbers(step, copies.get_local_rank(), 6, 8)) - 1).square().mean()
    loss.backward()
    return loss.detach()


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "across"))
    copies, across = mesh["copy"], mesh["across"]
    torch.manual_seed(7 if kind == "tensor" else across.get_local_rank())
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 8))
    if kind == "tensor":
        model[2] = torch.nn.Identity()
        model = parallelize_module(model, across, {"0": ColwiseParallel(), "3": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    named = {} if kind in ("tensor", "unnamed") else {"part": f"part {across.get_local_rank()}"}
    run.protect(model=model, optimizer=optimizer, **named)
    do = {"pipeline": pipeline, "experts": experts, "unnamed": experts, "tensor": tensor}[kind]
    for step in run.steps(steps):
        optimizer.zero_grad()
        loss = do(run, model, step, across, copies)
        for parameter in model.parameters():
            grad = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
            dist.all_reduce(grad, group=copies.get_group())
        with run.updating(step):
            optimizer.step()
        write(run.rank, step, loss, model)


train()
