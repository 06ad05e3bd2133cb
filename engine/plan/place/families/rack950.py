"""Atlas 950 super pods: blocks of nodes within racks of eight nodes (64 chips), racks within super pods.

Source: component/ascend-for-volcano/internal/npu/policy/chip8node8ra64sp (job.go, schedule.go, base.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from belay.engine.model.job_options import stated_chips
from belay.engine.model.pending_reasons import INVALID_REQUEST, TOPOLOGY
from belay.engine.plan.place.causes import ParameterMissing
from belay.engine.plan.place.families.base import enough
from belay.engine.plan.place.families.superpod import Block
from belay.engine.plan.place.handler import (
    UNSCHEDULABLE_TOPOLOGY,
    JobRequest,
    NodeChips,
    PodRequest,
    Refusal,
    ScoreOrRefusal,
    lowest,
)

CHIPS: Final = 8
RACK_NODES: Final = 8
RACK_CHIPS: Final = 64
DOMAIN_RACKS: Final = 16
MAX_SUPER_POD: Final = 1024
MAX_MEMORY_CHIPS: Final = 1024
SIZE_REASON: Final = "Parameter super-pod-size is invalid."
BLOCK_REASON: Final = "Parameter sp-block is invalid."
RACK_REASON: Final = "Parameter ra-block is invalid."
COUNT_REASON: Final = "npu num is invalid"


@dataclass(frozen=True, slots=True)
class RackNode:
    """A node of eight chips in a rack; network-unhealthy chips do not matter here."""

    max: int = CHIPS
    network_aware: bool = False

    def check(self, job: JobRequest) -> Refusal | None:
        """Nothing: ``blocks`` checks sizes in MindCluster's order."""
        return None

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """0 for a node with enough free chips."""
        refusal = enough(node, request, CHIPS)
        if refusal is None:
            return 0

        head = f"checkNodeNPUByTask {UNSCHEDULABLE_TOPOLOGY} err: "
        idle = refusal.idle._replace(head=head) if refusal.idle is not None else None
        return Refusal(refusal.reason, f"{head}{refusal.message}", idle=idle, evictable=True)

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """The lowest chips."""
        return lowest(node.free, request.chips)


class RackBlocks(NamedTuple):
    """A job divided twice: ``need`` blocks of ``size`` nodes in one super pod, each of parts of ``part`` nodes in one
    rack.

    ``memory`` asks for one UBMem domain.
    """

    size: int
    need: int
    soft: bool
    part: int = 1
    memory: bool = False


def blocks(job: JobRequest, super_pod_nodes: int | None) -> RackBlocks | Refusal:
    """The job's blocks by ``sp-block`` and ``ra-block`` (chips), or why they are illegal, in MindCluster's words."""
    chips = stated_chips(job.options.sp_block, job.total)
    part_chips = stated_chips(job.options.ra_block, CHIPS)
    size, part = max(1, chips // CHIPS), -(-part_chips // CHIPS)

    # the first rule that refuses is the sentence that people read and search for: in the order of MindCluster's checks
    refusal = (
        _sp_block(job, chips, size)
        or _super_pod_size(super_pod_nodes or 0, chips, size)
        or _rack_part(part_chips, chips, size, part, job)
        or _counts(job, chips, part_chips)
    )
    if refusal is not None:
        return refusal

    memory = job.options.ub_memory == "true"
    if memory and job.total > MAX_MEMORY_CHIPS:
        text = f"in ubmem scene, task require npu nums should smaller than {MAX_MEMORY_CHIPS}, but recevice"
        return _invalid(COUNT_REASON, f"{text} {job.total}")
    return RackBlocks(size, max(1, job.pods // size), job.options.soft_affinity, part, memory)


def _sp_block(job: JobRequest, chips: int, size: int) -> Refusal | None:
    if chips < 1:
        return _invalid(BLOCK_REASON, f"Parameter sp-block({chips}) is invalid.")
    if chips > CHIPS and chips % CHIPS:
        return _invalid(BLOCK_REASON, f"Parameter sp-block({chips}) is not multiple of node npu ({CHIPS})")
    if job.pods % size:
        text = f"job require total Pod({job.pods}) should be multiple of a sp-block size {size}"
        return _invalid("job task num is invalid", text)
    return None


def _super_pod_size(limit: int, chips: int, size: int) -> Refusal | None:
    if not 1 <= limit <= MAX_SUPER_POD:
        text = f"Parameter super-pod-size({limit}) in volcano.yaml is invalid which should be in range"
        return _invalid(SIZE_REASON, f"{text} [1,{MAX_SUPER_POD}]", ParameterMissing("super-pod-size"))
    if size > limit:
        text = f"Parameter spBlock({chips}/{CHIPS}={size}) is bigger than size of super-pod-size({limit})"
        return _invalid(SIZE_REASON, text)
    return None


def _rack_part(part_chips: int, chips: int, size: int, part: int, job: JobRequest) -> Refusal | None:
    if not 1 <= part_chips <= RACK_CHIPS:
        return _invalid(
            RACK_REASON, f"Parameter ra-block is invalid, it should be a number in the range from 1 to {RACK_CHIPS}"
        )
    if part_chips & (part_chips - 1):
        return _invalid(RACK_REASON, f"Parameter ra-block({part_chips}) must be the power of 2")
    if part > size:
        return _invalid(
            RACK_REASON, f"Parameter ra-block({part_chips})/{CHIPS} could not be bigger than sp-block({chips})/{CHIPS}"
        )
    if job.pods % part:
        return _invalid(
            RACK_REASON, f"number of tasks({job.pods}) must be multiple of nodes occupied by ra-block({part})"
        )
    if size % part:
        text = f"spBlock= {chips} / {CHIPS} must be multiple of tpBlock= {part_chips} / {CHIPS}"
        return _invalid(RACK_REASON, text)
    return None


def _counts(job: JobRequest, chips: int, part_chips: int) -> Refusal | None:
    if job.pods <= 1:
        if not 1 <= job.total <= CHIPS:
            return _invalid(COUNT_REASON, f"single super-pod job require npu [1, {CHIPS}], instead of {job.total}")
        if chips != job.total:
            text = "single super-pod job sp-block annotation should equal require npu num"
            return _invalid(COUNT_REASON, text)
        return None
    if job.total % chips:
        text = f"distributed super-pod job require npu should be multiple of sp-block, instead of {job.total}"
        return _invalid(COUNT_REASON, text)
    if job.total % part_chips:
        text = f"distributed super-pod job require npu({job.total}) should be multiple of ra-block"
        return _invalid(COUNT_REASON, text)
    odd = next((task for task in job.tasks if task.chips not in (0, CHIPS)), None)
    return _invalid(COUNT_REASON, f"distributed job require npu {CHIPS}, instead of {odd.chips}") if odd else None


class CandidateNode(NamedTuple):
    """A candidate node: its super pod, its rack, and whether all its chips have a healthy network."""

    name: str
    super_pod: int
    rack: int
    network: bool = True


Racks = dict[int, list[CandidateNode]]


def select(
    candidates: Sequence[CandidateNode], ids: Sequence[int], cut: RackBlocks, super_pod_nodes: int, pods: int
) -> dict[int, Block] | Refusal:
    """Nodes for every block of ``ids``: one rack, else one domain or super pod, else several super pods.

    Args:
        candidates: fitting nodes, best first.
        ids: logical super pods without nodes, ascending.
        super_pod_nodes: configured size of a super pod.
        pods: pods of the whole job; extra blocks of soft affinity count down from it.
    """
    pools: dict[int, list[CandidateNode]] = {}
    for place in candidates:
        pools.setdefault(place.super_pod, []).append(place)
    most = max((len(nodes) for nodes in pools.values()), default=0)
    if most > super_pod_nodes:
        larger = ParameterMissing("super-pod-size", str(most))
        return Refusal(TOPOLOGY, "super-pod-size is smaller than superPod's node size", larger)
    total = sum(len(nodes) // cut.size for nodes in pools.values())
    if total < len(ids) and not cut.soft:
        text = f"before scheduling, required sp-block count={len(ids)}, but total sp-block count={total}"
        return Refusal(TOPOLOGY, text)
    count = len(ids) * cut.size
    enough_nodes = sorted((key for key in pools if len(pools[key]) >= count), key=lambda key: (len(pools[key]), key))
    if count <= RACK_NODES:
        for key in enough_nodes:
            found = _one_rack(by_rack(pools[key]), ids, cut, count)
            if found is not None:
                return found
    if cut.memory:
        for key in enough_nodes:
            found = _one_domain(by_rack(pools[key]), ids, cut, count)
            if found is not None:
                return found
        return Refusal(TOPOLOGY, "scheduling failed in UBMemSchedule strategy")
    if count <= super_pod_nodes:
        for key in enough_nodes:
            racks = by_rack(pools[key])
            if _parts(racks, cut) * cut.part >= count:
                return {logical: _block(racks, cut) for logical in ids}
    return _several(pools, ids, cut, pods)


def _one_rack(racks: Racks, ids: Sequence[int], cut: RackBlocks, count: int) -> dict[int, Block] | None:
    """All blocks from the tightest rack that holds them; ids are assigned in descending order."""
    fitting = [key for key, nodes in racks.items() if len(nodes) >= count]
    if not fitting:
        return None
    nodes = racks[min(fitting, key=lambda key: (len(racks[key]), key))][:count]
    found = {}
    for place, logical in enumerate(sorted(ids, reverse=True)):
        part = nodes[place * cut.size : (place + 1) * cut.size]
        found[logical] = Block(part[0].super_pod, tuple(node.name for node in part))
    return found


def _one_domain(racks: Racks, ids: Sequence[int], cut: RackBlocks, count: int) -> dict[int, Block] | None:
    """All blocks from the smallest UBMem domain (16 racks) that holds them."""
    domains: dict[int, Racks] = {}
    for key, nodes in racks.items():
        domains.setdefault(key // DOMAIN_RACKS, {})[key] = nodes
    fitting = [key for key, inside in domains.items() if _parts(inside, cut) * cut.part >= count]
    if not fitting:
        return None
    best = min(fitting, key=lambda key: (sum(len(nodes) for nodes in domains[key].values()), key))
    return {logical: _block(domains[best], cut) for logical in ids}


def _several(
    pools: Mapping[int, list[CandidateNode]], ids: Sequence[int], cut: RackBlocks, pods: int
) -> dict[int, Block] | Refusal:
    """Block by block from the largest super pods, nodes with broken networks left out; soft affinity takes the rest."""
    left = list(ids)
    found: dict[int, Block] = {}
    healthy = {key: by_rack([node for node in nodes if node.network]) for key, nodes in pools.items()}
    for key in sorted(pools, key=lambda key: (-len(pools[key]), key)):
        while left and _parts(healthy[key], cut) * cut.part >= cut.size:
            found[left.pop(0)] = _block(healthy[key], cut)
    if left and cut.soft:
        return _soft(healthy, left, found, cut, pods)
    if left:
        if len(ids) * cut.size == cut.part:
            text = f"not found the 1 count of ra-block:{cut.part * CHIPS} in all racks of every super-pod, "
            text += "exit select process"
            return Refusal(TOPOLOGY, text)
        return Refusal(TOPOLOGY, "scheduling failed in MultiSuperPodsSchedule strategy")
    return found


def _soft(
    pools: Mapping[int, Racks], left: list[int], found: dict[int, Block], cut: RackBlocks, pods: int
) -> dict[int, Block] | Refusal:
    """Any remaining nodes, from the largest super pods, in blocks that may be partial."""
    wanted = need = len(left) * cut.size
    rest = {key: [node for rack in sorted(racks) for node in racks[rack]] for key, racks in pools.items()}
    extra = pods
    while need:
        key = min((key for key in rest if rest[key]), key=lambda key: (-len(rest[key]), key), default=None)
        if key is None:
            text = f"soft schedule job failed, need {wanted} nodes, could only schedule {wanted - need} nodes"
            return Refusal(TOPOLOGY, text)
        part = rest[key][: min(cut.size, need)]
        rest[key] = rest[key][len(part) :]
        if left:
            logical = left.pop(0)
        else:
            logical, extra = extra, extra - 1
        found[logical] = Block(key, tuple(node.name for node in part))
        need -= len(part)
    return found


def by_rack(nodes: Sequence[CandidateNode]) -> Racks:
    """Nodes per rack id, in the given order."""
    racks: Racks = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(node)
    return racks


def _parts(racks: Racks, cut: RackBlocks) -> int:
    """How many parts the racks hold."""
    return sum(len(nodes) // cut.part for nodes in racks.values())


def _block(racks: Racks, cut: RackBlocks) -> Block:
    """Take one block off the racks: whole parts, from the tightest racks first."""
    taken: list[CandidateNode] = []
    for key in sorted(racks, key=lambda key: (len(racks[key]), key)):
        count = min(len(racks[key]) // cut.part * cut.part, cut.size - len(taken))
        taken += racks[key][:count]
        racks[key] = racks[key][count:]
        if len(taken) == cut.size:
            break
    return Block(taken[0].super_pod, tuple(node.name for node in taken))


def _invalid(reason: str, text: str, cause: ParameterMissing | None = None) -> Refusal:
    return Refusal(INVALID_REQUEST, f"{reason} {text}" if reason.endswith(".") else f"{reason}: {text}", cause)
