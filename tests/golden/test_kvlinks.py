"""The narrative of a KVLink: clusters that start, a chip that fails under one, a second decode pod, the end."""

from __future__ import annotations

from belay.engine.wire import links as wire
from belay.engine.wire.names import SYSTEM
from tests.golden.stories import compare, sample_files
from tests.simworld import A2, Node, World

LINK = """\
apiVersion: belay.dev/v1alpha1
kind: KVLink
metadata: {name: chat}
spec:
  prefill: {selector: {matchLabels: {role: prefill}}}
  decode: {selector: {matchLabels: {role: decode}}}
"""


def serving(role: str, replicas: int) -> str:
    return f"""\
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: {role}, namespace: default}}
spec:
  serviceName: {role}
  replicas: {replicas}
  selector: {{matchLabels: {{role: {role}}}}}
  template:
    metadata: {{labels: {{role: {role}, fault-scheduling: force}}}}
    spec:
      schedulerName: belay
      terminationGracePeriodSeconds: 30
      nodeSelector: {{accelerator-type: module-910b-8}}
      containers:
        - name: server
          image: registry.example.org/serve:1
          resources: {{requests: {{huawei.com/Ascend910: 8}}, limits: {{huawei.com/Ascend910: 8}}}}
"""


def files(decoders: int, link: bool = True) -> dict[str, bytes]:
    kept = {path: data for path, data in sample_files().items() if "/pools/" in path or "budget" in path}
    texts = {"prefill": serving("prefill", 2), "decode": serving("decode", decoders)} | ({"link": LINK} if link else {})
    return kept | {f"desired/{name}.yaml": text.encode() for name, text in texts.items()}


def links(world: World) -> dict[str, dict[str, int]]:
    """Node → process → how many links it is to keep."""
    found = {}
    for key, body in sorted(world.objects.items()):
        if key.namespace == SYSTEM and key.name.startswith(wire.PREFIX):
            node, ends = wire.parse_orders(body)
            found[node] = {end.holder: len(end.links) for end in ends}
    return found


def count(world: World) -> int:
    return sum(number for ends in links(world).values() for number in ends.values())


def test_the_narrative_of_links(update_golden: bool) -> None:
    world = World(files(1), [Node(f"node-{i}", labels=A2) for i in range(1, 6)])
    world.story.append("— two prefill pods and a decode pod start")
    world.until_quiet()
    assert count(world) == 2, links(world)
    ill = next(node for node, ends in links(world).items() if "default.prefill-0" in ends)
    world.story.append(f"— a chip of {ill} fails under prefill-0")
    world.fault(ill, 3, "80C98001", "SeparateNPU")
    world.until_quiet()
    assert count(world) == 2 and "default.prefill-0" not in links(world)[ill]
    world.story.append("— a second decode pod is declared")
    world.push(files(2))
    world.until_quiet()
    assert count(world) == 4
    world.story.append("— the KVLink is no longer declared")
    world.push(files(2, link=False))
    world.until_quiet()
    assert count(world) == 0 and not any(links(world).values())
    compare("kvlinks", world.story, update_golden)
