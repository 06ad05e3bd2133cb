"""What a process group of plain PyTorch leaves behind: a rank of two forms gloo groups one after another and trains a
few steps in each, without Belay. Prints a line of JSON for each ten groups: groups, KiB of resident memory.

Arguments: rank, groups, file for the store.
"""

import datetime
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANKS, STEPS = 2, 4
rank, groups, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def resident() -> int:
    """KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


store = dist.FileStore(path, RANKS)
for number in range(groups):
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(str(number), store),
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=100),
    )
    # PyTorch puts a hook of its own around the present one each time
    sys.excepthook = sys.__excepthook__
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    del ddp
    dist.destroy_process_group()
    if number % 10 == 9:
        print(json.dumps([number + 1, resident()]), flush=True)
