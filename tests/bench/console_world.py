"""A cluster of any size as the console's server would describe it, made from a seed, and a server of its own for it.

The benchmark of the page needs 80,000 chips with gangs, faults, cuts and 200 recorded moments at once, and measures the
page, not the planner. Shapes: ``console/src/types.ts``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

STATIC = Path(__file__).resolve().parents[2] / "engine/serve/console/static"
STATES = ["healthy", "sub-healthy", "suspect", "isolated", "resetting", "recovering", "manually-isolated", "unknown"]
HOLDS = [
    "",
    "fault",
    "manual",
    "frequency",
    "duration",
    "attempt-budget",
    "reset-pending",
    "bad-boot",
    "no-agent",
    "node",
]
BEGIN = datetime(2026, 3, 12, 1, 0, tzinfo=UTC)
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def _time(at: float) -> str:
    return (BEGIN + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ")


def document(nodes: int = 5000, chips: int = 16, seed: int = 1, turn: int = 0) -> dict[str, Any]:
    """The document of moment ``turn``: the same gangs, other faults."""
    rng = random.Random(seed)
    pools = [("train-a3", 0.62), ("train-a2", 0.3), ("inference", 0.08)]
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "name",
            "pool",
            "product",
            "superPod",
            "rack",
            "switch",
            "prefix",
            "state",
            "level",
            "message",
            "cordoned",
        )
    }
    for pool, part in pools:
        for at in range(round(nodes * part)):
            columns["name"].append(f"{pool}-{at:04d}")
            columns["pool"].append(pool)
            columns["product"].append(
                {"train-a3": "atlas-900-a3-superpod", "train-a2": "atlas-800t-a2"}.get(pool, "atlas-800i-a2")
            )
            columns["superPod"].append(at // 48 if pool == "train-a3" else -1)
            columns["rack"].append(f"r{at // 8:03d}" if pool == "train-a3" else "")
            columns["switch"].append(f"leaf-{at // 64}" if pool == "train-a2" else "")
            columns["prefix"].append("Ascend910-")
            columns["state"].append("healthy")
            columns["level"].append("")
            columns["message"].append("")
            columns["cordoned"].append(0)
    count = len(columns["name"])
    size = count * chips
    jobs: list[dict[str, Any] | None] = []
    job, state, hold, cuts = [-1] * size, [0] * size, [0] * size, [0] * size
    node = 0
    while node < count:
        width = rng.choice((1, 1, 2, 4, 8, 16, 32, 64))
        width = min(width, count - node)
        if rng.random() < 0.86:
            pool = columns["pool"][node]
            for chip in range(node * chips, (node + width) * chips):
                job[chip] = len(jobs)
            jobs.append(_job(len(jobs), pool, width, chips, "Running"))
        node += width
    waiting = [_job(len(jobs) + at, "train-a3", rng.choice((4, 16, 64)), chips, "Pending") for at in range(40)]
    jobs += waiting
    for at in range(size):
        if columns["pool"][at // chips] == "inference" and rng.random() < 0.4:
            cuts[at] = rng.choice((["vir04", "vir02"], ["vir02", "vir02", "vir02"], ["vir08", "vir04"]))  # type: ignore[call-overload]
    faults = []
    live = random.Random(seed * 1000 + turn // 3)
    for _ in range(max(4, count // 40)):
        at = live.randrange(size)
        code = live.choices((1, 2, 3, 4, 5, 6), (4, 3, 5, 1, 1, 2))[0]
        state[at] = code
        hold[at] = {3: 1, 6: 2, 4: 6, 5: 6}.get(code, 0)
        faults.append(
            {
                "code": live.choice(("80C98001", "80E01801", "81078603", "8C1F8609")),
                "level": "SeparateNPU",
                "node": columns["name"][at // chips],
                "chip": at % chips,
                "since": _time(turn * 60 - live.random() * 4000),
                "count": 1,
                "policy": "",
                "action": "isolated",
            }
        )
    for _ in range(max(1, count // 500)):
        bad = live.randrange(count)
        kind, message = live.choice(
            (
                ("isolated", "CPU fault 00000003"),
                ("not-ready", "kubelet stopped posting status"),
                ("unknown", "no report for 5 min"),
            )
        )
        columns["state"][bad], columns["message"][bad] = kind, message
        columns["cordoned"][bad] = int(kind == "isolated")
        for at in range(bad * chips, (bad + 1) * chips):
            state[at], job[at] = (7, -1) if kind == "unknown" else (3, -1)
            hold[at] = 9
    return {
        "version": 1,
        "moment": {"id": f"m{turn:05d}", "time": _time(turn * 60), "shard": "main", "revision": f"{turn // 20:040x}"},
        "states": STATES, "holds": HOLDS,
        "nodeStates": ["healthy", "sub-healthy", "pre-isolated", "isolated", "not-ready", "manually-isolated",
                       "unknown"],
        "nodes": columns,
        "chips": {
            "node": [at // chips for at in range(size)], "chip": [at % chips for at in range(size)],
            "ring": [at % chips // (2 if chips == 16 else 4) for at in range(size)],
            "state": state, "job": job, "hold": hold, "cuts": cuts,
        },
        "jobs": jobs, "queues": [], "recoveries": [], "fleet": {"perCause": [], "mttr": None, "effectiveTime": None},
        "faults": faults, "offenders": [], "links": [], "boards": [],
        "git": {"attempted": "", "applied": "", "conditions": [], "revisions": [], "findings": [], "held": []},
        "problems": [], "leftOut": {},
    }  # fmt: skip


def _job(at: int, pool: str, width: int, chips: int, phase: str) -> dict[str, Any]:
    placed = width if phase == "Running" else 0
    return {
        "kind": "AscendJob", "namespace": "train", "name": f"{pool}-job-{at:04d}", "queue": "default", "phase": phase,
        "pods": {"wanted": width, "placed": placed, "running": placed}, "chips": width * chips,
        "reason": "" if placed else "NotEnoughNodes",
        "message": "" if placed else f"{width} nodes of one super pod are wanted",
        "wayOut": "", "nodes": {}, "since": _time(-at * 100), "resources": {"huawei.com/Ascend910": width * chips},
    }  # fmt: skip


class World:
    """The server's answers, encoded before they are asked for; ``moments`` many moments of history."""

    def __init__(self, nodes: int, chips: int, moments: int = 200) -> None:
        self.nodes, self.chips, self.moments = nodes, chips, moments
        self.present = document(nodes, chips, turn=moments - 1)
        self._encoded: dict[int, bytes] = {}
        self._streams: set[web.StreamResponse] = set()
        self._event = 0

    def encoded(self, turn: int) -> bytes:
        """The document of a moment, gzipped as the server keeps it."""
        if turn not in self._encoded:
            made = self.present if turn == self.moments - 1 else document(self.nodes, self.chips, turn=turn)
            self._encoded[turn] = gzip.compress(json.dumps(made, separators=(",", ":")).encode(), 1)
        return self._encoded[turn]

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/console/", self._page)
        app.router.add_static("/console/assets", STATIC / "assets")
        app.router.add_get("/api/v1/viewer", self._viewer)
        app.router.add_get("/api/v1/state", self._state)
        app.router.add_get("/api/v1/changes", self._changes)
        app.router.add_get("/api/v1/history", self._history)
        app.router.add_get("/api/v1/at/{id}", self._at)
        app.router.add_get("/api/v1/next/{id}", self._next)
        app.router.add_get("/api/v1/between/{a}/{b}", self._between)
        app.router.add_get("/api/v1/explain/{kind}/{name:.+}", self._explain)
        return app

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return web.Response(
            body=(STATIC / "index.html").read_bytes(),
            content_type="text/html",
            headers={"Content-Security-Policy": CSP},
        )

    async def _viewer(self, _: web.Request) -> web.StreamResponse:
        can = dict.fromkeys(("changes", "history", "explain", "whatIf", "branches"), True)
        return web.json_response(
            {"version": "0", "user": "", "source": "cluster", "readOnly": True, "can": can, "limits": {}}
        )

    def _answer(self, body: bytes, cache: str) -> web.StreamResponse:
        headers = {"Content-Encoding": "gzip", "Cache-Control": cache}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _state(self, _: web.Request) -> web.StreamResponse:
        return self._answer(self.encoded(self.moments - 1), "no-cache")

    async def _at(self, request: web.Request) -> web.StreamResponse:
        return self._answer(self.encoded(int(request.match_info["id"][1:])), "max-age=31536000, immutable")

    def _moment(self, turn: int) -> dict[str, Any]:
        rng = random.Random(turn // 3)
        return {
            "id": f"m{turn:05d}", "time": _time(turn * 60), "revision": f"{turn // 20:040x}", "shard": "main",
            "faults": rng.randrange(3), "evictions": int(rng.random() < 0.1), "bound": rng.randrange(40),
            "waiting": 40 - turn % 30, "source": "recording",
        }  # fmt: skip

    async def _history(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"moments": [self._moment(turn) for turn in range(self.moments)], "leftOut": 0})

    async def _next(self, request: web.Request) -> web.StreamResponse:
        step = int(request.query.get("direction", "1"))
        turn = int(request.match_info["id"][1:]) + step * 5
        return web.json_response({"id": f"m{turn:05d}" if 0 <= turn < self.moments else None})

    async def _between(self, request: web.Request) -> web.StreamResponse:
        ends = {
            "from": self._moment(int(request.match_info["a"][1:])),
            "to": self._moment(int(request.match_info["b"][1:])),
        }
        chips = [{"node": "train-a3-0001", "chip": 3, "from": "healthy", "to": "isolated"}]
        text = ["chip train-a3-0001/3 went from healthy to isolated"]
        return web.json_response(
            {
                **ends,
                "chips": chips,
                "nodes": [],
                "jobs": [],
                "faults": [],
                "revisions": [],
                "text": text,
                "leftOut": {},
            }
        )

    async def _explain(self, request: web.Request) -> web.StreamResponse:
        kind, name = request.match_info["kind"], request.match_info["name"]
        text = [
            f"{kind} {name} is healthy and in service.",
            "No code is reported and no hold covers it.",
            "A job may be placed here in the next pass.",
        ]
        return web.json_response({"kind": kind, "name": name, "at": None, "text": text, "facts": {}})

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await stream.prepare(request)
        await stream.write(
            f"id: {self._event}\nevent: hello\ndata: {json.dumps({'moment': self.present['moment']})}\n\n".encode()
        )
        self._streams.add(stream)
        try:
            while True:
                await asyncio.sleep(15)
                await stream.write(b": \n\n")
        except ConnectionResetError:
            return stream
        finally:
            self._streams.discard(stream)

    async def change(self, chip: int, state: int) -> None:
        """Put a chip into another state, and send the change to every viewer."""
        before = self.present["moment"]
        self._event += 1
        moment = {**before, "id": f"live-{self._event}"}
        self.present["chips"]["state"][chip] = state
        self.present["moment"] = moment
        self._encoded.pop(self.moments - 1, None)
        data = {"from": before["id"], "moment": moment, "patch": {"chips": {"state": {"i": [chip], "v": [state]}}}}
        event = f"id: {self._event}\nevent: patch\ndata: {json.dumps(data)}\n\n".encode()
        for stream in list(self._streams):
            with contextlib.suppress(ConnectionResetError):
                await stream.write(event)
