"""Random histories of a small cluster: jobs come and go, chips break and heal, nodes fall silent, writes get lost.

One seed, one history. The invariants of the design hold at every step (``World`` checks them); when faults stop, the
world must come to rest in bounded passes with every chip back that no hold covers.
"""

from __future__ import annotations

import random

from belay.engine.model.history import NodeMemory
from tests.simworld import A2, INFER, Node, World

CODES = (
    ("80C98001", "RestartNPU"),
    ("80E01801", "RestartBusiness"),
    ("80DF8402", "SeparateNPU"),
    ("8C084E00", "PreSeparateNPU"),
    ("80E18402", "NotHandleFault"),
    ("80CB8002", "SubHealthFault"),
)
NETWORK = (("81078603", "NotHandleFault"), ("110001024", "PreSeparateNPU"), ("020001002", "SeparateNPU"))
OVERRIDES = [("80E18402", "SeparateNPU"), ("80CB8002", "RestartNPU"), ("80E01801", "SeparateNPU")]
EVENTS = (
    *("fault", "fault", "heal", "job", "silence", "speak", "stubborn", "quiet", "quiet"),
    *("network", "link up", "hardware", "switch", "not ready", "remove", "kill", "isolate", "policy"),
)
_HEAD = "apiVersion: belay.dev/v1alpha1\n"
STEPS = 20
TIGHT = b"""\
apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {name: tight}
spec:
  limits:
    - {actions: [EvictPod], per: cluster, max: 1, window: 10m}
    - {actions: [ResetChips], per: cluster, max: 1, window: 1h}
"""
CEILING = 150


def history(seed: int, *, nodes: int = 3, steps: int = STEPS) -> None:
    """Run one history; raises AssertionError with what broke."""
    chance = random.Random(seed)
    tight = chance.random() < 0.3
    files = _repository(chance, {"desired/budget.yaml": TIGHT} if tight else {})
    servers = [Node(f"node-{i}", labels=A2) for i in range(nodes)]
    world = World(files, [*servers, Node("card-0", kind="Ascend310P", labels=INFER)], seed=seed)
    for _ in range(steps):
        files = _event(chance, world, files)
        world.step(some=chance.choice((1.0, 0.8, 0.5)))
        world.pass_time(chance.choice((1.0, 20.0, 70.0, 400.0)))
    _calm(world)
    world.push({path: body for path, body in files.items() if path != "policies/isolate.yaml"})
    last = world.until_quiet(ceiling=CEILING, seconds=301.0)[-1]
    _all_back(world, {(c.node, c.chip): c.state for c in last.chips})
    if tight:
        assert world.spent("EvictPod", 600.0) <= 1, "more gangs were evicted than the budget allows"
        assert world.spent("ResetChips", 3600.0) <= 1, "more groups were reset than the budget allows"


def _event(chance: random.Random, world: World, files: dict[str, bytes]) -> dict[str, bytes]:
    kind = chance.choice(EVENTS)
    node = world.nodes[chance.choice(sorted(world.nodes))]
    if kind == "fault":
        world.fault(node.name, chance.randrange(node.chips), *chance.choice(CODES))
    elif kind == "heal" and node.faults:
        world.heal(node.name, chance.choice(sorted(node.faults)))
    elif kind == "job":
        files = _repository(chance, files)
        world.push(files)
    elif kind == "silence":
        node.silent = True
    elif kind == "speak":
        node.silent = False
    elif kind == "stubborn":
        node.reset_fails = chance.randrange(4)
    elif kind == "network":
        code, level = chance.choice(NETWORK)
        node.network.setdefault(chance.randrange(node.chips), {})[code] = (int(world.now * 1000), level)
        world.report(node)
    elif kind == "link up":
        node.network.clear()
        world.report(node)
    elif kind == "hardware":
        world.hardware(node, chance.choice(("", "NotHandleFault", "PreSeparateFault", "SeparateFault")))
    elif kind == "switch":
        node.switch = chance.choice(("", "SubHealthFault", "RestartRequest", "PreSeparate", "Separate"))
        world.report(node)
    elif kind == "not ready":
        world.readiness(node, node.gone or not node.ready)
    elif kind == "remove":
        world.bring_back(node) if node.gone else world.remove(node)
    elif kind == "kill":
        _kill(chance, world)
    elif kind in ("isolate", "policy"):
        files = _document(chance, files, kind)
        world.push(files)
    return files


def _kill(chance: random.Random, world: World) -> None:
    """A person deletes a pod."""
    pods = sorted(key for key in world.objects if key.kind == "Pod")
    if pods:
        world.delete(chance.choice(pods))


def _document(chance: random.Random, files: dict[str, bytes], kind: str) -> dict[str, bytes]:
    """Writes or removes an Isolation or a FaultPolicy."""
    files = dict(files)
    path = f"policies/{kind}.yaml"
    if files.pop(path, None) is not None and chance.random() < 0.5:
        return files
    if kind == "isolate":
        spec = f"{{reason: soak, chips: [{{node: node-{chance.randrange(3)}, chips: [{chance.randrange(8)}]}}]}}"
        files[path] = f"{_HEAD}kind: Isolation\nmetadata: {{name: soak}}\nspec: {spec}\n".encode()
    else:
        levels = ", ".join(f'"{code}": {level}' for code, level in chance.sample(OVERRIDES, 2))
        files[path] = f"{_HEAD}kind: FaultPolicy\nmetadata: {{name: soak}}\nspec: {{levels: {{{levels}}}}}\n".encode()
    return files


def _repository(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """Adds or removes one job; at most a few live at a time, so that the prune guard stays out of the way."""
    files = dict(files)
    jobs = sorted(path for path in files if path.startswith("desired/jobs/"))
    if jobs and (len(jobs) > 3 or chance.random() < 0.4):
        del files[chance.choice(jobs)]
        return files
    number = chance.randrange(1000)
    chips, workers = chance.choice(((8, 1), (8, 0), (4, 1), (2, 0), (1, 3)))
    scheduling = chance.choice(("force", "grace", "off"))
    files[f"desired/jobs/j{number}.yaml"] = _job(f"j{number}", chips, workers, scheduling).encode()
    return files


def _calm(world: World) -> None:
    """Faults stop: hardware heals, nodes speak, resets work."""
    for node in world.nodes.values():
        world.bring_back(node)
        world.readiness(node, True)
        world.hardware(node, "")
        node.silent = False
        node.reset_fails = 0
        node.switch = ""
        node.faults.clear()
        node.network.clear()
        world.report(node)


def _all_back(world: World, states: dict[tuple[str, str], str]) -> None:
    """Every chip is in service again unless a named hold in the memory covers it."""
    memories = world.observer.observed().history.nodes
    for (node, chip), state in states.items():
        if state in ("healthy", "sub-healthy"):
            continue
        memory = memories.get(node, NodeMemory()).chips.get(int(chip.rpartition("-")[2]))
        assert memory is not None and memory.holds, (
            f"{node}/{chip} is {state} though its report is clean and nothing holds it"
        )


def _job(name: str, chips: int, workers: int, scheduling: str) -> str:
    container = (
        f"{{name: ascend, image: 'train:1', resources: {{requests: {{huawei.com/Ascend910: {chips}}}, "
        f"limits: {{huawei.com/Ascend910: {chips}}}}}}}"
    )
    replica = "{{replicas: {count}, restartPolicy: Never, template: {{spec: {{containers: [{container}]}}}}}}"
    specs = "    Master: " + replica.format(count=1, container=container) + "\n"
    if workers:
        specs += "    Worker: " + replica.format(count=workers, container=container) + "\n"
    return (
        "apiVersion: mindxdl.gitee.com/v1\nkind: AscendJob\n"
        f"metadata: {{name: {name}, namespace: train, labels: "
        f"{{framework: pytorch, fault-scheduling: {scheduling}}}}}\n"
        f"spec:\n  schedulerName: volcano\n  replicaSpecs:\n{specs}"
    )
