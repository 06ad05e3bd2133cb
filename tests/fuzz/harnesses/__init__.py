"""Every harness, by name."""

from __future__ import annotations

from typing import Final

from tests.fuzz.harness import Harness
from tests.fuzz.harnesses import (
    clusters,
    command_line,
    config_maps,
    console,
    documents,
    driver_library,
    node_files,
    notifications,
    pods,
    repositories,
    reviews,
    servers,
    signatures,
    tools,
    training,
    working_memory,
)

HARNESSES: Final[dict[str, Harness]] = {
    harness.name: harness
    for module in (
        config_maps,
        pods,
        documents,
        repositories,
        reviews,
        servers,
        working_memory,
        tools,
        driver_library,
        node_files,
        training,
        signatures,
        clusters,
        command_line,
        console,
        notifications,
    )
    for harness in module.HARNESSES
}
