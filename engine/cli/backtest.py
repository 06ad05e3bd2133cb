"""`belay policy test`: recorded passes under the policies of their time and under another one, and the difference.

Every frame is planned twice (``belay.engine.plan.Comparison``). An action that only the policies of the time took is
``avoided``; it is ``missed`` if the recording shows that its fault lasted: still reported ten minutes later, or the
pod failed. An action that only the new policy takes is ``new``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.cli.phrases import target
from belay.engine.cli.progress import progress
from belay.engine.documents import Desired
from belay.engine.errors import InputError
from belay.engine.load import Loaded, load, load_directory
from belay.engine.load.cluster import foreign_documents
from belay.engine.load.yaml12 import MAX_BYTES
from belay.engine.model import actions as act
from belay.engine.model.actions import AnyAction, kind_of
from belay.engine.model.cluster import Observed
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import observe
from belay.engine.plan import Comparison, DecisionKey, enforced, plan
from belay.engine.replay.cluster_file import read_cluster
from belay.engine.replay.offline import desired_from, every_role, moment, newest
from belay.engine.replay.recording import declared, read
from belay.engine.replay.summary import RECORDING_SUFFIX
from belay.engine.wire.orders import chip_number

#: Most frames of one comparison; the newest ones are taken.
MAX_FRAMES: Final = 2_000
MAX_NOTES: Final = 20
_EXPECTED: Final = "A List must hold the nodes and their mindx-dl-deviceinfo-* ConfigMaps."
#: A fault that is still reported so many seconds later has lasted.
LASTED: Final = 600.0
_LISTS: Final = (".json", ".yaml", ".yml")
_PROTECTS: Final = (act.IsolateChip, act.IsolateNode, act.EvictPod, act.ResetChips)
_UNKNOWN_POOL: Final = re.compile(r"unknown node pool '([a-z0-9.-]{1,253})'")
_POOL: Final = (
    "apiVersion: belay.dev/v1alpha1\nkind: NodePool\nmetadata: {name: '%s'}\n"
    "spec: {selector: {matchLabels: {belay.dev/pool: '%s'}}}\n"
)
_UNDOES: Final = {"ReleaseChip": "IsolateChip", "ReleaseNode": "IsolateNode"}


class ActionDifference(msgspec.Struct, frozen=True):
    """One action that only one side takes: when, in how many frames, and for ``missed`` why it mattered."""

    action: str
    on: str
    first: str
    last: str
    frames: int
    message: str
    budget: str = ""
    why: str = ""


class BacktestResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a comparison."""

    policies: tuple[str, ...]
    frames: int
    start: str
    end: str
    avoided: tuple[ActionDifference, ...]
    new: tuple[ActionDifference, ...]
    missed: tuple[ActionDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether the policy would have changed anything."""
        return bool(self.avoided or self.new or self.missed)


class Frame(NamedTuple):
    """One recorded pass: the declarations of its time, those with the policy, and the observed cluster."""

    now: float
    shard: str
    before: Desired
    after: Desired
    observed: Observed


def policy_files(path: str) -> dict[str, bytes]:
    """The documents of a policy file, or of a folder of them.

    Raises:
        InputError: not readable, wrong somewhere, or without a FaultPolicy.
    """
    source = Path(path)
    if source.is_dir():
        found = {f"policies/{name}": data for name, data in load_directory(source).items()}
    else:
        try:
            with source.open("rb") as stream:
                found = {f"policies/{source.name}": stream.read(MAX_BYTES + 1)}
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    loaded = _alone(found)
    errors = [d for d in loaded.diagnostics if d.severity == "error" and d.file in found]
    if errors:
        first = errors[0]
        file = str(source / first.file.removeprefix("policies/")) if source.is_dir() else path
        raise InputError(f"{first.field} {first.message}".strip(), where=f"{file}:{first.line}:{first.column}")
    if not any(item.origin.file in found for item in loaded.desired.fault_policies):
        raise InputError("holds no FaultPolicy", where=path, hint="Give a file or folder with the policy to try.")
    return found


def _alone(files: Mapping[str, bytes]) -> Loaded:
    """The documents without the tree; pools that they name are assumed to exist: the recordings declare them."""
    loaded = load(files)
    pools = sorted({found[1] for d in loaded.diagnostics if (found := _UNKNOWN_POOL.match(d.message))})
    if not pools:
        return loaded
    declared_then = "---\n".join(_POOL % (name, name) for name in pools).encode()
    return load(files, overlays=[{"policies/pools.yaml": declared_then}])


def compare(
    policy: Mapping[str, bytes], against: Sequence[str], *, tree: str | None = None, overlays: Sequence[str] = ()
) -> BacktestResult:
    """Replay recorded passes (files, or folders of them) or a series of Lists under both sides.

    Raises:
        InputError: an input is not usable, or there is nothing to replay.
    """
    files = _files(against)
    notes = []
    if len(files) > MAX_FRAMES:
        notes.append(f"{len(files) - MAX_FRAMES} older frames are left out, the limit is {MAX_FRAMES}")
        files = files[-MAX_FRAMES:]
    differences = _Differences()
    source = _Frames(policy, tree, overlays)
    comparison = Comparison(plan)
    frames, first, last = 0, 0.0, 0.0
    with progress("replaying under both policies", len(files)) as step:
        for file in files:
            frame = source.frame(file)
            step(note=rfc3339(frame.now) if frame.now else "")
            if not frame.now:
                notes.append(f"{file}: left out, it holds no device report")
                continue
            notes += [f"{file}: {finding}" for finding in frame.observed.diagnostics]
            frames, first, last = frames + 1, first or frame.now, frame.now
            now, other = comparison.decisions(frame.before, frame.after, frame.observed, frame.now, frame.shard)
            differences.take(frame, now, other)
    if not frames:
        raise InputError("holds no device report, so there is nothing to replay", where=str(files[0]), hint=_EXPECTED)
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more"]
    names = tuple(sorted(source.names))
    avoided, new, missed = differences.changes()
    return BacktestResult(names, frames, rfc3339(first), rfc3339(last), avoided, new, missed, tuple(notes))


class _Frames:
    """Reads frames; what was declared is read again only where it changed."""

    def __init__(self, policy: Mapping[str, bytes], tree: str | None, overlays: Sequence[str]) -> None:
        self._policy, self._tree, self._overlays = policy, tree, overlays
        self._known: tuple[object, tuple[Desired, Desired]] | None = None
        alone = _alone(policy).desired.fault_policies
        self._tested = [item.document for item in alone if item.origin.file in policy]
        self.names = {document.name for document in self._tested}

    def frame(self, file: Path) -> Frame:
        """One frame, from a recording or a List."""
        if file.name.endswith(RECORDING_SUFFIX):
            return self._recorded(file)
        items = newest(read_cluster(str(file)))
        observed = observe(items)
        before, _ = desired_from(self._tree, self._overlays, items)
        after = self._with_policy(self._again(items), file)
        return Frame(moment(None, observed, None), "main", every_role(before), every_role(after), observed)

    def _again(self, items: Sequence[Mapping[str, Any]]) -> Desired:
        return desired_from(self._tree, self._overlays, items, over=[self._policy])[0]

    def _recorded(self, file: Path) -> Frame:
        recording = read(file)
        known = (
            recording.revision,
            recording.files,
            recording.before,
            recording.refused_files,
            recording.previous,
            recording.has_git,
            foreign_documents(recording.objects),
        )
        if self._known is None or self._known[0] != known:
            layers = [declared(recording, extra) for extra in ((), (self._policy,))]
            self._known = (known, (layers[0].desired, self._with_policy(layers[1].desired, file)))
        before, after = self._known[1]
        return Frame(recording.now, recording.shard, before, after, observe(recording.objects, recording.shard))

    def _with_policy(self, desired: Desired, file: Path) -> Desired:
        """The policy under test is enforced, whatever its mode.

        Raises:
            InputError: it is not in force there.
        """
        for document in self._tested:
            if all(item.document != document for item in desired.fault_policies):
                text = f"FaultPolicy {document.name!r} names a pool that was not declared then"
                raise InputError(text, where=str(file), hint="Give recordings of the time since the pool exists.")
        policies = tuple(
            enforced(item) if item.document.name in self.names else item for item in desired.fault_policies
        )
        return dataclasses.replace(desired, fault_policies=policies)


@dataclasses.dataclass(slots=True)
class _OpenDifference:
    """A difference that spans frames."""

    action: AnyAction
    budget: str
    first: float
    last: float
    frames: int = 1


class _Differences:
    """Collects the differences of all frames."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, DecisionKey], _OpenDifference] = {}
        self._done: list[tuple[str, _OpenDifference]] = []
        self._seen: dict[tuple[str, int, str], float] = {}
        self._failed: dict[str, float] = {}
        self._spared: set[DecisionKey] = set()

    def take(
        self,
        frame: Frame,
        now: Mapping[DecisionKey, tuple[AnyAction, str]],
        other: Mapping[DecisionKey, tuple[AnyAction, str]],
    ) -> None:
        """Compare the decisions of both sides in one frame."""
        self._record(frame)
        current = {("new", key): other[key] for key in other.keys() - now.keys() if not self._undoes(key)}
        current |= {("avoided", key): now[key] for key in now.keys() - other.keys()}
        self._spared |= {key for change, key in current if change == "avoided"}
        for one in [one for one in self._open if one not in current]:
            self._done.append((one[0], self._open.pop(one)))
        for one, (action, budget) in current.items():
            if one in self._open:
                self._open[one].last, self._open[one].frames = frame.now, self._open[one].frames + 1
            else:
                self._open[one] = _OpenDifference(action, budget, frame.now, frame.now)

    def changes(
        self,
    ) -> tuple[tuple[ActionDifference, ...], tuple[ActionDifference, ...], tuple[ActionDifference, ...]]:
        """Avoided, new and missed changes, in order of time."""
        rows = [*self._done, *((one[0], row) for one, row in self._open.items())]
        found: dict[str, list[tuple[float, ActionDifference]]] = {"avoided": [], "new": [], "missed": []}
        for change, row in rows:
            why = self._harm(row) if change == "avoided" else ""
            difference = ActionDifference(
                kind_of(row.action), target(row.action), rfc3339(row.first), rfc3339(row.last), row.frames,
                row.action.message, row.budget, why,
            )  # fmt: skip
            found["missed" if why else change].append((row.first, difference))
        avoided, new, missed = (
            tuple(one for _, one in sorted(found[name], key=lambda row: (row[0], row[1].action, row[1].on)))
            for name in ("avoided", "new", "missed")
        )
        return avoided, new, missed

    def _undoes(self, key: DecisionKey) -> bool:
        """Whether an action only reverts one that the new policy would not have taken."""
        done = _UNDOES.get(key[0])
        return done is not None and (done, *key[1:]) in self._spared

    def _record(self, frame: Frame) -> None:
        for name, report in frame.observed.reports.items():
            for fault in report.faults:
                self._seen[(name, fault.chip, fault.code)] = frame.now
        for name, board in frame.observed.node_reports.items():
            for device in board.devices:
                for code in device.codes:
                    self._seen[(name, -1, code)] = frame.now
        for pod in frame.observed.pods.values():
            if pod.phase == "Failed":
                self._failed.setdefault(pod.uid, frame.now)

    def _harm(self, row: _OpenDifference) -> str:
        """Why an action that the new policy avoids was needed; empty when the recording does not show it."""
        action = row.action
        if not isinstance(action, _PROTECTS):
            return ""
        uid = action.preconditions.uid or ""
        if isinstance(action, act.EvictPod) and self._failed.get(uid, 0.0) > row.first:
            return f"the pod failed at {rfc3339(self._failed[uid])}"
        node = action.preconditions.node or getattr(action, "node", "")
        chips = {chip_number(name) for name in getattr(action, "chips", ())}
        codes = set(action.evidence.codes)
        last = max(
            (
                at
                for (where, chip, code), at in self._seen.items()
                if where == node and code in codes and (not chips or chip in chips)
            ),
            default=0.0,
        )
        if last - row.first < LASTED:
            return ""
        return f"{', '.join(sorted(codes))} still reported {round((last - row.first) / 60)} minutes later"


def _files(against: Sequence[str]) -> list[Path]:
    """Every frame's file in order of time: recordings, or Lists where there is none."""
    found: list[tuple[float, str, Path]] = []
    for name in against:
        path = Path(name)
        if not path.exists():
            raise InputError("does not exist", where=name)
        inside = [path] if path.is_file() else list(_inside(path))
        if not inside:
            raise InputError(f"holds no recordings (*{RECORDING_SUFFIX}) and no Lists", where=name)
        found += [(_time(file), file.name, file) for file in inside]
    return [file for _, _, file in sorted(found)]


def _inside(folder: Path) -> Iterator[Path]:
    recordings = sorted(folder.glob(f"*{RECORDING_SUFFIX}"))
    yield from recordings or sorted(file for file in folder.iterdir() if file.suffix in _LISTS)


def _time(file: Path) -> float:
    if file.name.endswith(RECORDING_SUFFIX):
        return read(file).now
    return observe(read_cluster(str(file))).newest_report
