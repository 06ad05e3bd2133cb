"""A cluster's status on a virtual clock, as the engine publishes it, and a server that keeps its history."""

from __future__ import annotations

from typing import Any

import msgspec

from belay.engine.model.times import rfc3339
from belay.engine.serve.records.questions import QUESTIONS
from belay.engine.serve.records.store import HistoryBounds, RecordStore
from belay.engine.serve.records.writer import HistoryWriter
from belay.engine.wire import names
from belay.engine.wire.revisionlog import RevisionEntry, RevisionLog

BEGIN = 1_790_000_000.0


class HistoryWorld:
    """What happens is published at once; each server of ``servers`` looks when it is asked to."""

    def __init__(self, url: str, servers: int = 1, bounds: HistoryBounds | None = None) -> None:
        self.now = BEGIN
        self.url, self.bounds = url, bounds or HistoryBounds()
        self.status: dict[str, dict[str, str]] = {}
        self.written: dict[str, float] = {}
        self.events: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.chips: dict[str, list[dict[str, Any]]] = {"faults.json": [], "held.json": []}
        self.truth: list[tuple[str, int, float, float]] = []
        self.former: dict[str, dict[str, str]] = {}
        self.bound: dict[tuple[str, str], tuple[int, float]] = {}
        self._log = RevisionLog()
        self._publish(f"{names.MAP_PREFIX}main-0", parts="1", **{"nodes.json": _json({
            "name": ["node-1", "node-2"], "pool": ["training", "training"], "product": ["p", "p"],
            "superPod": [-1, -1], "rack": ["", ""], "switch": ["", ""], "prefix": ["Ascend910-"] * 2,
            "chips": ["ff", "ff"], "ring": [0, 0], "cordoned": [0, 0],
        })})  # fmt: skip
        self._publish_chips()
        self.servers = [self.server(f"server-{number}") for number in range(servers)]

    def server(self, name: str = "server-0") -> HistoryWriter:
        """A server that starts now: it reads the whole status and every Event that Kubernetes still has."""
        made = HistoryWriter(self.url, name, self.bounds, wall=lambda: self.now, clock=lambda: self.now)
        self._tell(made)
        return made

    def _tell(self, server: HistoryWriter) -> None:
        for key in {*self.status, *server._status}:
            data = self.status.get(key)
            if server._status.get(key) != data:
                server.take(key, data, _object(self.written.get(key, 0)))
        for event in self.events:
            server.take_event(event)

    def look(self, *servers: HistoryWriter) -> None:
        """Each server (by default all) looks."""
        for server in servers or self.servers:
            self._tell(server)
            server.look()

    def passes(self, seconds: float) -> None:
        """Let time pass. Events are gone after an hour."""
        self.now += seconds
        limit = self.now - 3600
        self.events = [event for event in self.events if event["at"] >= limit]

    # what happens

    def submit(self, job: str, *, chips: int = 8, user: str = "", queue: str = "default") -> None:
        """A job is made, and waits."""
        self.jobs[job] = {
            "since": rfc3339(self.now), "queue": queue, "user": user, "requests": {"huawei.com/Ascend910": chips},
            "wanted": 1, "placement": {}, "pending": {"reason": "NoRoom", "message": "no node has 8 free chips"},
        }  # fmt: skip
        self._publish_job(job, "Pending")

    def place(self, job: str, node: str, chips: int = 8, *, pod: str = "") -> None:
        """A pod of the job is bound."""
        own = pod or f"{job.rpartition('/')[2]}-0"
        body = self.jobs[job]
        body.pop("pending", None)
        body["placement"][own] = {"node": node, "chips": [f"Ascend910-{n}" for n in range(chips)], "phase": "Running"}
        self.bound[job, own] = (chips, self.now)
        self._event("BindPod", "Scheduled", "Pod", job.partition("/")[0], own, "Successfully assigned")
        self._publish_job(job, "Running")

    def evict(self, job: str, reason: str = "CardUnhealthy") -> None:
        """The job's pods are evicted, and it waits again."""
        for pod in list(self.jobs[job]["placement"]):
            self._event("EvictPod", reason, "Pod", job.partition("/")[0], pod, f"{reason}: moved")
            self._free(job, pod)
        self.jobs[job]["pending"] = {"reason": "NoRoom", "message": "it waits for chips"}
        self._publish_job(job, "Pending")

    def loses_pods(self, job: str) -> None:
        """The job has no pods: its status says neither whose it is nor what it asks for."""
        for pod in list(self.jobs[job]["placement"]):
            self.former.setdefault(job, {})[str(len(self.former))] = self.jobs[job]["placement"][pod]["node"]
            self._free(job, pod)
        for field in ("user", "queue", "requests", "since", "pending"):
            self.jobs[job].pop(field, None)
        self._publish_job(job, "Pending")

    def submit_again(self, job: str, *, user: str, queue: str) -> None:
        """The job has pods again, which wait; what is remembered of it stays."""
        self.jobs[job] |= {"user": user, "queue": queue, "requests": {"huawei.com/Ascend910": 8}}
        self._publish_job(job, "Pending")

    def waits(self, job: str, pod: str) -> None:
        """The Events of a pod that waits, and of its job: one each."""
        namespace, kind, name = job.split("/")
        text = "NoRoom: no node has 8 free chips. Way out: wait"
        self._event("Scheduling", "FailedScheduling", "Pod", namespace, pod, text)
        self._event("Scheduling", "Unschedulable", kind, namespace, name, text)

    def starts(self, job: str) -> None:
        """The job's pods have their chips and do not run yet."""
        self._publish_job(job, "Starting")

    def finish(self, job: str) -> None:
        """The job ends well, and its pods give their chips back."""
        for pod in list(self.jobs[job]["placement"]):
            self._free(job, pod)
        self._publish_job(job, "Finished")

    def delete(self, job: str) -> None:
        """The job is deleted."""
        for pod in list(self.jobs[job]["placement"]):
            self._free(job, pod)
        del self.jobs[job]
        self._publish(_name(job), gone=True)

    def recovery(self, job: str, *, chips: int = 8, back: float = 0, seen: float = 0, redone: int = 0) -> None:
        """A recovery begins now; one under way ends ``back`` seconds after its beginning."""
        rows = self.jobs[job].setdefault("recoveries", [])
        if back and rows and rows[-1]["actual"] is None:
            begun = rows[-1]["at"]
            rows[-1] |= {
                "actual": {"seconds": int(back), "chipSeconds": int(chips * (back + redone))},
                "lost": {"chipSeconds": int(chips * (back + redone)), "chips": chips, "hitChips": chips},
            }
            rows[-1]["stages"].append({"stage": "resumed", "time": rfc3339(begun + back)})
        else:
            rows.append({
                "at": self.now, "time": rfc3339(self.now), "reason": "CardUnhealthy", "codes": ["80C98001"],
                "level": "job", "chips": chips, "actual": None, "lost": None,
                "stages": [{"stage": "seen", "time": rfc3339(seen or self.now)}],
            })  # fmt: skip
        self._publish_job(job, "Running" if self.jobs[job]["placement"] else "Pending")

    def says(self, job: str, text: str) -> None:
        """A line is added to the job's story."""
        self.jobs[job].setdefault("history", []).append({"time": rfc3339(self.now), "what": text})
        self._publish_job(job, "Running" if self.jobs[job]["placement"] else "Pending")

    def fault(self, node: str, chip: int, code: str = "80C98001") -> None:
        """A chip reports a fault code; the second time it does not any more."""
        rows = self.chips["faults.json"]
        alike = [row for row in rows if (row["node"], row["chip"], row["code"]) == (node, chip, code)]
        if alike:
            rows.remove(alike[0])
        else:
            rows.append({"node": node, "chip": chip, "code": code, "level": "RestartNPU", "since": rfc3339(self.now)})
        self._publish_chips()

    def hold(self, node: str, chip: int | None, by: str) -> None:
        """Something holds a chip or node out of service; the second time it does not any more."""
        rows = self.chips["held.json"]
        alike = [row for row in rows if (row["node"], row["chip"]) == (node, chip)]
        if alike:
            rows.remove(alike[0])
        else:
            rows.append({"node": node, "chip": chip, "kind": "manual", "by": by, "until": None})
        self._publish_chips()

    def commit(self, revision: str, author: str, subject: str) -> None:
        """A commit is accepted and in force."""
        entry = RevisionEntry(
            number=1, revision=revision, source="git", time=round(self.now * 1000), author=author, subject=subject
        )
        self._log = self._log.appended(entry)
        body = {"entries": [msgspec.to_builtins(one) for one in self._log.entries], "start": {"number": 0, "hash": ""}}
        self._publish(names.REVISIONS, head=revision, **{"entries.json": _json(body)})
        self.sync(appliedRevision=revision, attemptedRevision=revision)

    def sync(self, **data: str) -> None:
        """``belay-sync`` says something else."""
        self._publish(names.SYNC, **{**self.status.get(names.SYNC, {}), **data})

    def act(
        self, action: str, reason: str, node: str, message: str, cause: dict[str, Any] | None = None, chips: str = "",
    ) -> None:  # fmt: skip
        """The engine does something to a node or its ``chips``."""
        self._event(action, reason, "Node", "", node, message, cause, chips)

    # what is asked

    def ask(self, word: str, **values: str) -> dict[str, Any]:
        """An answer of the history, read from its database."""
        store = RecordStore(self.url)
        try:
            return QUESTIONS[word](store, values, round(self.now * 1000))
        finally:
            store.close()

    def texts(self, **values: str) -> list[str]:
        """The words of the records that a query names."""
        return [row["text"] for row in self.ask("records", **values)["records"]]

    def _free(self, job: str, pod: str) -> None:
        del self.jobs[job]["placement"][pod]
        chips, begun = self.bound.pop((job, pod))
        self.truth.append((job, chips, begun, self.now))

    def _publish_job(self, job: str, phase: str) -> None:
        body = {key: value for key, value in self.jobs[job].items() if value}
        memory = {"memory.json": _json({"nodes": self.former[job]})} if job in self.former else {}
        self._publish(_name(job), job=job, phase=phase, **{"status.json": _json({"phase": phase, **body}), **memory})

    def _publish_chips(self) -> None:
        listed = {key: _json(rows) for key, rows in self.chips.items()}
        self._publish(f"{names.CHIPS_PREFIX}main-0", parts="1", **listed)

    def _publish(self, key: str, *, gone: bool = False, **data: str) -> None:
        self.written[key] = self.now
        if gone:
            self.status.pop(key, None)
        else:
            self.status[key] = dict(data)

    def _event(
        self, action: str, reason: str, kind: str, namespace: str, name: str, message: str,
        cause: dict[str, Any] | None = None, chips: str = "",
    ) -> None:  # fmt: skip
        marks = ({"belay.dev/cause": _json(cause)} if cause else {}) | ({"belay.dev/chips": chips} if chips else {})
        annotations = {"annotations": marks} if marks else {}
        self.events.append({
            "at": self.now, "action": action, "reason": reason, "message": message, "source": {"component": "belay"},
            "firstTimestamp": rfc3339(self.now),
            "involvedObject": {"kind": kind, "namespace": namespace, "name": name},
            "metadata": {"uid": f"event-{len(self.events)}-{self.now}", **annotations},
        })  # fmt: skip


def _name(job: str) -> str:
    namespace, kind, name = job.split("/")
    return names.job_config_map(namespace, kind, name)


def _object(written: float) -> dict[str, Any]:
    return {"metadata": {"managedFields": [{"manager": "belay", "time": rfc3339(written)}]}}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
