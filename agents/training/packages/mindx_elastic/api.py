"""The function that a training script calls first."""

from agents.training.torchpatch import patch_torch_methods

__all__ = ["patch_torch_methods"]
