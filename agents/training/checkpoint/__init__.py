"""Checkpoints that cost a memory copy: files, pool, writer, tiers and their checks."""
