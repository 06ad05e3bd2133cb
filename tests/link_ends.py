"""Clusters of LLM-DataDist in the test's own process, on loopback: made one by one, ended with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from belay.agents.datadist import LLMClusterInfo, LLMConfig, LLMDataDist, LLMRole


@pytest.fixture
def ends() -> Iterator[list[LLMDataDist]]:
    """What ``end_of`` made; each is finalized."""
    made: list[LLMDataDist] = []
    yield made
    for end in made:
        end.finalize()


def end_of(
    ends: list[LLMDataDist],
    cluster: int,
    role: LLMRole = LLMRole.DECODER,
    port: int | None = None,
    **config: object,
) -> LLMDataDist:
    """A cluster; with ``port`` it listens there, 0 picks one."""
    end = LLMDataDist(role, cluster)
    listen = None if port is None else f"127.0.0.1:{port}"
    end.init(LLMConfig(device_id=0, listen_ip_info=listen, **config).generate_options())  # type: ignore[arg-type]
    ends.append(end)
    return end


def port_of(end: LLMDataDist) -> int:
    """Where it listens."""
    return end.listening[0][1]


def cluster_info(number: int, port: int, ip: str = "127.0.0.1") -> LLMClusterInfo:
    """How a cluster that listens at ``ip`` is linked to."""
    info = LLMClusterInfo()
    info.remote_cluster_id = number
    info.append_local_ip_info("127.0.0.1", 26000)
    info.append_remote_ip_info(ip, port)
    return info


__all__ = ["cluster_info", "end_of", "ends", "port_of"]
