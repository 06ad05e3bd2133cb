"""What tests need of the machine. Where a real control plane is offered ($KUBEBUILDER_ASSETS), and in CI, a test whose
needs are not met fails with the reason; on anybody's laptop it is skipped.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NoReturn

import pytest


def required() -> bool:
    """Whether nothing may be missing here."""
    return bool(os.environ.get("CI") or os.environ.get("KUBEBUILDER_ASSETS"))


def lacking(why: str) -> NoReturn:
    """End the test: ``why`` says what is missing, and how to get it."""
    if required():
        pytest.fail(why, pytrace=False)
    pytest.skip(why, allow_module_level=True)


def assets(*programs: str) -> Path:
    """The folder of the real control plane, which holds ``programs``; only where none is configured the test is
    skipped.
    """
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip("KUBEBUILDER_ASSETS is not set: no real control plane")
    missing = [name for name in programs if not os.access(Path(folder) / name, os.X_OK)]
    if missing:
        pytest.fail(f"KUBEBUILDER_ASSETS={folder} holds no {', '.join(missing)}", pytrace=False)
    return Path(folder)


def torch() -> None:
    """PyTorch with gloo, which `make venv-training` installs; for the tests of `agents/training` that run ranks."""
    if importlib.util.find_spec("torch") is None:
        lacking("PyTorch is not installed: run make venv-training")
