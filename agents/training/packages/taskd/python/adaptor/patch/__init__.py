"""Importing this changes torch's elastic agent; the import is in torch/distributed/run.py."""

from belay.agents.training.compat.taskd.torch_hook import apply

apply()
