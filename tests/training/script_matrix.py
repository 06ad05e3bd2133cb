"""The matrix of scripts as users write them, and how each is run; ``user_scripts.py`` hurts them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.training.launched import Job

CHECKPOINTS = "checkpoints"
"""A folder below that of the job."""

OF_TWO_PARTS = ((0, 1), (2, 3), (0, 3), (1, 2))
"""Of four ranks, two copies of two parts: each two that do not hold the same."""

ALL_OF_TWO = ((0, 1),)
"""Both of two ranks: their state comes from a checkpoint."""


@dataclass(frozen=True)
class UserScript:
    """A script of ``scripts/users``, or of another ``folder``, and how it is run. ``refused``: what a run says that
    cannot be protected, with exit code ``code``; ``spared``: ranks that are not killed, because their state is
    documented to be theirs alone; ``quiet``: nothing is killed, and no rank may be taken for one that hangs."""

    file: str
    special: str = ""
    ranks: int = 2
    every: int = 0
    refused: str = ""
    code: int = 0
    spared: tuple[int, ...] = ()
    quiet: bool = False
    options: tuple[str, ...] = ()
    folder: str = "users"
    needs: str = ""
    """A package that it imports and that not every environment has."""
    together: tuple[tuple[int, int], ...] = ()
    """Two ranks that may be lost at once: what they hold is held by others, or saved."""

    def missing(self) -> str:
        """The package that this environment lacks; empty when none is missing."""
        return self.needs if self.needs and importlib.util.find_spec(self.needs) is None else ""

    def start(self, folder: Path, steps: int, pause: float) -> Job:
        """Start it in a folder of its own."""
        options = ["--nproc", str(self.ranks), *self.options]
        if self.every:
            options += ["--checkpoints", str(folder / CHECKPOINTS), "--checkpoint-every", str(self.every)]
        special = (self.special,) if self.special else ()
        return Job(folder, f"{self.folder}/{self.file}", steps, pause, *special, options=tuple(options))


def fsdp(special: str = "-", ranks: int = 4, **more: Any) -> UserScript:
    """A variant of the language model under FSDP2."""
    return UserScript("fsdp_language.py", special, ranks, together=OF_TWO_PARTS if ranks == 4 else ALL_OF_TWO, **more)


def parts(special: str, **more: Any) -> UserScript:
    """Ranks that hold different parts of a model."""
    return UserScript("parallel_parts.py", special, 4, together=OF_TWO_PARTS, **more)


def ddp(special: str, **more: Any) -> UserScript:
    """A variant of a small model under DistributedDataParallel."""
    return UserScript("ddp_variants.py", special, **more)


def framework(file: str, package: str, ranks: int = 2) -> UserScript:
    """A sample for a framework that brings its own loop or its own wrappers."""
    return UserScript(file, ranks=ranks, folder="frameworks", needs=package)


def waits(special: str, **more: Any) -> UserScript:
    """A script that waits, or fails; with a short limit. Its wait is the fault: nothing is killed."""
    return UserScript("waits.py", special, options=("--quiet-limit", "1.5"), quiet=True, **more)


SCRIPTS: dict[str, UserScript] = {
    # FSDP2, two copies of two shards
    "fsdp": fsdp(),
    "fsdp-tied": fsdp("tied"),
    "fsdp-mixed": fsdp("mixed"),
    "fsdp-offload": fsdp("offload"),
    "fsdp-activations": fsdp("activations"),
    "fsdp-kept": fsdp("kept"),
    "fsdp-accumulate": fsdp("accumulate"),
    "fsdp-flat": fsdp("flat", 2, every=3),
    # other parts of a state
    "pipeline": parts("pipeline"),
    "experts": parts("experts"),
    "tensor-parallel": parts("tensor"),
    "experts-unnamed": parts("unnamed", refused="name the parts: run.protect(…, part=", code=1),
    "zero": UserScript("zero_schedule.py", every=3, together=ALL_OF_TWO),
    # DDP
    "ddp": ddp("-"),
    "ddp-inside": UserScript("ddp_inside.py"),
    "ddp-tied": ddp("tied"),
    "ddp-frozen": ddp("frozen"),
    "ddp-momentum-onecycle": ddp("momentum,onecycle"),
    "ddp-rmsprop-sequence": ddp("rmsprop,sequence"),
    "ddp-nadam-plateau": ddp("nadam,plateau"),
    "ddp-adafactor": ddp("adafactor"),
    "ddp-tensor-rate": ddp("tensor-rate"),
    "ddp-accumulated": ddp("accumulated"),
    "ddp-mixed": ddp("mixed"),
    "ddp-scaled": ddp("scaled"),
    "ddp-augmented": ddp("augmented"),
    "ddp-compiled": ddp("compiled"),
    "ddp-static": ddp("static_graph"),
    "ddp-unused": ddp("find_unused_parameters"),
    "ddp-views": ddp("gradient_as_bucket_view"),
    "micro-steps": UserScript("micro_steps.py"),
    # what a forward pass changes, and data
    "statistics": UserScript("normalized.py", "shared"),
    "batch-norm": UserScript("normalized.py", "batch", spared=(0,)),
    "loader": UserScript("loaders.py", "-"),
    "loader-noise": UserScript("loaders.py", "noise"),
    "loader-helped": UserScript("loaders.py", "helped,shuffle,noise"),
    "loader-saved": UserScript("loaders.py", "shuffle,noise", every=3, together=ALL_OF_TWO),
    "loader-workers": UserScript("loaders.py", "workers,noise"),
    "loader-shuffle": UserScript("loaders.py", "shuffle"),
    "loader-shuffle-workers": UserScript("loaders.py", "shuffle,workers,noise"),
    # waits and errors
    "waits-socket": waits("socket"),
    "waits-sleep": waits("sleep"),
    "waits-idle": waits("idle"),
    "waits-forever": waits("forever", refused="hangs in a row without a finished step", code=1),
    "waits-mismatch": waits("mismatch", refused="are in recv, waits.py:29", code=1),
    "own-error": waits("words", refused="RuntimeError: Interrupted: the gloo and NCCL", code=1),
    # frameworks
    "accelerate": framework("accelerate_loop.py", "accelerate"),
    "lightning": framework("lightning_trainer.py", "pytorch_lightning"),
    "megatron-core": framework("megatron_core.py", "megatron", 4),
    "transformers": framework("transformers_trainer.py", "transformers"),
    # optimizers and states
    "around": UserScript("own_optimizers.py", "around"),
    "lookahead": UserScript("own_optimizers.py", "slow"),
    "closure": UserScript("own_optimizers.py", "closure", every=3),
    "two-optimizers": UserScript("own_optimizers.py", "two"),
    "outside": UserScript(
        "own_optimizers.py", "outside", refused="parameters were changed between two updates", code=1
    ),
    "unknown-state": UserScript("own_optimizers.py", "unknown", refused="holds a builtins.object", code=1),
    "sparse-state": UserScript("own_optimizers.py", "sparse", refused="only plain (strided) tensors", code=1),
}
