"""Extended resources of DeviceClasses on a real API server that has them, with the rights that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belay.engine.kube import POD
from tests.control_planes import minor
from tests.loop_world import Cluster, Loop, until
from tests.needs import assets
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.test_dra_loop import CLAIM, CLASS, SLICE, publish
from tests.test_workloads_real import HERE, TOLERATIONS, a_server, cluster, loop

__all__ = ["cluster", "loop"]

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

#: The first minor version with extended resources by DRA (feature gate DRAExtendedResource on by default).
FIRST = 36
RESOURCE = "deviceclass.resource.kubernetes.io/npu.huawei.com"


def test_a_pod_gets_its_extended_resource_by_a_claim(kubeconfig: str, cluster: Cluster, loop: Loop) -> None:
    program: Path = assets("kube-apiserver") / "kube-apiserver"
    if minor(program) < FIRST:
        pytest.skip(f"extended resources by DRA came with 1.{FIRST}")
    a_server(cluster, "kinds-0")
    selector = [{"cel": {"expression": "device.driver == 'npu.huawei.com'"}}]
    head: dict[str, Any] = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    cluster.ensure(CLASS, {**head, "metadata": {"name": "npu.huawei.com"}, "spec": {"selectors": selector}})
    publish(cluster, "kinds-0")

    container = {"name": "main", "image": "i", "resources": {"limits": {RESOURCE: "4"}, "requests": {RESOURCE: "4"}}}
    body = {"schedulerName": "belay", "nodeSelector": HERE, "tolerations": TOLERATIONS, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user", "namespace": "default"}, "spec": body}
    made = cluster.create(POD, pod)
    until(lambda: "user" in cluster.bound(), what="the binding")

    said = (cluster.get(POD, "user", "default") or {})["status"]["extendedResourceClaimStatus"]
    (mapping,) = said["requestMappings"]
    assert mapping["containerName"] == "main" and mapping["resourceName"] == RESOURCE
    claim = cluster.get(CLAIM, said["resourceClaimName"], "default")
    assert claim is not None and claim["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert [one["uid"] for one in claim["status"]["reservedFor"]] == [made["metadata"]["uid"]]
    results = claim["status"]["allocation"]["devices"]["results"]
    assert len(results) == 4 and {one["request"] for one in results} == {mapping["requestName"]}
    given = sorted(one["device"] for one in results)
    held = [name for name in cluster.chips() if name.startswith("kinds-0/")]
    assert sorted(name.partition("/")[2].lower() for name in held) == given

    cluster.run(cluster.kube.delete(CLASS, "npu.huawei.com"))
    cluster.run(cluster.kube.delete(SLICE, "kinds-0-npu.huawei.com-0"))
    cluster.run(cluster.kube.patch(CLAIM, claim["metadata"]["name"], {"metadata": {"finalizers": None}}, ns="default"))
