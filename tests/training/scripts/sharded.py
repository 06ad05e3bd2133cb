"""A model under FSDP2 or with ZeRO, made inside the protected function; each rank writes `step loss digest time pid`.

Arguments: folder, steps, seconds of a step, ranks that share one copy of the model, what to use: fsdp or zero.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import belay_training as bt

folder, steps, pause, shards, kind = (
    Path(sys.argv[1]),
    int(sys.argv[2]),
    float(sys.argv[3]),
    int(sys.argv[4]),
    sys.argv[5],
)


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 6))
    if kind == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
        run.protect(model=model, optimizer=optimizer)
        called = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (run.world_size // shards, shards), mesh_dim_names=("copy", "shard"))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        called = model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run.protect(model=model, optimizer=optimizer)

    def digest() -> str:
        parts = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
        return f"{sum(part.detach().double().sum().item() for part in parts).hex()}"

    with (folder / f"rank-{run.rank}").open("a") as log:
        for step in run.steps(steps):
            data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + run.rank))
            loss = called(data).square().mean()
            time.sleep(pause)
            optimizer.zero_grad()
            loss.backward()
            with run.updating(step):
                optimizer.step()
            log.write(f"{step} {loss.item().hex()} {digest()} {time.monotonic_ns()} {os.getpid()}\n")
            log.flush()


train()
