"""Megatron's checkpointing through the pool, switched on by ``MINDIO_AUTO_PATCH_MEGATRON=true``.

``megatron.training.checkpointing`` keeps its own logic; inside it ``torch.save`` and ``torch.load`` are replaced, the
tracker file is written once the iteration is on the storage, and optimizers wait for copies before they step.
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
import os
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from agents.training.checkpoint import durable, sets
from agents.training.checkpoint.dropin import api, helper

log = logging.getLogger("belay.checkpoint")

SWITCH = "MINDIO_AUTO_PATCH_MEGATRON"
TRACKER_S = 300
_OPTIMIZERS = ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer")


def wanted() -> bool:
    """Whether the environment enables the patch."""
    return os.environ.get(SWITCH, "").lower() in ("true", "1")


def patch() -> list[str]:
    """Patch the installed parts of Megatron; their names, for the log."""
    done = []
    for name in ("megatron.training.checkpointing", "megatron.checkpointing"):
        module = _module(name)
        if module is not None and not isinstance(module.__dict__.get("torch"), _Torch):
            module.__dict__["torch"] = _Torch(module.__dict__["torch"])
            module.__dict__["open"] = _open
            done.append(name)
    module = _module("megatron.core.optimizer.optimizer")
    for name in _OPTIMIZERS if module is not None else ():
        kind = getattr(module, name, None)
        if kind is not None and not hasattr(kind.step, "waits_for_copies"):
            kind.step = _waiting(kind.step)
            done.append(name)
    return done


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class _Torch:
    """torch as Megatron's checkpointing sees it, with other functions for saving and loading."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        """Save names through the pool, in the background; open files with torch."""
        if not isinstance(f, str | os.PathLike):
            self._real.save(obj, f, *args, **kwargs)
        elif len(os.fspath(f)) > api.PATH_LIMIT:
            raise ValueError(f"the name has {len(os.fspath(f))} characters; {api.PATH_LIMIT} are allowed")
        else:
            helper.CheckpointHelper(_rank()).save_model_checkpoint(str(os.fspath(f)), obj)

    def load(self, f: Any, map_location: Any = None, *, weights_only: bool = False, **kwargs: Any) -> Any:
        """Load names from memory or storage. Megatron trusts its own files by default."""
        if isinstance(f, str | os.PathLike) and map_location in (None, "cpu"):
            return api.load(f, weights_only=weights_only)
        return self._real.load(f, map_location=map_location, weights_only=weights_only, **kwargs)


def _open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    """``open`` as Megatron's checkpointing sees it: the tracker file waits for its iteration."""
    if mode == "w" and isinstance(file, str | os.PathLike) and Path(file).name == sets.TRACKER:
        return _Tracker(Path(file))
    return open(file, mode, *args, **kwargs)


class _Tracker(io.StringIO):
    """Text that is written to the tracker file once all earlier saves are on the storage."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def close(self) -> None:
        """Write the file in the background; when the iteration cannot be stored, the old file stays."""
        if self.closed:
            return
        text = self.getvalue()
        super().close()
        helper.CheckpointHelper(_rank()).wait_copied()

        def write() -> None:
            if api.flush():
                log.error("%s keeps its old iteration: not all of %s is on the storage", self.path, text)
            elif lacking := _lacking(self.path.parent, text):
                log.error("%s keeps its old iteration: %s", self.path, lacking)
            else:
                durable.write(self.path, memoryview(bytearray(text.encode())), mode=0o644)

        threading.Thread(target=write, daemon=False, name="checkpoint-tracker").start()


def _lacking(folder: Path, text: str) -> str:
    """The missing files of an iteration; files of other hosts' ranks are checked by the set."""
    if not text.strip().isdecimal():
        return ""
    for _ in range(TRACKER_S):
        one = next((one for one in sets.scan(folder) if one.step == int(text)), None)
        troubles = [line for line in (one.missing if one else ()) if not line.startswith(sets.TRACKER)]
        staged = list(one.folder.rglob("*" + durable.STAGING)) if one else []
        if one is not None and not troubles and not staged:
            return ""
        time.sleep(1.0)
    return f"iteration {text} is not whole after {TRACKER_S} s"


def _waiting(step: Any) -> Any:
    @functools.wraps(step)
    def waits(*args: Any, **kwargs: Any) -> Any:
        helper.CheckpointHelper(_rank()).wait_d2h_finished()
        return step(*args, **kwargs)

    waits.waits_for_copies = True  # type: ignore[attr-defined]
    return waits


def _rank() -> int:
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0
