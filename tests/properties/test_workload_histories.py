"""No workload of any row holds chips in part, in whatever order its pods, its objects and other pods come and go."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.gangs.together import SETTLE_SECONDS, UNSEEN_SECONDS
from belay.engine.model.diagnostics import ObjectKey
from tests.test_workloads import Cluster, bound, put, world_of
from tests.workload_cases import SPACE, Body, WorkloadCase, cases, names, pods_of

CASES = cases()
SERVERS = 6
#: Pods of others, which take servers of their own.
OTHERS = pods_of(None, names("other", 3))
#: Numbers from here on bring a pod before the objects of its workload, as where their watch lags behind.
UNSEEN = 13
#: Which pod comes, or goes where it is there; then which object of the workload; ``None``: seconds pass.
STEPS = st.lists(st.one_of(st.none(), st.integers(0, 25)), min_size=12, max_size=40)
#: Workloads whose pods say themselves how many they are.
NUMBERED = frozenset({"LeaderWorkerSet", "plain pods"})
#: Workloads whose pods start without an object that was not seen: of a saved cluster only the pods may be at hand.
AT_ONCE = frozenset({"Job", "Volcano Job"})
#: Longer than pods of unknown number settle.
SECONDS = 6.0


def key_of(body: Body) -> ObjectKey:
    return ObjectKey(body["apiVersion"], body["kind"], SPACE, body["metadata"]["name"])


class History:
    """A cluster, and what of a workload is there. Its objects come before its pods, as controllers make them."""

    def __init__(self, case: WorkloadCase) -> None:
        self.case = case
        self.world: Cluster = world_of(SERVERS)
        self.there: set[ObjectKey] = set()
        self.came: dict[ObjectKey, float] = {}
        # pods that own what makes other pods, such as leaders, are links of the chain as well
        above: set[str] = set()
        for one in [*case.objects, *case.pods]:
            above |= {row["uid"] for row in one["metadata"].get("ownerReferences", [])}
        self.declaring = [*case.objects, *(pod for pod in case.pods if pod["metadata"]["uid"] in above)]

    def turn(self, number: int) -> None:
        """The body of a number comes, or goes. A pod's objects may be seen after it, or never."""
        bodies = [*self.case.pods, *OTHERS, *self.case.objects]
        body = bodies[number % len(bodies)]
        if key_of(body) in self.there:
            self.there.discard(key_of(body))
            self.world.delete(key_of(body))
            return

        if body in self.case.pods and number < UNSEEN:
            for one in self.declaring:
                self._bring(one)
        self._bring(body)

    def _bring(self, body: Body) -> None:
        if key_of(body) in self.there:
            return
        self.there.add(key_of(body))
        self.came[key_of(body)] = self.world.now
        put(self.world, copy.deepcopy(body))

    def own(self) -> set[str]:
        """The workload's pods that hold chips."""
        return bound(self.world) & {pod["metadata"]["name"] for pod in self.case.pods}

    def waiting(self) -> set[str]:
        """The workload's pods that are there, ask for chips and hold none."""
        pods = self.world.observed().pods.values()
        mine = {pod["metadata"]["name"] for pod in self.case.pods}
        return {pod.name for pod in pods if pod.name in mine and pod.count and not pod.node}

    def may_start_without_the_rest(self) -> bool:
        """Whether nothing says how many pods there are, and none came for as long as one may come late."""
        there = [self.came[key_of(pod)] for pod in self.case.pods if key_of(pod) in self.there]
        quiet = self.world.now - max(there)
        if self.case.name == "a kind without a row":
            return quiet >= SETTLE_SECONDS
        if self.is_declared() or self.case.name in NUMBERED:
            return False
        return self.case.name in AT_ONCE or quiet >= UNSEEN_SECONDS

    def is_declared(self) -> bool:
        """Whether every object is there that says how many pods the workload has."""
        return all(key_of(one) in self.there for one in self.declaring)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(CASES), STEPS)
def test_no_workload_holds_chips_in_part_in_any_order_of_arrival_and_departure(
    case: WorkloadCase, steps: list[int | None]
) -> None:
    history = History(case)
    for step in [*steps, None]:
        if step is None:
            history.world.pass_time(SECONDS)
        else:
            history.turn(step)

        before = history.own()
        history.world.step()
        started = history.own() - before
        if not started or len(history.own()) == 5:
            continue

        why = f"{case.owner}: {sorted(started)} start, {sorted(history.waiting())} wait"
        assert not history.waiting(), why
        assert history.may_start_without_the_rest(), why
