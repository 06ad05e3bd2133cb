"""Options and rules for every test."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden narratives from what happens now")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten; never in CI."""
    return bool(request.config.getoption("--update-golden")) and not os.environ.get("CI")
