"""``mindio_acp`` as scripts import it; put `agents/training/packages` on PYTHONPATH.

Without PyTorch, as in MindSpore's images, it has what such scripts use: files, and the process that writes them.
"""

from importlib.util import find_spec as _find_spec

from belay.agents.training.checkpoint.dropin.files import create_file, open_file
from belay.agents.training.checkpoint.dropin.process import flush, initialize, preload, register_checker

__version__ = "7.3.0"
__all__ = ["initialize", "register_checker", "preload", "open_file", "create_file", "flush"]

if _find_spec("torch") is not None:
    from belay.agents.training.checkpoint.dropin import megatron as _megatron
    from belay.agents.training.checkpoint.dropin.api import convert, load, multi_save, save
    from belay.agents.training.checkpoint.dropin.helper import CheckpointHelper as CheckpointHelper

    __all__ += ["load", "save", "multi_save", "convert"]
    if _megatron.wanted():
        _megatron.patch()
else:

    def __getattr__(name: str) -> object:
        if name in ("load", "save", "multi_save", "convert", "CheckpointHelper"):
            raise ImportError(f"mindio_acp.{name} needs PyTorch, which is not installed: pip install torch")
        raise AttributeError(f"module 'mindio_acp' has no attribute {name!r}")
