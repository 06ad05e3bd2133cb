"""A language model under FSDP2, blocks and root sharded. Further argument: what is special, a comma list."""

import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from witness import Language, language_loss, steps, words, write

import belay_training as bt

special = set(sys.argv[4].split(",")) if len(sys.argv) > 4 else set()


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    torch.manual_seed(7)
    model = Language(tied="tied" in special)
    options = {}
    if "mixed" in special:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if "offload" in special:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    if "kept" in special:
        options["reshard_after_forward"] = False
    if "flat" in special:
        options["mesh"] = init_device_mesh("cpu", (run.world_size,), mesh_dim_names=("shard",))
    else:
        options["mesh"] = init_device_mesh("cpu", (2, run.world_size // 2), mesh_dim_names=("copy", "shard"))
    if "activations" in special:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for index, block in enumerate(model.blocks):
            model.blocks[index] = checkpoint_wrapper(block)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    run.protect(model=model, optimizer=optimizer, schedule=schedule)

    for step in run.steps(steps):
        optimizer.zero_grad()
        parts = 2 if "accumulate" in special else 1
        for part in range(parts):
            model.set_requires_gradient_sync(part == parts - 1)
            loss = language_loss(model, words(10 * step + part, run.rank, 4, 9)) / parts
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with run.updating(step):
            optimizer.step()
            schedule.step()
        write(run.rank, step, loss.detach(), model)


train()
