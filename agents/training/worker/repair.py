"""Copies state from a donor's memory to another rank, over the new generation's group.

Small tensors share a bucket, so that they need no message each; every bucket has a checksum, so that a wrong weight is
never taken over silently.
"""

from __future__ import annotations

import ctypes
import json
import zlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from agents.training.worker.encoding import described
from agents.training.worker.interruption import Interrupted
from agents.training.worker.protected import Protected

BUCKET = 32 << 20
"""Maximum size of a bucket in bytes."""


def send_state(protected: Protected, receiver: int, step: int) -> None:
    """Send this rank's state to ``receiver``."""
    meta, tensors = protected.capture()
    text = json.dumps({"step": step, "meta": meta}).encode()
    header = torch.tensor([len(text)], dtype=torch.int64)
    dist.send(header, receiver)
    dist.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), receiver)
    for group in _buckets([tensor.numel() * tensor.element_size() for tensor in tensors]):
        flat = torch.cat([_bytes(tensors[index]) for index in group])
        if not flat.numel():
            continue
        dist.send(flat, receiver)
        dist.send(torch.tensor([_checksum(flat)], dtype=torch.int64), receiver)


def receive_state(protected: Protected, donor: int, step: int) -> int:
    """Receive the state of ``donor`` and restore it; the number of bytes. Until it is complete, this rank holds
    none."""
    protected.whole = False
    header = torch.zeros(1, dtype=torch.int64)
    dist.recv(header, donor)
    text = torch.empty(int(header.item()), dtype=torch.uint8)
    dist.recv(text, donor)
    message: dict[str, Any] = json.loads(ctypes.string_at(text.data_ptr(), text.numel()))
    if message["step"] != step:
        raise Interrupted(f"rank {donor} sends step {message['step']}, step {step} was planned")
    kinds = described(message["meta"], [])
    sizes = [_size(dtype, shape) for dtype, shape, _ in kinds]
    total: int = sum(sizes)
    tensors: list[torch.Tensor | None] = [None] * len(kinds)
    for group in _buckets(sizes):
        flat = torch.empty(sum(sizes[index] for index in group), dtype=torch.uint8)
        if flat.numel():
            dist.recv(flat, donor)
            checksum = torch.zeros(1, dtype=torch.int64)
            dist.recv(checksum, donor)
            if int(checksum.item()) != _checksum(flat):
                raise Interrupted(f"a part of the state arrived from rank {donor} with another checksum")
        at = 0
        for index in group:
            dtype, shape, device = kinds[index]
            part = flat[at : at + sizes[index]]
            at += sizes[index]
            # a part may begin at an address that its type cannot
            whole = part.view(dtype) if part.storage_offset() % dtype.itemsize == 0 else part.clone().view(dtype)
            tensors[index] = whole.view(shape) if device == "cpu" else whole.view(shape).to(device)
    protected.restore(message["meta"], [tensor for tensor in tensors if tensor is not None])
    protected.done, protected.whole = step, True
    return total


def _buckets(sizes: list[int]) -> Iterator[list[int]]:
    """Indices of the tensors of each bucket, in order."""
    group: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if group and total + size > BUCKET:
            yield group
            group, total = [], 0
        group.append(index)
        total += size
    if group:
        yield group


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)


def _size(dtype: torch.dtype, shape: list[int]) -> int:
    count: int = dtype.itemsize
    for size in shape:
        count *= size
    return count


def _checksum(flat: torch.Tensor) -> int:
    return zlib.adler32((ctypes.c_char * flat.numel()).from_address(flat.data_ptr()))
