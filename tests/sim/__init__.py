"""The deterministic simulator: real controller, workers and agents on a virtual clock, and everything that can fail.

``clock.install()`` has to run before anything of the engine is imported, therefore simulations run in a process of
their own: ``python -m tests.sim``.
"""
