"""What the scripts beside this file share: their arguments, data that follows from step and rank, and the line that a
rank writes after each step, `step loss digest time pid`. Arguments: folder, steps, seconds of a step."""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch

folder, steps, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(7)


def numbers(step: int, rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * step + rank))


def words(step: int, rank: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(1000 * step + rank))


def digest(*models: torch.nn.Module) -> str:
    found = hashlib.sha1()
    for model in models:
        for tensor in model.state_dict().values():
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if isinstance(local, torch.Tensor):
                found.update(bytes(local.detach().float().contiguous().flatten().view(torch.uint8).tolist()))
    return found.hexdigest()[:16]


def write(rank: int, step: int, loss: torch.Tensor | float, *models: torch.nn.Module) -> None:
    time.sleep(pause)
    value = float(loss).hex()
    with (folder / f"rank-{rank}").open("a") as log:
        log.write(f"{step} {value} {digest(*models)} {time.monotonic_ns()} {os.getpid()}\n")


class Block(torch.nn.Module):
    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attend = torch.nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)
        self.wide, self.narrow = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm1(x)
        x = x + self.attend(seen, seen, seen, need_weights=False)[0]
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm2(x))))


class Language(torch.nn.Module):
    """A language model: the root has parameters of its own, the embedding and the head."""

    def __init__(self, width: int = 16, depth: int = 2, tied: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, width)
        self.blocks = torch.nn.ModuleList(Block(width, dropout) for _ in range(depth))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, 64, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def language_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
