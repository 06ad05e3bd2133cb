"""The Elastic Agent's patch. Images import this module in torch/distributed/run.py, and the patch takes effect there;
scripts may call the function themselves."""

import sys

from belay.agents.training.compat.torchpatch import patch_torch_methods

if "torch" in sys.modules:
    try:
        patch_torch_methods()
    except ImportError:
        # this build of torch has no elastic agent
        pass

__all__ = ["patch_torch_methods"]
