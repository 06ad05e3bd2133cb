"""Checkpoints: saving, loading and proving 2 GiB of float32, beside torch, a plain copy and the disk itself.

Everything in one run, in pairs side by side, so that a busy machine disturbs both sides; what a save or a pass is
compared with is measured before and after it. The floor is one copy of the same tensors to other warm memory by as many
threads; "the disk's own write" is the same bytes with O_DIRECT from an aligned buffer, fsync included; caches of files
are dropped right before loads, so that each finds the memory that the same load had before: fresh memory costs several
times as much where the host of a virtual machine took it back. The disk's own read, with O_DIRECT, needs none. Its rate
jumps twofold between reads, so a load is compared with reads of the same file before and after it, or with torch's,
whichever has the better median. `python -m tests.bench checkpoint checkpoint-reading`; SIZE_MB= smaller.
"""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.measure import RUNS, Result, Skipped, number

SIZE = int(os.environ.get("SIZE_MB", "2048")) << 20
TENSORS = 64
STEP = 16 << 20
PAIRS = RUNS + 4
"""Pairs of what takes a fraction of a second: a median of five is moved by two disturbances."""


def run() -> list[Result]:
    """Saving, alone and beside training."""
    return _run(lambda bench: [*bench.saving(), *bench.overlap()])


def run_reading() -> list[Result]:
    """Loading and proving: a section of its own, so that neither takes more than a few minutes."""
    return _run(lambda bench: bench.reading())


def _run(rows: Callable[[_Bench], list[Result]]) -> list[Result]:
    try:
        import torch
    except ImportError as error:
        raise Skipped("PyTorch is not installed (requirements-training.lock)") from error
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
    with tempfile.TemporaryDirectory(prefix="belay-bench-", dir=os.environ.get("BENCH_DISK")) as folder:
        return _Bench(torch, Path(folder)).run(rows)


def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class _Bench:
    def __init__(self, torch: Any, folder: Path) -> None:
        from belay.agents.training.checkpoint.client import WriterClient
        from belay.agents.training.checkpoint.saver import Saver
        from belay.agents.training.checkpoint.settings import WriterSettings

        self.torch, self.folder = torch, folder
        self.client = WriterClient(folder / "work", WriterSettings(capacity_gb=64))
        self.saver = Saver(self.client)
        self.state = {f"layer.{n}": torch.randn(SIZE // TENSORS // 4) for n in range(TENSORS)}
        self.spare = [torch.empty_like(tensor).copy_(tensor) for tensor in self.state.values()]

    def run(self, rows: Callable[[_Bench], list[Result]]) -> list[Result]:
        try:
            self.saver.reserve(self.state)
            return rows(self)
        finally:
            with suppress(Exception):
                self.client.ask({"do": "stop"})

    def saving(self) -> list[Result]:
        from belay.agents.training.checkpoint import blocks

        pairs = list(zip(self.spare, self.state.values(), strict=True))
        copies = [(to.data_ptr(), of.data_ptr(), of.nbytes) for to, of in pairs]
        floor, returns, durable, disk = [], [], [], []
        threads = blocks.workers()
        buffer = mmap.mmap(-1, SIZE)
        while buffer.tell() < SIZE:
            buffer.write(b"\x5a" * min(STEP, SIZE - buffer.tell()))
        for turn in range(PAIRS + 1):
            before = _timed(lambda: blocks.copy(copies, threads))
            begin = time.perf_counter()
            pending = self.saver.save(self.state, self.folder / "a.pt")
            returns.append(time.perf_counter() - begin)
            pending.durable()
            durable.append(time.perf_counter() - begin - returns[-1])
            disk.append(_timed(lambda: self._write(buffer)))
            floor.append((before + _timed(lambda: blocks.copy(copies, threads))) / 2)
            if not turn:
                # the first turn makes everything warm
                for runs in (floor, returns, durable, disk):
                    runs.clear()
        buffer.close()
        save = [_timed(lambda: self.torch.save(self.state, self.folder / "t.pt")) for _ in range(3)]
        dcp, staging = self._dcp(), self._staging()
        least = min(floor)
        return [
            Result("save() returns, times the copy's floor", "×", 1.1, _ratios(returns, floor),
                   f"floor {_seconds(floor)}, save {_seconds(returns)}, least against least "
                   f"{min(returns) / least:.2f} ×; torch.save {_seconds(save)}, DCP async {dcp}, "
                   f"kept staging {staging}"),
            Result("durable after return, times the disk's own write", "×", 1.15, _ratios(durable, disk),
                   f"disk {_seconds(disk)} ({number(SIZE / statistics.median(disk) / 1e6)} MB/s), "
                   f"durable {_seconds(durable)}"),
        ]  # fmt: skip

    def _write(self, buffer: mmap.mmap) -> None:
        view = memoryview(buffer)
        handle = os.open(self.folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
        try:
            for start in range(0, SIZE, STEP):
                os.pwrite(handle, view[start : start + STEP], start)
            os.fsync(handle)
        finally:
            os.close(handle)
            view.release()

    def _dcp(self) -> str:
        import torch.distributed.checkpoint as dcp

        runs = []
        for turn in range(2):
            begin = time.perf_counter()
            try:
                future = dcp.async_save(self.state, checkpoint_id=str(self.folder / f"dcp-{turn}"), no_dist=True)
            except Exception as error:
                return f"refused ({type(error).__name__})"
            runs.append(time.perf_counter() - begin)
            future.result()
        return _seconds(runs)

    def _staging(self) -> str:
        """What torch's own stager costs once its buffers on the host exist and are kept from save to save."""
        from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict

        kept = _create_cpu_state_dict(self.state)
        _copy_state_dict(self.state, kept)
        return _seconds([_timed(lambda: _copy_state_dict(self.state, kept)) for _ in range(RUNS)])

    def overlap(self) -> list[Result]:
        torch = self.torch
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
        data = torch.randn(2048, 1024)

        def passes() -> None:
            for _ in range(2):
                model(data).square().mean().backward()

        passes()
        calls, waits, slower = [], [], []
        alone = _timed(passes)
        for _ in range(PAIRS):
            begin = time.perf_counter()
            pending = self.saver.save_async(self.state, self.folder / "a.pt")
            calls.append((time.perf_counter() - begin) * 1000)
            beside = _timed(passes)
            waits.append(_timed(pending.copied) * 1000)
            pending.durable()
            before, alone = alone, _timed(passes)
            slower.append(2 * beside / (before + alone))
        return [
            Result("overlapped save: the call", "ms", 5, calls, "structure pickled, copy begun"),
            Result("overlapped save: the wait before the optimizer", "ms", 5, waits),
            Result("forward and backward beside the copy", "×", 1.3, slower,
                   f"beside the same passes alone, before and after, {alone:.2f} s"),
        ]  # fmt: skip

    def reading(self) -> list[Result]:
        from belay.agents.training.checkpoint import background, reading, sets, verifying
        from belay.agents.training.checkpoint.native import Checkpoints
        from belay.agents.training.checkpoint.saver import Saver

        path, zipped = self.folder / "a.pt", self.folder / "t.pt"
        self.saver.save(self.state, path).durable()
        self.torch.save(self.state, zipped)
        checkpoints = Checkpoints(self.folder / "job", 0, 1, through=Saver(None))
        checkpoints.save(self.state, 1)
        own = sets.rank_file(self.folder / "job", 1, 0, 1)
        newest, proven, torchs, disk, verify, memory, later, fresh = [], [], [], [], [], [], [], []
        for _ in range(PAIRS):
            before = _timed(lambda: self._read(own))
            newest.append(self._cold(own, lambda: self._touch(checkpoints.load_newest()[1])))
            disk.append((before + _timed(lambda: self._read(own))) / 2)
            torchs.append(self._cold(zipped, lambda: self._touch(torch_load(self.torch, zipped))))
            verify.append(_timed(lambda: verifying.verify(own)))
        for _ in range(RUNS):
            before = _timed(lambda: self._read(own))
            loaded = self._cold(own, lambda: reading.load(own))
            proven.append(2 * loaded / (before + _timed(lambda: self._read(own))))
            fresh.append(_timed(self._fresh))
            memory.append(_timed(lambda: self._touch(self.saver.load(path))) * 1000)
            state = checkpoints.load_newest()[1]
            later.append(_timed(background.finish))
            del state
        best = min(disk, torchs, key=statistics.median)
        return [
            Result("load_newest(), every byte proven, times the better of torch.load(mmap) and the disk", "×", 1.1,
                   _ratios(newest, best),
                   f"{_seconds(newest)}, touched; disk {_seconds(disk)}, torch.load(mmap) touched {_seconds(torchs)}; "
                   f"memory of its own, in the background, takes {_seconds(later)}"),
            Result("the same from the memory of the writing process", "ms", None, memory, "touched"),
            Result("load of a file of any name, which waits for memory of its own, times the disk's read", "×", None,
                   proven, f"first access to as much fresh memory {_seconds(fresh)}"),
            Result("verify, of the disk's rate", "%", 80, [100 * a / b for a, b in zip(disk, verify, strict=True)],
                   f"verify {_seconds(verify)}, disk {_seconds(disk)}", at_least=True),
        ]  # fmt: skip

    def _fresh(self) -> None:
        with mmap.mmap(-1, SIZE) as memory:
            for start in range(0, SIZE, mmap.PAGESIZE):
                memory[start] = 1

    def _cold(self, path: Path, work: Callable[[], Any]) -> float:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
        return _timed(work)

    def _read(self, path: Path) -> None:
        """The disk's own read: O_DIRECT into warm memory."""
        with mmap.mmap(-1, STEP) as buffer:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                start = 0
                while done := os.preadv(handle, [buffer], start):
                    start += done
            finally:
                os.close(handle)

    def _touch(self, state: dict[str, Any]) -> None:
        """Nothing of a mapped file has been read before it is used."""
        for tensor in state.values():
            tensor[:: 4096 // 4].sum()


def torch_load(torch: Any, path: Path) -> Any:
    """Load a checkpoint as PyTorch alone does."""
    return torch.load(path, mmap=True, weights_only=True)


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def _seconds(runs: list[float]) -> str:
    return f"{statistics.median(runs):.2f} s ({min(runs):.2f}–{max(runs):.2f})"
