"""MindIO TFT's package, as scripts import it, on Belay's engine: put `agents/training/packages` on PYTHONPATH."""

__version__ = "7.3.0"
