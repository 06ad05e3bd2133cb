"""Super pods: gangs in blocks of nodes, each block within one physical super pod (Atlas 900/9000 A3, Atlas 850).

Source: component/ascend-for-volcano/internal/npu/ascend910/ascend910a3/superpod/frame.go and
internal/npu/policy/chip8node8sp/frame.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from belay.engine.model.job_options import stated_chips
from belay.engine.model.pending_reasons import INVALID_REQUEST, TOPOLOGY
from belay.engine.plan.place.causes import IllegalSize
from belay.engine.plan.place.families.a3 import A3
from belay.engine.plan.place.families.base import enough
from belay.engine.plan.place.handler import JobRequest, NodeChips, PodRequest, Refusal, ScoreOrRefusal, lowest

CHOSEN_SCORE: Final = 100_000_000
_SINGLE_BLOCK: Final = "sp-block is invalid: single super-pod job sp-block annotation should equal require npu num"
#: Most super pods that a message names.
MAX_SHOWN: Final = 20
#: Most nodes that it names of each.
MAX_NAMES: Final = 4


@dataclass(frozen=True, slots=True)
class SuperPodA3:
    """A node of an A3 super pod with ``max`` dies: chips fit as on any A3 server; nodes are scored by their block."""

    max: int = 16
    network_aware: bool = True

    def check(self, job: JobRequest) -> Refusal | None:
        """One die or an even number in a single pod, the whole node in every pod of a distributed job."""
        if job.pods > 1:
            odd = next((task for task in job.tasks if task.chips not in (0, self.max)), None)
            if odd is not None:
                # MindCluster prints this 0 whatever the pod asks for
                return _invalid(
                    f"npu num is invalid: distributed super-pod job require npu(0) should be equal to "
                    f"node npu({self.max}), actual: task<{odd.name}> req npu: {odd.chips}",
                    IllegalSize(odd.name, odd.chips, (self.max,), job.pods),
                )
        elif job.total > self.max or (job.total > 1 and job.total % 2):
            return _invalid(
                f"npu num is invalid: single super-pod job require npu [1, 2*n], instead of {job.total}",
                IllegalSize(job.tasks[0].name, job.total, (1, *range(2, self.max + 1, 2)), job.pods),
            )
        return None

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """0 for a node whose dies fit; the chosen nodes get their score from the placement of blocks."""
        score = A3(self.max).score(node, request)
        return score if isinstance(score, Refusal) else 0

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """As on any A3 server."""
        return A3(self.max).choose(node, request)


@dataclass(frozen=True, slots=True)
class SuperPodNode:
    """A node of an Atlas 850 super pod: a mesh of ``max`` chips without inner topology."""

    max: int = 8
    network_aware: bool = True

    def check(self, job: JobRequest) -> Refusal | None:
        """1 to ``max`` chips in a single pod, the whole node in every pod of a distributed job."""
        if job.pods > 1:
            odd = next((task for task in job.tasks if task.chips not in (0, self.max)), None)
            if odd is not None:
                return _invalid(
                    f"npu num is invalid: distributed super-pod job require npu {self.max}*n, instead of {odd.chips}",
                    IllegalSize(odd.name, odd.chips, (self.max,), job.pods),
                )
        elif job.total > self.max:
            return _invalid(
                f"npu num is invalid: single super-pod job require npu [1, 2*n], instead of {job.total}",
                IllegalSize(job.tasks[0].name, job.total, tuple(range(1, self.max + 1)), job.pods),
            )
        return None

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """0 for a node with enough free chips."""
        return enough(node, request, self.max) or 0

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """The lowest chips."""
        return lowest(node.free, request.chips)


class Blocks(NamedTuple):
    """A job divided into logical super pods: ``need`` blocks of ``size`` nodes each; ``soft`` affinity allows partial
    ones.
    """

    size: int
    need: int
    soft: bool


def blocks(job: JobRequest, node_chips: int, super_pod_nodes: int) -> Blocks | Refusal:
    """The job's blocks by annotation ``sp-block`` (chips, default the whole job), or why they are illegal."""
    block, soft = job.options.sp_block, job.options.soft_affinity
    chips = stated_chips(block, job.total)
    if chips == 0:
        written = block.written if block is not None else ""
        return _invalid(f"sp-block is invalid: {written or chips} is not a number of chips")
    if job.pods <= 1 and chips < node_chips and chips != job.total:
        return _invalid(_SINGLE_BLOCK)
    if chips < node_chips:
        if chips != job.total:
            return _invalid(
                f"sp-block is invalid: sp-block({chips}) is smaller than the node's {node_chips} chips and differs "
                f"from the job's request({job.total})"
            )
        return Blocks(1, 1, soft)
    if chips % node_chips:
        return _invalid(f"sp-block is invalid: sp-block({chips}) is not multiple of node npu ({node_chips})")
    size = chips // node_chips
    if size > super_pod_nodes:
        return _invalid(
            f"sp-block is invalid: sp-block({chips}/{node_chips}={size}) is bigger than size of "
            f"super-pod({super_pod_nodes})"
        )
    if job.pods <= 1:
        return Blocks(1, 1, soft) if chips == job.total else _invalid(_SINGLE_BLOCK)
    if job.total % chips:
        return _invalid(
            f"npu num is invalid: distributed super-pod job require npu({job.total}) should be multiple of sp-block"
        )
    return Blocks(size, job.total // chips, soft)


class Block(NamedTuple):
    """One logical super pod: its physical super pod and its nodes in the order of local ranks."""

    super_pod: int
    nodes: tuple[str, ...]


@dataclass(slots=True)
class _Pool:
    """One physical super pod while blocks are taken from it: candidate nodes in order of preference."""

    id: int
    nodes: Sequence[str]


@dataclass(slots=True)
class _Taking:
    """The blocks taken so far, under ascending logical ids."""

    pools: Mapping[int, _Pool]
    ids: list[int]
    size: int
    reserve: int
    taken: dict[int, Block] = field(default_factory=dict)

    def take(self, pool: _Pool, count: int, logical: int) -> None:
        self.taken[logical] = Block(pool.id, tuple(pool.nodes[:count]))
        pool.nodes = pool.nodes[count:]

    def whole(self, pool: _Pool) -> None:
        self.take(pool, self.size, self.ids.pop(0))


def select(
    candidates: Mapping[int, Sequence[str]],
    ids: Sequence[int],
    wanted: Blocks,
    reserve: int,
    *,
    fresh_id: int,
    partial: bool = False,
) -> dict[int, Block] | Refusal:
    """Nodes for every logical super pod of ``ids``.

    Args:
        candidates: fitting nodes per physical super pod, best first (sub-healthy ones last).
        ids: logical super pods without nodes, ascending.
        wanted: block size and softness of the job.
        reserve: nodes that each super pod keeps back while others can serve.
        fresh_id: first id for the extra partial blocks of soft affinity.
        partial: only some pods of the job are placed; soft affinity then needs whole blocks too.
    """
    pools = {key: _Pool(key, nodes) for key, nodes in sorted(candidates.items())}
    sizes = {key: len(pool.nodes) for key, pool in pools.items()}
    total = sum(size // wanted.size for size in sizes.values())
    if total < len(ids) and (not wanted.soft or partial):
        return _too_few(len(ids), total, candidates)
    table = _table(pools, wanted, reserve)
    work = _Taking(pools, list(ids), wanted.size, reserve)
    _from_smaller(work, table)
    _from_bigger(work, table)
    _from_reserve(work, table)
    if work.ids and wanted.soft:
        _partial_blocks(work, table, fresh_id)
    missing = len(ids) * wanted.size - sum(len(block.nodes) for block in work.taken.values())
    if missing > 0:
        return _too_few(len(ids), total, candidates)
    return work.taken


def _table(pools: Mapping[int, _Pool], wanted: Blocks, reserve: int) -> dict[tuple[int, int], list[_Pool]]:
    """Super pods by (row, column): nodes left over, and blocks that fit beside the reserve."""
    table: dict[tuple[int, int], list[_Pool]] = {}
    for pool in pools.values():
        size = len(pool.nodes)
        if size == 0 or (size < wanted.size and not wanted.soft):
            continue
        spare = size - reserve
        row, column = (size % wanted.size, 0) if spare < 0 else (spare % wanted.size, spare // wanted.size)
        table.setdefault((row, column), []).append(pool)
    return table


def _columns(table: Mapping[tuple[int, int], list[_Pool]]) -> int:
    return max((column for _, column in table), default=0)


def _beside_reserve(work: _Taking, cell: Sequence[_Pool]) -> None:
    for pool in cell:
        while work.ids and len(pool.nodes) - work.reserve >= work.size:
            work.whole(pool)


def _from_smaller(work: _Taking, table: Mapping[tuple[int, int], list[_Pool]]) -> None:
    """Pass A: the tightest super pods that hold no more blocks than are still needed."""
    last = _columns(table)
    for row in range(work.size):
        column = 1
        while column <= min(len(work.ids), last):
            _beside_reserve(work, table.get((row, column), ()))
            column += 1


def _from_bigger(work: _Taking, table: Mapping[tuple[int, int], list[_Pool]]) -> None:
    """Pass B: super pods that hold more blocks than needed, smallest first."""
    for column in range(len(work.ids) + 1, _columns(table) + 1):
        for row in range(work.size):
            _beside_reserve(work, table.get((row, column), ()))


def _from_reserve(work: _Taking, table: Mapping[tuple[int, int], list[_Pool]]) -> None:
    """Pass C: use the reserves, one block per super pod and round."""
    before = -1
    while work.ids and before != len(work.ids):
        before = len(work.ids)
        for row in range(work.size - 1, -1, -1):
            for column in range(_columns(table) + 1):
                for pool in _largest_first(table.get((row, column), ())):
                    if work.ids and len(pool.nodes) >= work.size:
                        work.whole(pool)


def _partial_blocks(work: _Taking, table: Mapping[tuple[int, int], list[_Pool]], fresh_id: int) -> None:
    """Pass D, soft affinity only: the remaining nodes as partial blocks, under the ids left, then under new ones."""
    need = len(work.ids) * work.size
    keep = min(work.size, work.reserve)
    rows = [*range(work.size - 1, keep - 1, -1), *range(keep)]
    before = -1
    while need and before != need:
        before = need
        for row in rows:
            for column in range(_columns(table) + 1):
                for pool in _largest_first(table.get((row, column), ())):
                    count = min(len(pool.nodes), work.size, need)
                    if count:
                        logical = work.ids.pop(0) if work.ids else fresh_id
                        fresh_id += logical == fresh_id
                        work.take(pool, count, logical)
                        need -= count


def _largest_first(cell: Sequence[_Pool]) -> list[_Pool]:
    return sorted(cell, key=lambda pool: (-len(pool.nodes), pool.id))


def slots(taken: Mapping[int, Block]) -> list[tuple[int, Block, str]]:
    """(logical id, block, node) for rank 0, 1, 2 …: blocks by ascending id, each with its real number of nodes."""
    return [(logical, taken[logical], node) for logical in sorted(taken) for node in taken[logical].nodes]


def repair(
    previous: Block, candidates: Mapping[int, Sequence[str]], faulty: Callable[[str], bool], size: int
) -> Block | None:
    """The previous block with its unusable nodes replaced from the same physical super pod; None when that lacks room.

    Healthy nodes keep their place; unused nodes come next, failed nodes last.
    """
    pool = candidates.get(previous.super_pod, [])
    if len(pool) < size or len(previous.nodes) != size:
        return None
    keep = {node for node in previous.nodes if node in pool and not faulty(node)}
    spare = sorted((node for node in pool if node not in keep), key=lambda node: (faulty(node), pool.index(node)))
    nodes = tuple(node if node in keep else spare.pop(0) for node in previous.nodes)
    return Block(previous.super_pod, nodes)


def _too_few(need: int, total: int, candidates: Mapping[int, Sequence[str]]) -> Refusal:
    shown = ", ".join(
        f"super-pod-id: {key}, node count: {len(nodes)} detail: [{_first(nodes)}]"
        for key, nodes in sorted(candidates.items())[:MAX_SHOWN]
    )
    return Refusal(TOPOLOGY, f"select super pod failed, required {need}, total {total}, node top: {shown}, ")


def _first(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - MAX_NAMES} more" if len(nodes) > MAX_NAMES else ""
    return " ".join(sorted(nodes)[:MAX_NAMES]) + more


def _invalid(text: str, cause: IllegalSize | None = None) -> Refusal:
    return Refusal(INVALID_REQUEST, text, cause)
