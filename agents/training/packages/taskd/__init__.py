"""TaskD's package, as images and training scripts import it, on Belay's engine."""

__version__ = "7.3.0"
