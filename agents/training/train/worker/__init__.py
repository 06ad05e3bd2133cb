"""Code that runs inside each rank. Only files of this folder and of `native/` import torch, and only in ranks."""
