"""docs/mindcluster-formats.md names every field written in MindCluster's ConfigMaps, and every return code."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.model.recovery.protocol import Code
from engine.plan import plan
from engine.status.mindcluster import ClusterInfo
from engine.status.rescheduling import scheduler_bodies
from engine.status.summaries import job_summaries
from engine.wire import deviceinfo
from tests import worlds

PAGE = (Path(__file__).resolve().parents[1] / "docs/mindcluster-formats.md").read_text()
#: Names that are data (nodes, chips, codes, jobs) or stand for the resource P.
_DATA = re.compile(r"n\d+|mindx-dl-.*|huawei\.com/.*|Ascend910-\d+|[0-9A-F]{8}|train/.*|cluster-info-.*")


def keys(value: Any) -> Iterator[str]:
    """Every key, at any depth, also inside texts that hold JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        # a switch's older codes are lists without quotes
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def bodies() -> dict[str, dict[str, Any]]:
    """What Belay writes about a small world in which much is wrong."""
    faults = [worlds.fault(3), worlds.fault(4, "81078603", "PreSeparateNPU", kind="CardNetworkUnhealthy")]
    pod = worlds.pod("j-0", node="n0", chips=[1], owner=("AscendJob", "j"), labels={"fault-retry-times": "3"})
    reports = [worlds.report("n0", faults=faults, unhealthy=[3], network=[4], switch=worlds.switch())]
    seen = worlds.observed(
        [worlds.node("n0")], reports, [pod], node_reports=[worlds.node_report("n0")]
    )  # fmt: skip
    made = plan(worlds.desired(), seen, worlds.NOW)
    found = {body["metadata"]["name"]: body["data"] for body in ClusterInfo().bodies(made, seen)}
    found |= {body["metadata"]["name"]: body["data"] for body in scheduler_bodies(made, seen)}
    for summary in job_summaries(seen, worlds.NOW):
        found |= {body["metadata"]["name"]: body["data"] for body in summary.bodies()}
    own = deviceinfo.build("n0", device_list={"huawei.com/Ascend910": ""}, update_time=worlds.NOW)
    return found | {"mindx-dl-deviceinfo-n0": own["data"]}


def named(key: str) -> bool:
    """Whether the page has the field, alone or in a path."""
    return any(text in PAGE for text in (f"`{key}`", f".{key}`", f"`{key}."))


def test_every_field_that_is_written_stands_on_the_page() -> None:
    written = {name: sorted({key for key in keys(data) if not _DATA.fullmatch(key)}) for name, data in bodies().items()}
    assert {"cluster-info-device-0", "cluster-info-node-cm", "vcjob-fault-npu-cm"} <= set(written)
    assert len(written["cluster-info-device-0"]) >= 12, "a world in which something is wrong"
    unnamed = {name: [key for key in found if not named(key)] for name, found in written.items()}
    assert {name: rest for name, rest in unnamed.items() if rest} == {}


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_every_return_code_has_a_row(code: Code) -> None:
    assert len(re.findall(rf"^\| {code.value} \| \S", PAGE, re.MULTILINE)) == 1
