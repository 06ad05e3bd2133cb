"""Rounds: faults strike while jobs come and go and chips break, then all is well again and nothing may be missing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from belay.engine.documents import Desired
from belay.engine.kube import CONFIGMAP, POD, Kube, KubeError
from belay.engine.load import load
from belay.engine.model.actions import kind_of
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.observe.resources import fetch
from belay.engine.plan import plan
from belay.engine.wire import names, sync
from tests.chaos.faults import KINDS, possible
from tests.chaos.kubelets import JOBS as JOBS_NAMESPACE
from tests.chaos.site import CHIPS, ROOT, Site
from tests.chaos.witness import Witness
from tests.soak.histories import _repository

RESET, LASTING = "80C98001", "80DF8402"
"""A code that a reset heals, and one that stays and takes its chip out; no rule counts how often they come."""
HEALS = 420.0
"""Longest time from the end of the faults until nothing is missing, in seconds: minutes only on a busy machine."""
LOOKS = 2
KEPT = "pods hold chips and wait for the others"
"""What the planner says of a gang that lost pods and keeps the others
(``belay.engine.plan.preempt.incomplete_gangs``)."""
_SYNC = (CONFIGMAP, names.SYNC, names.SYSTEM)
JOBS = 3
EVENTS = ("fault", "fault", "lasting", "heal", "job", "job", "pod")
"""Of the load, with their shares."""
BUDGET = b"""\
apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {name: default}
spec:
  limits:
    - {actions: [EvictPod, ResetChips, IsolateNode, DeleteObject], per: cluster, max: 100000, window: 1h}
    - {actions: [DeleteObject], unit: chips, per: cluster, max: 100000, window: 1h}
"""
_ATTEMPTS = re.compile(r"(reset|reschedule): {max: 3, window: 6h}")


def policies() -> dict[str, bytes]:
    """Budgets without an end, so that none of them is what keeps a round from healing."""
    shipped = (ROOT / "policies" / "faults" / "default-policy.yaml").read_text()
    endless, changed = _ATTEMPTS.subn(r"\1: {max: 100000, window: 6h}", shipped)
    assert changed == 2
    # a layer that declared something and declares nothing is refused: the last job may go
    kept = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, namespace: default}\ndata: {a: b}\n"
    return {"policies/budget.yaml": BUDGET, "policies/faults.yaml": endless.encode(), "desired/kept.yaml": kept}


def jobs(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """One job more or less. All come back after faults, and when kubelet refuses a pod whose chip broke meanwhile."""
    found = _repository(chance, files)
    for path, body in found.items():
        if path.startswith("desired/jobs/") and b"fault-retry-times" not in body:
            body = body.replace(b"fault-scheduling: off", b"fault-scheduling: grace")
            found[path] = body.replace(b"labels: {", b"labels: {fault-retry-times: '100', ")
    return found


class Round(msgspec.Struct):
    """What one round came to: which faults, what the load did, seconds until nothing was missing."""

    seed: int
    kinds: list[str]
    did: list[str]
    load: dict[str, int]
    healed: float = 0.0
    failed: str = ""


class Player:
    """Plays rounds on one site."""

    def __init__(self, site: Site, kube: Kube, witness: Witness) -> None:
        self.site, self.kube, self.witness = site, kube, witness
        self.files: dict[str, bytes] = policies()
        self.missing = ""
        """What the last look missed."""

    async def begin(self) -> None:
        """The first revision, with one job, is in force and its pods run."""
        self.files = jobs(random.Random(self.site.seed), self.files)
        self.push()
        await self.heal()

    async def play(self, seed: int, kinds: Sequence[str] = (), seconds: float = 0.0) -> Round:
        """One round. Raises AssertionError with what was broken or is missing."""
        chance = random.Random(f"round/{seed}")
        chosen = list(kinds) or chance.sample(possible(self.site), chance.choice((1, 1, 2, 3)))
        told = Round(seed, chosen, [], {})
        try:
            await self._storm(chance, told, seconds or chance.uniform(4.0, 15.0))
            told.healed = await self.heal()
        except AssertionError as error:
            told.failed = str(error)[:2000]
            raise RoundFailed(told) from error
        return told

    async def _storm(self, chance: random.Random, told: Round, seconds: float) -> None:
        undo: list[Callable[[], None]] = []
        load = asyncio.create_task(self.load(chance, told.load))
        try:
            for kind in told.kinds:
                await asyncio.sleep(chance.uniform(0.0, 1.5))
                what, back = await KINDS[kind](self.site, self.kube, chance)
                told.did.append(what)
                undo.append(back)
            await asyncio.sleep(seconds)
        finally:
            chance.shuffle(undo)
            for back in undo:
                back()
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        self.witness.check()

    async def load(self, chance: random.Random, count: dict[str, int], events: Sequence[str] = EVENTS) -> None:
        """What a busy cluster does meanwhile, until cancelled."""
        while True:
            event = chance.choice(events)
            hardware = self.site.hardware[chance.choice(self.site.nodes)]
            chip = f"Ascend910-{chance.randrange(CHIPS)}"
            if event in ("fault", "lasting"):
                with hardware.changed() as content:
                    content[chip] = {"codes": [LASTING if event == "lasting" else RESET]}
            elif event == "heal":
                with hardware.changed() as content:
                    content.clear()
            elif event == "job":
                fresh = jobs(chance, self.files)
                self.files = fresh if sum(path.startswith("desired/jobs/") for path in fresh) <= JOBS else self.files
                self.push()
            else:
                with contextlib.suppress(KubeError):
                    pods = (await self.kube.list(POD, JOBS_NAMESPACE)).items
                    if pods:
                        meta = chance.choice(pods)["metadata"]
                        await self.kube.delete(POD, meta["name"], JOBS_NAMESPACE)
            count[event] = count.get(event, 0) + 1
            await asyncio.sleep(chance.uniform(0.3, 1.5))

    def push(self) -> None:
        repository = self.site.repository
        wanted = dict(self.files)
        for path in repository.work.rglob("*.yaml"):
            if str(path.relative_to(repository.work)) not in wanted:
                path.unlink()
        repository.write(dict(wanted))
        there = repository.bare.exists()
        repository.commit(push=there)

    # nothing may be missing

    async def heal(self) -> float:
        """Take every fault back and wait until nothing is missing; returns the seconds it took."""
        began = time.monotonic()
        lasting = self._lasting()
        self.site.calm()
        for chip in lasting:  # what was decided meanwhile must not be lost: it is broken until it is taken out
            node, _, name = chip.partition("/")
            with self.site.hardware[node].changed() as content:
                content[name] = {"codes": [LASTING]}
        self.push()
        await self._until(lambda: self._isolated(lasting), began)
        for hardware in self.site.hardware.values():
            with hardware.changed() as content:
                content.clear()
        quiet, said = 0, time.monotonic()
        missing = "nothing was looked at"
        while quiet < LOOKS:
            if time.monotonic() - said > 30:
                said = time.monotonic()
                sys.stdout.write(f"after {said - began:.0f} s: {missing}\n")
                sys.stdout.flush()
            assert time.monotonic() - began < HEALS, f"not healed within {HEALS:.0f} s: {missing}"
            await asyncio.sleep(1.0)
            self.witness.check()
            with contextlib.suppress(KubeError):
                missing = self.missing = await self._missing()
                quiet = quiet + 1 if not missing else 0
        return time.monotonic() - began

    def _lasting(self) -> list[str]:
        found = []
        for node, hardware in self.site.hardware.items():
            for chip, spec in hardware.read().items():
                if LASTING in spec.get("codes", ()):
                    found.append(f"{node}/{chip}")
        return found

    async def _isolated(self, chips: list[str]) -> str:
        """Which of the chips the orders do not take out; empty when all are out."""
        plan = await self._plan()
        states = {f"{row.node}/{row.chip}": row.state for row in plan.chips}
        ordered = self.witness.isolated
        broken = self._lasting()  # the reset of a neighbour may have healed one meanwhile
        chips = [chip for chip in chips if chip in broken]
        return ", ".join(chip for chip in chips if chip not in ordered or states.get(chip, "healthy") == "healthy")

    async def _until(self, lacking: Callable[[], object], began: float) -> None:
        missing: object = "nothing was looked at"
        while missing:
            assert time.monotonic() - began < HEALS, f"not isolated within {HEALS:.0f} s: {missing}"
            await asyncio.sleep(0.5)
            self.witness.check()
            with contextlib.suppress(KubeError):
                missing = await lacking()  # type: ignore[misc]

    async def _missing(self) -> str:
        """What is not as it should be; empty when everything is."""
        down = [
            name for name, machine in self.site.machines.items() if not (machine.process and machine.process.running)
        ]
        if down:
            return f"{', '.join(down)} not running"
        head = self.site.repository.head()
        found = await self.kube.get(*_SYNC)
        applied = str(((found or {}).get("data") or {}).get(sync.APPLIED, ""))
        if applied != head:
            return f"revision {applied[:12] or 'none'} is in force, not {head[:12]}"
        plan = await self._plan()
        if plan.actions:
            return f"a pass still wants {[kind_of(one) + ': ' + one.message for one in plan.actions[:3]]}"
        sick = [f"{row.node}/{row.chip} is {row.state}" for row in plan.chips if row.state != "healthy"]
        if sick:
            return f"chips are not back: {sick[:8]}"
        return await self._jobs(plan)

    async def _jobs(self, plan: Plan) -> str:
        pods = (await self.kube.list(POD, JOBS_NAMESPACE)).items
        waiting = {entry.name: entry.unblock or "" for entry in plan.pending}
        free = self.site.size.nodes * CHIPS - sum(1 for row in plan.chips if row.used_by)
        for path in sorted(path for path in self.files if path.startswith("desired/jobs/")):
            job = path.rpartition("/")[2].removesuffix(".yaml")
            mine = [pod for pod in pods if owner(pod) == job]
            bound = [pod for pod in mine if pod["spec"].get("nodeName")]
            if job in waiting and not bound:
                continue
            if waiting.get(job, "").find(KEPT) >= 0:  # it lost a pod, there is no room, and no other job would gain
                continue
            ready = [pod for pod in bound if (pod.get("status") or {}).get("phase") == "Running"]
            if not mine or len(ready) != len(mine):
                return f"job {job}: {len(ready)} of {len(mine)} pods run ({free} chips free)"
        return ""

    async def _plan(self) -> Plan:
        """What a pass would want now, from the live objects and what Git holds."""
        items = await fetch(self.kube)
        desired: Desired = load(self.files, revision=self.site.repository.head()).desired
        return plan(desired, observe(items), time.time())


class RoundFailed(AssertionError):
    """Something was broken or is missing."""

    def __init__(self, told: Round) -> None:
        super().__init__(f"round {told.seed} ({', '.join(told.kinds)}; {'; '.join(told.did)}): {told.failed}")
        self.told = told


def owner(pod: dict[str, object]) -> str:
    """The job of a pod."""
    owners = pod["metadata"].get("ownerReferences") or [{}]  # type: ignore[attr-defined]
    return str(owners[0].get("name") or "")
