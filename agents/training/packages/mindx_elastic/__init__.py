"""The Elastic Agent's package, as training scripts import it; put `agents/training/packages` on PYTHONPATH."""

__version__ = "7.3.0"
