"""Clusters for the console, of any size, as `kubectl get … -o json` prints them.

``python -m tests.console_clusters NODES CHIPS FILE [--hostile]`` writes one; ``belay console --cluster FILE`` shows it.
A hostile cluster has what no good one has: markup in every text that an author or a node chooses, texts of a megabyte.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from tests.bench.clusters import ascend_job, cluster, device, node, pod, service

Items = list[dict[str, Any]]
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
EVERY_FAULTY, EVERY_WAITING = 40, 25


def large(nodes: int, chips: int = 8, jobs: int = 0) -> Items:
    """Super pods of 24 nodes; one node in forty has a faulty chip, some jobs wait. Two thirds of the nodes run jobs
    unless their number is given.
    """
    jobs = jobs or max(1, nodes // 3)
    items = [item for item in cluster(nodes, jobs, chips=chips) if not _is_report(item)]
    for index in range(nodes):
        faulty = index % chips if index % EVERY_FAULTY == 7 else None
        report = device(f"node-{index:05d}", chips, faulty, super_pod_id=index // 24, server_index=index % 24)
        items.append(report)
    for index in range(max(1, jobs // EVERY_WAITING)):
        name = f"waiting-{index:05d}"
        items += [ascend_job(name, 1, 2 * chips), service(name), waiting_pod(name, 2 * chips)]
    return items


def waiting_pod(job: str, chips: int) -> dict[str, Any]:
    """The pod of a job that has no node yet."""
    body = pod(job, 0, "", chips)
    del body["spec"]["nodeName"]
    for key in ("huawei.com/AscendReal", "huawei.com/Ascend910"):
        del body["metadata"]["annotations"][key]
    return body | {"status": {"phase": "Pending"}}


def hostile(findings: int = 2_000) -> Items:
    """A small cluster whose authors and nodes write markup, megabytes and nonsense."""
    items = large(4)
    for item in items:
        metadata = item["metadata"]
        if item["kind"] == "AscendJob":
            metadata["labels"]["framework"] = MARKUP
            metadata["annotations"] = {"note": MARKUP + "x" * 1_000_000}
        if item["kind"] == "Node":
            metadata["labels"]["accelerator"] = MARKUP
    items.append({**node("node-9", 9), "metadata": {**node("node-9", 9)["metadata"], "name": MARKUP}})
    items.append(device("node-00000", 8, 1))
    # as a person may edit the status by hand
    rows = [
        {"severity": "error", "file": f"desired/{MARKUP}.yaml", "line": n, "column": 1, "message": MARKUP * 40}
        for n in range(findings)
    ]
    data = {"diagnostics.json": orjson.dumps(rows).decode(), "conditions.json": '[{"type": "' + MARKUP + '"}]'}
    items.append(
        {
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": "belay-edited", "namespace": "belay-system"},
        }
    )  # fmt: skip
    return items


def write(items: Items, file: Path) -> None:
    """Write a List."""
    file.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def _is_report(item: dict[str, Any]) -> bool:
    return str(item["metadata"]["name"]).startswith("mindx-dl-deviceinfo-")


def main(words: list[str]) -> int:
    """Exit code 0, or 2 where the arguments are wrong."""
    plain = [word for word in words if not word.startswith("--")]
    if len(plain) != 3 or not (plain[0].isdecimal() and plain[1].isdecimal()):
        sys.stderr.write("python -m tests.console_clusters NODES CHIPS FILE [--hostile]\n")
        return 2
    write(hostile() if "--hostile" in words else large(int(plain[0]), int(plain[1])), Path(plain[2]))
    sys.stdout.write(f"belay console --cluster {plain[2]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
