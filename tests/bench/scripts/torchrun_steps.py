"""A job for torchrun: 20 ms steps with one all-reduce on gloo, a checkpoint of the step number after each; rank 2 kills
itself once. Every attempt uses a port of its own: as shipped, torchrun's store is reused and the restart fails.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    """Train."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    store = dist.TCPStore("127.0.0.1", port + attempt, 4, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    kept = folder / f"step-{rank}"
    step = int(kept.read_text()) if kept.exists() else 0
    least = torch.tensor([step])
    dist.all_reduce(least, dist.ReduceOp.MIN)
    for step in range(int(least), 24):
        time.sleep(0.02)
        if rank == 2 and step == 8 and attempt == 0:
            (folder / "killed").write_text(json.dumps(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(64))
        kept.write_text(str(step + 1))
        if attempt:
            with (folder / f"after-{rank}").open("a") as file:
                file.write(f"{time.monotonic()}\n")


if __name__ == "__main__":
    main()
