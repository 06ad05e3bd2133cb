"""Checksums of tensors, computed where they lie: copies that are equal have the same.

A tensor is read as whole numbers of 64 bits, in rows of a fixed width; columns are summed, and each sum is multiplied
by an odd number of its own. One flipped bit always changes the result; several cancel each other only in one column.
Sums of whole numbers do not depend on the order in which a device adds.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

WIDTH = 1024
MASK = (1 << 64) - 1
FACTOR = 0x9E3779B97F4A7C15
"""Between tensors, so that their order counts."""
_FACTORS: dict[torch.device, torch.Tensor] = {}


def digest(tensors: Iterable[torch.Tensor], begin: int = 0) -> int:
    """A checksum of these tensors in this order; ``begin``: of what came before."""
    sums: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    with torch.no_grad():
        for index, tensor in enumerate(tensors):
            if tensor.numel():
                sums.setdefault(tensor.device, []).append((index, _sum(_bytes(tensor))))
    found: dict[int, int] = {}
    for several in sums.values():
        # one wait for the device, not one for each tensor
        values = torch.stack([value for _, value in several]).tolist()
        found.update(zip((index for index, _ in several), values, strict=True))
    for index in sorted(found):
        begin = ((begin + found[index]) * FACTOR + index) & MASK
    return begin


def _sum(flat: torch.Tensor) -> torch.Tensor:
    """The checksum of bytes, as a tensor of one number on their device."""
    whole = flat.numel() // 8 * 8
    rest = flat[whole:]
    words = flat[:whole].view(torch.int64)
    factors = _factors(flat.device)
    rows = words.numel() // WIDTH * WIDTH
    tail = words[rows:]
    found = (tail * factors[: tail.numel()]).sum()
    if rows:
        found = found + (words[:rows].view(-1, WIDTH).sum(0) * factors).sum()
    if rest.numel():
        found = found + (rest.to(torch.int64) * factors[: rest.numel()]).sum()
    return found


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    # the part of a larger storage may begin anywhere
    return flat if flat.storage_offset() % 8 == 0 else flat.clone()


def _factors(device: torch.device) -> torch.Tensor:
    if device not in _FACTORS:
        chance = torch.Generator().manual_seed(1)
        made = torch.randint(-(1 << 62), 1 << 62, (WIDTH,), generator=chance) | 1
        _FACTORS[device] = made.to(device)
    return _FACTORS[device]
