"""``mindio_acp`` as scripts import it; put `agents/training/packages` on PYTHONPATH."""

from agents.training.checkpoint.dropin import megatron as _megatron
from agents.training.checkpoint.dropin.api import (
    convert,
    flush,
    initialize,
    load,
    multi_save,
    preload,
    register_checker,
    save,
)
from agents.training.checkpoint.dropin.files import create_file, open_file
from agents.training.checkpoint.dropin.helper import CheckpointHelper as CheckpointHelper

__version__ = "7.3.0"
__all__ = [
    "initialize",
    "load",
    "save",
    "multi_save",
    "register_checker",
    "convert",
    "preload",
    "open_file",
    "create_file",
    "flush",
]

if _megatron.wanted():
    _megatron.patch()
