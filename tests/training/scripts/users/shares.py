"""A script that goes on with fewer hosts: each rank does the shares that it is given, and writes a line for each as the
rank of that number. Fourth argument: ddp, or fsdp with copies of two shards."""

import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from witness import numbers, steps, write

import belay_training as bt

kind = sys.argv[4]


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4))
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (run.world_size // 2, 2), mesh_dim_names=("copy", "shard"))
        for layer in (model[0], model[3], model):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    run.protect(model=model, optimizer=optimizer, schedule=schedule)
    called = model if kind == "fsdp" else DistributedDataParallel(model)
    for step in run.steps(steps):
        losses = {}
        optimizer.zero_grad()
        for share in run.shares(called):
            loss = called(numbers(step, share, 6, 8)).square().mean()
            loss.backward()
            losses[share] = loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with run.updating(step):
            optimizer.step()
            schedule.step()
        for share, value in losses.items():
            write(share, step, value, model)


train()
