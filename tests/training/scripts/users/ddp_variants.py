"""A small model under DistributedDataParallel. Further argument: what is special, a comma list."""

import random
import sys

import torch
from torch.nn.parallel import DistributedDataParallel
from witness import Language, language_loss, steps, words, write

import belay_training as bt

special = set(sys.argv[4].split(","))
model = Language(tied="tied" in special)
if "frozen" in special:
    model.embed.requires_grad_(False)
parameters = [p for p in model.parameters() if p.requires_grad]
kinds = {
    "momentum": lambda: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=1e-3),
    "adafactor": lambda: torch.optim.Adafactor(parameters, lr=1e-2),
    "nadam": lambda: torch.optim.NAdam(parameters, lr=1e-2),
    "tensor-rate": lambda: torch.optim.AdamW(parameters, lr=torch.tensor(1e-2), capturable=False, foreach=False),
}
optimizer = next((kinds[name]() for name in special & kinds.keys()), None) or torch.optim.AdamW(parameters, lr=1e-2)
scheduler = torch.optim.lr_scheduler
if "onecycle" in special:
    schedule = scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
elif "sequence" in special:
    warm, cool = scheduler.LinearLR(optimizer, 0.1, total_iters=4), scheduler.CosineAnnealingLR(optimizer, steps)
    schedule = scheduler.SequentialLR(optimizer, [warm, cool], milestones=[4])
elif "plateau" in special:
    schedule = scheduler.ReduceLROnPlateau(optimizer, patience=1)
else:
    schedule = scheduler.CosineAnnealingLR(optimizer, steps)
scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=3, enabled="scaled" in special)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))


@bt.protect(model=model, optimizer=optimizer, schedule=schedule, state={"scaler": scaler, "average": average})
def train(run: bt.Run) -> None:
    more = {
        name: True for name in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view") if name in special
    }
    if "compiled" not in special:
        more["bucket_cap_mb"] = 0.005
    ddp = DistributedDataParallel(model, **more)
    called = torch.compile(ddp, backend="aot_eager") if "compiled" in special else ddp
    for step in run.steps(steps):
        optimizer.zero_grad()
        parts = 3 if "accumulated" in special else 1
        for part in range(parts):
            ddp.require_backward_grad_sync = part == parts - 1
            tokens = words(10 * step + part, run.rank, 3, 7)
            if "augmented" in special:
                tokens = (tokens + random.randint(0, 5)) % 64
            with torch.autocast("cpu", torch.bfloat16, enabled="mixed" in special):
                loss = language_loss(called, tokens) / parts
            scaler.scale(loss).backward()
        # a schedule that follows the loss follows that of all ranks
        shared = loss.detach().clone()
        torch.distributed.all_reduce(shared)
        with run.updating(step):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
            schedule.step(*((shared.item(),) if "plateau" in special else ()))
        write(run.rank, step, loss.detach(), model, average)


train()
