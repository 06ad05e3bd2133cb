"""Checkpoints of a device's memory, saved while it computes.

The state lies on the accelerator that PyTorch finds, 16 GiB or half of its free memory (SIZE_MB= smaller). Steps are
forward and backward passes of a model beside it, timed by the device's own end; steps alone and beside a copy
alternate. The floor is the link's own rate: the same bytes from the device to pinned memory, one buffer after another.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.measure import RUNS, Result, Skipped

SIZE = int(os.environ.get("SIZE_MB", "16384")) << 20
TENSORS = 64
PASSES = 40
WIDTH = 4096


def run() -> list[Result]:
    """Raises Skipped without an accelerator."""
    try:
        import torch
    except ImportError as error:
        raise Skipped("PyTorch is not installed (requirements-training.lock)") from error
    if not torch.accelerator.is_available():
        raise Skipped("PyTorch finds no accelerator (this wheel is for CPUs, or the machine has none)")
    with tempfile.TemporaryDirectory(prefix="belay-bench-", dir=os.environ.get("BENCH_DISK")) as folder:
        return _measure(torch, Path(folder))


def _measure(torch: Any, folder: Path) -> list[Result]:
    from belay.agents.training.checkpoint.client import WriterClient
    from belay.agents.training.checkpoint.saver import Saver
    from belay.agents.training.checkpoint.settings import WriterSettings

    device = torch.accelerator.current_accelerator()
    module = torch.get_device_module(device)
    size = min(SIZE, module.mem_get_info()[0] // 2)
    state = {f"layer.{n}": torch.randn(size // TENSORS // 4, device=device) for n in range(TENSORS)}
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(8))).to(device)
    data = torch.randn(WIDTH, WIDTH, device=device)

    def steps() -> float:
        module.synchronize()
        begin = time.perf_counter()
        for _ in range(PASSES):
            model(data).square().mean().backward()
        module.synchronize()
        return time.perf_counter() - begin

    client = WriterClient(folder / "work", WriterSettings(capacity_gb=256))
    saver = Saver(client)
    try:
        saver.reserve(state)
        steps()
        calls, waits, slower, whole = [], [], [], []
        for _ in range(RUNS):
            alone = steps()
            begin = time.perf_counter()
            pending = saver.save_async(state, folder / "a.pt")
            calls.append((time.perf_counter() - begin) * 1000)
            slower.append(steps() / alone)
            begin = time.perf_counter()
            pending.copied()
            waits.append((time.perf_counter() - begin) * 1000)
            begin = time.perf_counter()
            saver.save(state, folder / "b.pt")
            whole.append(time.perf_counter() - begin)
            pending.durable()
        floor = [_link(torch, module, state) for _ in range(RUNS)]
        return [
            Result("save of a device's memory: the call", "ms", 20, calls, f"{size / (1 << 30):.1f} GiB"),
            Result("the wait before the optimizer", "ms", 5, waits, f"{PASSES} passes of {alone:.2f} s in between"),
            Result("training beside the copy", "×", 1.02, slower, "beside the same passes alone, just before"),
            Result("copied to the host, times the link's own rate", "×", 1.1,
                   [ours / theirs for ours, theirs in zip(whole, floor, strict=True)],
                   f"save {min(whole):.2f} s, link {min(floor):.2f} s"),
        ]  # fmt: skip
    finally:
        with suppress(Exception):
            client.ask({"do": "stop"})


def _link(torch: Any, module: Any, state: dict[str, Any]) -> float:
    buffer = torch.empty_like(next(iter(state.values())), device="cpu", pin_memory=True)
    module.synchronize()
    begin = time.perf_counter()
    for tensor in state.values():
        buffer.copy_(tensor, non_blocking=True)
    module.synchronize()
    return time.perf_counter() - begin
