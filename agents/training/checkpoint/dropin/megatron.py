"""Megatron's checkpointing through the pool, switched on by ``MINDIO_AUTO_PATCH_MEGATRON=true``.

``megatron.training.checkpointing`` and the optimizers keep their own logic; inside them ``torch.save`` and
``torch.load`` are replaced, the tracker file is written once the iteration is on the storage, and optimizers wait for
copies before they step. While the model is built, the files of the rank are taken into memory; ``--replica-count`` of
MindSpeed-LLM is accepted (replicas are Megatron's own business here: each file is written once).
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from belay.agents.training.checkpoint import durable, sets
from belay.agents.training.checkpoint.dropin import api, helper, process

log = logging.getLogger("belay.checkpoint")

SWITCH = "MINDIO_AUTO_PATCH_MEGATRON"
TRACKER_S = 300
_OPTIMIZERS = ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer")
_CHECKPOINTING = ("megatron.training.checkpointing", "megatron.checkpointing")
_STATES = ("megatron.core.optimizer.optimizer", "megatron.core.optimizer.distrib_optimizer")
"""Modules in which optimizers save and load their sharded state (``distrib_optim.pt``)."""
_PARSING = ("megatron.training.arguments", "megatron.training.initialize")


def wanted() -> bool:
    """Whether the environment enables the patch."""
    return os.environ.get(SWITCH, "").lower() in ("true", "1")


def patch() -> list[str]:
    """Patch the installed parts of Megatron; their names, for the log."""
    done = []
    for name in (*_CHECKPOINTING, *_STATES):
        module = _module(name)
        real = None if module is None else module.__dict__.get("torch")
        if module is not None and real is not None and not isinstance(real, _Torch):
            module.__dict__["torch"] = _Torch(real)
            if name in _CHECKPOINTING:
                module.__dict__["open"] = _open
            done.append(name)
    for name, function, wrap in (
        *((f"{_STATES[0]}.{kind}", "step", _waiting) for kind in _OPTIMIZERS),
        *((name, "parse_args", _with_options) for name in _PARSING),
        (_PARSING[1], "setup_logging", _preloading),
    ):
        if _wrap(name, function, wrap):
            done.append(f"{name}.{function}")
    return done


def _wrap(name: str, function: str, wrap: Callable[[Any], Any]) -> bool:
    """Replace ``function`` of a module or of a class in it; False if it is missing or replaced already."""
    place: Any = _module(name)
    if place is None:
        module, _, kind = name.rpartition(".")
        place = getattr(_module(module), kind, None)
    found = getattr(place, function, None)
    if found is None or getattr(found, "of_the_pool", False):
        return False
    made = wrap(found)
    made.of_the_pool = True
    setattr(place, function, made)
    return True


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

    def load(self, f: Any, map_location: Any = None, *, weights_only: bool | None = None, **kwargs: Any) -> Any:
        """Load names from memory or storage. Whether pickles may run code is torch's own default, so that this patch
        opens nothing that was closed: since 2.6 only data is loaded, and Megatron says ``weights_only=False`` itself.
        """
        if weights_only is None:
            weights_only = _only_data(str(self._real.__version__))
        if isinstance(f, str | os.PathLike) and (map_location is None or str(map_location) == "cpu"):
            return api.load(f, weights_only=weights_only)
        return self._real.load(f, map_location=map_location, weights_only=weights_only, **kwargs)


def _only_data(version: str) -> bool:
    """Whether this version of torch loads only data where its caller says nothing (torch 2.6, release notes)."""
    numbers = [int(part) for part in version.split("+")[0].split(".")[:2]]
    return numbers >= [2, 6]


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
            if process.flush():
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
        # no barrier: ranks that save nothing would have to take part in every step
        helper.CheckpointHelper(_rank()).wait_copied()
        return step(*args, **kwargs)

    return waits


def _with_options(parse_args: Any) -> Any:
    """Megatron's ``parse_args`` with MindSpeed-LLM's options of checkpoints."""

    @functools.wraps(parse_args)
    def parses(extra_args_provider: Any = None, *args: Any, **kwargs: Any) -> Any:
        def provider(parser: Any) -> Any:
            if extra_args_provider is not None:
                parser = extra_args_provider(parser)
            # frameworks above Megatron may define the same options
            parser.conflict_handler = "resolve"
            group = parser.add_argument_group(title="high_availability")
            group.add_argument("--replica-count", type=int, default=1, help="copies of the optimizer's state")
            return parser

        return parse_args(provider, *args, **kwargs)

    return parses


def _preloading(setup_logging: Any) -> Any:
    """``setup_logging``, which Megatron calls before it builds the model, with the start of reading."""

    @functools.wraps(setup_logging)
    def preloads(*args: Any, **kwargs: Any) -> Any:
        if process.running():
            variables = _module("megatron.training.global_vars")
            names = [] if variables is None else _files_of(variables.get_args())
            if names and process.preload(*names):
                log.warning("rank %d reads its checkpoint when it is loaded, not before", _rank())
        return setup_logging(*args, **kwargs)

    return preloads


def _files_of(args: Any) -> list[str]:
    """The files of this rank in the iteration that the tracker file names; none without a checkpoint to load.

    Parallel groups do not exist yet: names follow from Megatron's order of ranks (tensor, expert, data, pipeline).
    """
    if not getattr(args, "load", None) or (step := sets.tracker(Path(args.load))) is None:
        return []
    rank, world = args.rank, args.world_size
    tensor, pipeline = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    expert = getattr(args, "expert_model_parallel_size", 1)
    name = f"mp_rank_{rank % tensor:02d}"
    name += f"_{rank * pipeline // world:03d}" if pipeline > 1 else ""
    name += f"_{rank // tensor % expert:03d}" if expert > 1 else ""
    folder = Path(args.load) / f"iter_{step:07d}" / name
    wanted = ["model_optim_rng.pt", *([] if getattr(args, "no_load_optim", False) else ["distrib_optim.pt"])]
    return [str(folder / one) for one in wanted if (folder / one).is_file()]


def _rank() -> int:
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0
