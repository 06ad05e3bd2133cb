"""The brake: whatever dies or undoes what Belay does, the same thing is not done again and again.

``tests/simworld.py`` checks every action against the brake's limit; these histories try to break it.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.documents import REPEATS
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import REPEATED
from tests.golden.test_dead_nodes import started
from tests.simworld import World

STEP = 15.0

Trouble = Callable[[World], None]


def _pods(world: World) -> list[ObjectKey]:
    return sorted(key for key in world.objects if key.kind == "Pod")


def _some_node(world: World) -> str:
    return world.random.choice(sorted(world.nodes))


def flap(world: World) -> None:
    node = world.nodes[_some_node(world)]
    if not node.gone:
        world.readiness(node, not node.ready)


def leave(world: World) -> None:
    world.remove(world.nodes[_some_node(world)])


def come_back(world: World) -> None:
    for node in world.nodes.values():
        world.bring_back(node)


def delete_pods(world: World) -> None:
    """Another controller deletes what was just created."""
    for key in _pods(world):
        world.delete(key)


def delete_one_pod(world: World) -> None:
    pods = _pods(world)
    if pods:
        world.delete(world.random.choice(pods))


def delete_parts(world: World) -> None:
    """Another controller deletes the job's PodGroup, Service and ConfigMaps."""
    for key in sorted(world.objects):
        if key.namespace == "train" and key.kind in ("PodGroup", "Service", "ConfigMap"):
            world.delete(key)


def fail(world: World) -> None:
    """A process of the job ends with an error."""
    for key in _pods(world)[:1]:
        world.objects[key]["status"]["phase"] = "Failed"
        world.put(world.objects[key])


def fault(world: World) -> None:
    node = world.nodes[_some_node(world)]
    if not node.gone:
        world.fault(node.name, world.random.randrange(8))


def nothing(world: World) -> None:
    """A quiet pass."""


TROUBLES: tuple[Trouble, ...] = (
    flap, leave, come_back, delete_pods, delete_one_pod, delete_parts, fail, fault, nothing,
)  # fmt: skip


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    mode=st.sampled_from(["grace", "force"]),
    retries=st.sampled_from(["", ", fault-retry-times: '999'"]),
    least=st.sampled_from([1, 2]),
    troubles=st.lists(st.sampled_from(TROUBLES), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 2**16),
)
def test_actions_on_the_same_thing_are_bounded_whatever_dies(
    mode: str, retries: str, least: int, troubles: list[Trouble], seed: int
) -> None:
    world = started(mode + retries, least=least)
    world.random.seed(seed)
    began = world.now
    while world.now - began < 2400:
        world.random.choice(troubles)(world)
        world.step()
        world.pass_time(STEP)
    hours = (world.now - began) / REPEATS.window + 1
    for (kind, thing), times in world.repeated.items():
        assert len(times) <= REPEATS.max * hours, f"{kind} of {thing}: {len(times)} times"


def test_what_is_deleted_at_once_is_not_created_for_ever_and_says_why() -> None:
    world = started("force")
    created = 0
    for _ in range(40):
        delete_pods(world)
        plan = world.step()
        created += sum(1 for action in plan.actions if action.reason and type(action).__name__ == "CreatePod")
        world.pass_time(STEP)
    assert created <= 2 * REPEATS.max
    held = [row for row in world.plan().deferred if row.budget == f"{REPEATED}default"]
    assert held and all(row.until for row in held)
    (told,) = [d for d in world.plan().diagnostics if d.object == "Pod/train/llm-master-0"]
    assert told.severity == "warning" and (told.file, told.field) == ("shipped:policies/budget.yaml", "spec.repeats[0]")
    assert f"was created {REPEATS.max} times within 30m" in told.message and "raise max of repeats" in told.message

    # memory carries the brake over a restart of everything, and it ends by time alone
    world.cache = type(world.cache)()
    assert [row.budget for row in world.plan().deferred] == [row.budget for row in held]
    world.pass_time(REPEATS.window)
    world.until_quiet()
    assert {world.objects[key]["status"]["phase"] for key in _pods(world)} == {"Running"}
