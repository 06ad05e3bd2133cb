"""What the console is asked: moments of the past, what changed, explanations, what-if, branches and their plans."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from belay.engine.cli.console_answers import WhatIfDeadline
from belay.engine.cli.console_answers import answer as answered
from belay.engine.cli.console_moments import Moments
from belay.engine.load import load
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.replay import recording
from belay.engine.replay.summary import RECORDING_SUFFIX, PassDigest, read_digest, write_digest
from belay.engine.serve.console import patches
from belay.engine.serve.console.answers import Answers, Unanswered
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.comparison import SeenDigest, heat
from belay.engine.serve.console.document import Builder
from belay.engine.serve.console.history import PRESENT, HistoryMoment, PastMoments, following
from belay.engine.serve.console.questions import AskedCluster, Questions
from belay.engine.serve.console.routes import Console, guarded
from belay.engine.serve.console.viewers import AccessRules, Viewers
from tests.bench.clusters import NOW, cluster, device
from tests.console_clusters import MARKUP, hostile, large, write
from tests.gitrepo import Repo
from tests.test_console_document import SHIPPED, published


class SameProcess(Answers):
    """Answers without children, by the same code."""

    def __init__(self) -> None:
        super().__init__([])
        self.moments, self.asked = Moments(), 0

    async def ask(self, request: Any, seconds: float, topic: str = "") -> bytes:
        self.asked += 1
        head, body = answered(msgspec.json.encode(request), self.moments)
        if head.status != 200:
            raise Unanswered(head.status, head.error, head.hint)
        return body


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three recorded passes: all is well, a chip fails under a job, and it is well again."""
    folder = tmp_path_factory.mktemp("passes")
    for after, faulty in ((0, None), (60, 3), (120, None)):
        items = [item for item in cluster(4, 1) if item["metadata"]["name"] != "mindx-dl-deviceinfo-node-00001"]
        items.append(device("node-00001", faulty=faulty, at=int(NOW) + after))
        record(folder, items, NOW + after)
    return folder


def record(folder: Path, items: list[dict[str, Any]], now: float) -> Plan:
    result = plan(SHIPPED, observe(items), now)
    file = recording.write(
        folder, version="1", shard="main", now=now, revision="", files={}, objects=items, digest=result.digest()
    )
    write_digest(file, result)
    return result


@asynccontextmanager
async def console(past: PastMoments, source: dict[str, Any] | None = None, repository: str = "") -> AsyncIterator[Any]:
    changes = ChangeStream()
    asked = AskedCluster(source=source, repository=repository)
    questions = Questions(changes, past, asked, SameProcess())
    served = Console(changes, Viewers(AccessRules(), None), questions=questions)

    @web.middleware
    async def looking(request: web.Request, handler: Any) -> web.StreamResponse:
        return await served.admitted(request, handler)

    app = web.Application(middlewares=[guarded, looking])
    served.add_to(app)
    async with TestClient(TestServer(app)) as http:
        http.changes = changes  # type: ignore[attr-defined]
        yield http


async def got(http: Any, path: str, status: int = 200) -> Any:
    reply = await http.get(path)
    body = await reply.json()
    assert reply.status == status, body
    assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    return body


async def asked(http: Any, body: Any, status: int = 200) -> Any:
    reply = await http.post("/api/v1/what-if", json=body)
    found = await reply.json()
    assert reply.status == status, found
    return found


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_recorded_passes_are_moments_with_figures_and_documents(passes: Path) -> None:
    async def work() -> None:
        async with console(PastMoments(passes)) as http:
            moments = (await got(http, "/api/v1/history"))["moments"]
            assert [moment["faults"] for moment in moments] == [0, 1, 0]
            assert [moment["evictions"] > 0 for moment in moments] == [False, True, False]
            well, ill, _ = [await got(http, f"/api/v1/at/{moment['id']}") for moment in moments]
            assert ill["moment"]["id"] == moments[1]["id"] and ill["moment"]["time"] == moments[1]["time"]
            assert len(ill["faults"]) == 1 and not well["faults"]
            assert ill["states"][ill["chips"]["state"][8 + 3]] == "isolated"
            some = await got(http, f"/api/v1/history?from={moments[1]['time']}&limit=1")
            assert some["moments"] == moments[2:] and some["leftOut"] == 1

    run(work())


def test_a_moment_never_changes_so_it_may_be_kept(passes: Path) -> None:
    async def work() -> None:
        async with console(PastMoments(passes)) as http:
            moments = (await got(http, "/api/v1/history"))["moments"]
            reply = await http.get(f"/api/v1/at/{moments[0]['id']}")
            assert "immutable" in reply.headers["Cache-Control"]
            assert (await got(http, "/api/v1/at/r1-unknown", 404))["error"]

    run(work())


def test_what_changed_between_two_moments(passes: Path) -> None:
    async def work() -> None:
        async with console(PastMoments(passes)) as http:
            a, b, _ = [moment["id"] for moment in (await got(http, "/api/v1/history"))["moments"]]
            found = await got(http, f"/api/v1/between/{a}/{b}")
            assert found["chips"] == [{"node": "node-00001", "chip": 3, "from": "healthy", "to": "isolated"}]
            assert found["faults"] == [{"node": "node-00001", "chip": 3, "code": "80C98001", "change": "came"}]
            assert "fault 80C98001 came on node-00001/3" in found["text"]
            assert (await got(http, f"/api/v1/between/{b}/{b}"))["text"] == ["nothing differs"]

    run(work())


def test_the_next_fault_and_eviction(passes: Path) -> None:
    async def work() -> None:
        async with console(PastMoments(passes)) as http:
            a, b, c = [moment["id"] for moment in (await got(http, "/api/v1/history"))["moments"]]
            assert (await got(http, f"/api/v1/next/{a}?of=fault"))["id"] == b
            assert (await got(http, f"/api/v1/next/{c}?of=eviction&direction=-1"))["id"] == b
            assert (await got(http, f"/api/v1/next/{b}?of=fault"))["id"] is None
            await got(http, f"/api/v1/next/{b}?of=weather", 400)
            assert (await got(http, "/api/v1/next/present?of=eviction&direction=-1"))["id"] == b
            assert (await got(http, "/api/v1/next/present?of=eviction"))["id"] is None

    run(work())


def test_from_the_present_the_newest_moment_is_the_first_before_it() -> None:
    rows = [("a", 0), ("b", 1), ("c", 1), ("d", 2)]
    moments = [HistoryMoment(name, at, "", "main", "status", faults=count) for at, (name, count) in enumerate(rows)]
    back = lambda name: following(moments, name, "fault", -1)  # noqa: E731
    assert [found.id if (found := back(name)) else None for name in (PRESENT, "d", "b")] == ["d", "b", None]
    assert following(moments, "gone", "fault", -1) is None


def test_the_heat_map_counts_chips_by_code_and_time(passes: Path) -> None:
    async def work() -> None:
        async with console(PastMoments(passes)) as http:
            found = await got(http, "/api/v1/heat?by=code")
            assert len(found["buckets"]) == len(found["rows"][0]["cells"])
            assert (found["rows"][0]["name"], found["rows"][0]["total"]) == ("80C98001", 1)
            assert (await got(http, "/api/v1/heat?by=chip"))["rows"][0]["name"] == "node-00001/3"
            await got(http, "/api/v1/heat?by=colour", 400)
            await got(http, "/api/v1/heat?from=yesterday", 400)

    run(work())


def digest(*faults: tuple[str, int, str]) -> PassDigest:
    return PassDigest("", len(faults), 0, 0, 0, faults, ())


def test_a_fault_stays_in_the_heat_map_until_a_moment_shows_that_it_went() -> None:
    one, other = ("node-1", 3, "80C98001"), ("node-2", -1, "28000037")
    seen = [
        SeenDigest(at, "main", True, digest(*faults))
        for at, faults in ((990.0, [one]), (1001.0, [one, other]), (1040.0, [other]), (1055.0, [one, other]))
    ]
    found = heat("code", seen, 1000.0, 1090.0)
    assert (found["bucketSeconds"], len(found["buckets"])) == (1, 91)
    rows = {row["name"]: row for row in found["rows"]}
    # there from before the beginning, gone for 15 s, there to the end: it came twice
    assert rows["80C98001"]["cells"] == [1] * 40 + [0] * 15 + [1] * 35 + [0]
    assert (rows["80C98001"]["total"], rows["28000037"]["total"]) == (2, 1)
    assert rows["28000037"]["cells"] == [0] + [1] * 89 + [0]
    # recordings of the same cluster say the same: nothing counts twice, and the status says when a fault went
    recorded = [SeenDigest(1010.0, "main", False, digest(one)), SeenDigest(1020.0, "other", False, digest())]
    assert heat("code", [*seen, *recorded], 1000.0, 1090.0)["rows"] == found["rows"]
    # without a status what was recorded last holds
    assert heat("code", recorded, 1000.0, 1090.0)["rows"][0]["cells"] == [0] * 10 + [1] * 80 + [0]


def test_of_each_source_the_last_moment_before_a_time_counts(passes: Path) -> None:
    past = PastMoments(passes)
    moments = past.moments()
    assert [one.at for one in past.digests(moments[1].at + 0.5, moments[2].at)] == [moments[1].at, moments[2].at]


def test_explanations_are_those_of_the_verb_then_and_now(passes: Path) -> None:
    async def work() -> None:
        past = PastMoments(passes)
        newest = past.moments()[-1]
        source = {"kind": "recording", "path": str(past.recording(newest.id)), "identity": newest.id}
        async with console(past, source) as http:
            _, ill, _ = [moment["id"] for moment in (await got(http, "/api/v1/history"))["moments"]]
            then = await got(http, f"/api/v1/explain/chip/node-00001/Ascend910-3?at={ill}")
            now = await got(http, "/api/v1/explain/chip/node-00001/3")
            assert (then["facts"]["state"], now["facts"]["state"]) == ("isolated", "healthy")
            assert any("80C98001" in row for row in then["text"])
            # with its columns, and with moments instead of ages: a page shows it for longer than an age is true
            assert any(re.fullmatch(r"  CODE   +.*SINCE +WHAT", row) for row in then["text"]), then["text"]
            assert any(re.search(r"  80C98001 .* \d{4}-\d\d-\d\dT[\d:.]+Z", row) for row in then["text"])
            assert not any("ago" in row for row in then["text"])
            job = await got(http, "/api/v1/explain/job/train/AscendJob/job-00000")
            assert job["facts"]["job"] == "train/job-00000"
            assert "unknown" in (await got(http, "/api/v1/explain/node/nowhere", 404))["error"]
            await got(http, "/api/v1/explain/secret/x", 404)

    run(work())


def test_a_what_if_plays_a_fault_forward_on_a_copy_and_says_the_commands(tmp_path: Path) -> None:
    async def work() -> None:
        write(large(6), tmp_path / "cluster.json")
        source = {"kind": "cluster", "path": str(tmp_path / "cluster.json")}
        async with console(PastMoments(), source) as http:
            fault = {"do": "fault", "node": "node-00000", "chip": 2, "code": "80C98001"}
            found = await asked(http, {"changes": [fault], "horizon": 300})
            sections = {name: value for name, value in found["before"].items() if isinstance(value, dict | list)}
            assert sections["chips"]["state"][2] == 0
            isolated = []
            for frame in found["frames"]:
                sections = patches.patched(sections, frame["patch"])
                isolated.append(sections["chips"]["state"][2])
            assert any(isolated)
            assert found["outcome"]["evicted"] and found["explanations"]
            assert found["commands"][0]["text"] == "belay inject fault node-00000/2 80C98001"
            again = await got(http, "/api/v1/explain/chip/node-00000/2")
            assert again["facts"]["state"] == "healthy"  # it was a copy

    run(work())


def test_a_what_if_that_takes_too_long_says_what_it_played_until_then(tmp_path: Path) -> None:
    write(large(3), tmp_path / "cluster.json")
    question = {
        "ask": "whatIf", "changes": [{"do": "cordon", "node": "node-00000"}], "horizon": 86_400,
        "source": {"kind": "cluster", "path": str(tmp_path / "cluster.json")},
    }  # fmt: skip
    whole, cut = [
        json.loads(answered(msgspec.json.encode({**question, "ends": ends}), Moments())[1])
        for ends in (0.0, time.monotonic())
    ]
    assert (whole["ended"], cut["ended"]) == ("passes", "time")
    assert cut["frames"] == whole["frames"][: len(cut["frames"])] and cut["end"] < whole["end"]


def test_a_what_if_is_cut_so_that_its_answer_comes_before_it_is_due() -> None:
    now = 50.0  # 60 s are left of 110: the rest went by waiting

    def played(*passes: float) -> list[bool]:
        nonlocal now
        now = 50.0
        cut = WhatIfDeadline(110.0, lambda: now)
        said = []
        for seconds in passes:
            now += seconds
            said.append(cut())
        return said

    # half of what is left, the reading of the cluster included
    assert played(25.0, 1.0, 3.0, 1.5) == [False, False, False, True]
    # no pass begins that is as long as those before and leaves no time for the answer
    assert played(6.0, 6.0, 6.0) == [False, False, False]
    assert played(2.0, 16.0) == [False, True]


def test_a_document_that_was_derived_meanwhile_is_not_derived_and_counted_twice(passes: Path) -> None:
    async def work() -> None:
        past, answers = PastMoments(passes), SameProcess()
        questions = Questions(ChangeStream(), past, AskedCluster(), answers)
        identity = past.moments()[0].id
        first = await questions._derive(identity)
        # a second caller saw nothing kept, and comes here after the first derivation has ended
        assert await questions._derive(identity) == first and answers.asked == 1
        assert questions._kept_bytes == len(questions._kept[identity])

    run(work())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ([], "1 to 32"),
        ([{"do": "explode"}], "explode"),
        ([{"do": "fault", "node": "nix", "chip": 0, "code": "80C98001"}], "nix"),
        ([{"do": "fault", "node": "node-00000", "chip": 99, "code": "80C98001"}], "no chip 99"),
        ([{"do": "fault", "node": "node-00000", "chip": 0, "code": "'; rm -rf /"}], "code"),
        ([{"do": "cordon", "node": MARKUP}], "no node"),
        ([{"do": "job", "yaml": "[" * 3000}], "change 1"),
        ([{"do": "job", "yaml": "kind: AscendJob"}], "apiVersion"),
        ([{"do": "branch", "name": "main"}], "repository"),
        ([{"do": "cordon", "node": "node-00000"}] * 33, "1 to 32"),
    ],
)  # fmt: skip
def test_a_change_that_makes_no_sense_is_refused_with_a_reason(
    tmp_path: Path, changes: list[dict[str, Any]], word: str
) -> None:
    async def work() -> None:
        write(large(2), tmp_path / "cluster.json")
        async with console(PastMoments(), {"kind": "cluster", "path": str(tmp_path / "cluster.json")}) as http:
            assert word in (await asked(http, {"changes": changes}, 400))["error"]

    run(work())


def test_a_cordon_a_drain_and_a_job_on_a_copy(tmp_path: Path) -> None:
    async def work() -> None:
        write(large(3), tmp_path / "cluster.json")
        async with console(PastMoments(), {"kind": "cluster", "path": str(tmp_path / "cluster.json")}) as http:
            job = json.dumps({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "more"},
                "spec": {"template": {"spec": {"containers": [{"name": "x", "image": "x"}]}}},
            })  # fmt: skip
            drain = [{"do": "drain", "node": "node-00000"}, {"do": "job", "yaml": job}]
            found = await asked(http, {"changes": drain, "horizon": 60})
            events = " ".join(found["frames"][0]["events"])
            assert "node-00000 is taken out by an Isolation" in events and "Job default/more is created" in events
            begin, end = (one["text"] for one in found["commands"][:2])
            written = begin.partition("<<'YAML'\n")[2].partition("YAML\n")[0].encode()
            loaded = load({"desired/maintenance.yaml": written}, revision="r")
            assert [str(d) for d in loaded.diagnostics] == []
            assert [item.document.spec.nodes for item in loaded.desired.isolations] == [("node-00000",)]
            assert "git push" in begin and end.startswith("git rm desired/maintenance-node-00000.yaml")

    run(work())


def test_bodies_of_a_what_if_are_bounded(tmp_path: Path) -> None:
    async def work() -> None:
        async with console(PastMoments(), {"kind": "cluster", "path": "x"}) as http:
            plain, text = "application/json", "text/plain"
            cases = (
                (b"x" * 600_000, plain, 413),
                (b"{", plain, 400),
                (b'{"changes": 3}', plain, 400),
                (b"", text, 415),
            )
            for data, kind, status in cases:
                reply = await http.post("/api/v1/what-if", data=data, headers={"Content-Type": kind})
                assert reply.status == status

    run(work())


def test_of_a_moment_that_was_only_shown_no_question_is_answered() -> None:
    async def work() -> None:
        past = PastMoments()
        document = Builder().build(published(cluster(2, 1)), time=NOW)
        past.see(document, document.encoded(), NOW)
        async with console(past) as http:
            (moment,) = (await got(http, "/api/v1/history"))["moments"]
            assert moment["source"] == "status"
            assert (await got(http, f"/api/v1/at/{moment['id']}"))["moment"]["id"] == document.id
            await got(http, f"/api/v1/explain/node/node-00000?at={moment['id']}", 409)

    run(work())


def test_the_memory_of_what_was_shown_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.serve.console.history.MOST_SEEN", 3)
    past, builder, found = PastMoments(), Builder(), published(cluster(1, 0))
    for second in range(8):
        document = builder.build(found, time=NOW + second, problems=[str(second)])
        past.see(document, document.encoded(), NOW + second)
        past.see(document, document.encoded(), NOW + second + 0.1)
    assert len(past.moments()) == 3 and past.moments()[-1].at == NOW + 7


def test_of_long_ago_what_happened_stays_longer_than_what_lay_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.serve.console.history.MOST_SEEN", 40)
    past, builder = PastMoments(), Builder()
    well, ill = published(cluster(2, 1)), published(
        [*(item for item in cluster(2, 1) if not item["metadata"]["name"].endswith("deviceinfo-node-00001")),
         device("node-00001", faulty=3)]
    )  # fmt: skip
    at_fault = 100.0
    for second in range(600):
        document = builder.build(ill if second == at_fault else well, time=NOW + second, problems=[str(second)])
        past.see(document, document.encoded(), NOW + second)
    kept = [moment.at - NOW for moment in past.moments()]
    assert len(kept) == 40 and kept[0] == 0.0 and at_fault in kept
    assert kept[-10:] == [590.0 + n for n in range(10)]
    assert max(b - a for a, b in itertools.pairwise(kept)) < 200.0


def test_branches_and_the_plan_of_one_before_the_merge(tmp_path: Path) -> None:
    async def work() -> None:
        repo = Repo(tmp_path / "state")
        repo.commit({"desired/a.yaml": note("a")})
        repo.branch = "feature/b"
        repo.commit({"desired/b.yaml": note("b"), "desired/bad.yaml": "kind: [\n"}, message="more <script>")
        write(large(2), tmp_path / "cluster.json")
        source = {"kind": "cluster", "path": str(tmp_path / "cluster.json")}
        async with console(PastMoments(), source, str(repo.bare)) as http:
            found = await got(http, "/api/v1/branches")
            assert {row["name"]: row["current"] for row in found["branches"]} == {"main": True, "feature/b": False}
            shown = await got(http, "/api/v1/plan/feature%2Fb")
            assert [row["change"] for row in shown["changes"]] == ["create", "create"]
            assert any(row["where"].startswith("desired/bad.yaml:") for row in shown["findings"])
            assert any(row.startswith("+") and "belongs to b" in row for row in shown["diff"])
            await got(http, "/api/v1/plan/nowhere", 400)
            what_if = await asked(http, {"changes": [{"do": "branch", "name": "feature/b"}], "horizon": 30})
            assert what_if["revision"] == shown["revision"]

    run(work())


def note(name: str) -> str:
    return json.dumps({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
        "data": {"text": f"belongs to {name}"},
    })  # fmt: skip


def test_a_hostile_cluster_is_shown_and_its_texts_stay_texts(tmp_path: Path) -> None:
    write(hostile(), tmp_path / "cluster.json")
    question = {"ask": "document", "source": {"kind": "cluster", "path": str(tmp_path / "cluster.json")}}
    head, body = answered(msgspec.json.encode(question), Moments())
    assert head.status == 200 and len(body) < 2_000_000
    assert json.loads(body)["nodes"]["name"]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"ask": "rm"}', b'{"ask": "document", "source": {"kind": "/etc"}}', b"\xff"]
)
def test_the_answering_process_survives_every_request(data: bytes) -> None:
    head, body = answered(data, Moments())
    assert head.status in (400, 500) and head.error and not body


CHILD = """
import sys, time
if sys.argv[1] == "slow":
    time.sleep(60)
elif sys.argv[1] == "dies":
    sys.exit(3)
"""


@pytest.mark.parametrize(("how", "status"), [("slow", 504), ("dies", 503)])
def test_a_process_that_hangs_or_dies_fails_one_question_only(tmp_path: Path, how: str, status: int) -> None:
    async def work() -> None:
        (tmp_path / "child.py").write_text(CHILD)
        answers = Answers([sys.executable, str(tmp_path / "child.py"), how], children=1)
        for _ in range(2):
            with pytest.raises(Unanswered) as caught:
                await answers.ask({"ask": "document"}, 0.3 if how == "slow" else 30.0)
            assert caught.value.status == status
        await answers.close()

    run(work())


def test_a_real_process_answers_and_is_ended(tmp_path: Path) -> None:
    async def work() -> None:
        write(large(2), tmp_path / "cluster.json")
        answers = Answers([sys.executable, "-m", "belay.engine.cli.console_answers"], children=1)
        source = {"kind": "cluster", "path": str(tmp_path / "cluster.json")}
        found = [await answers.ask({"ask": "document", "source": source}, 60.0) for _ in range(2)]
        assert found[0] == found[1] and json.loads(found[0])["nodes"]["name"] == ["node-00000", "node-00001"]
        (child,) = answers._all
        await answers.close()
        assert child.process.returncode is not None

    run(work())


def test_a_recording_keeps_its_figures_and_loses_them_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_FILES", 2)
    for after in range(4):
        record(tmp_path, cluster(1, 0), NOW + after)
    assert len(list(tmp_path.iterdir())) == 4
    files = sorted(tmp_path.glob(f"*{RECORDING_SUFFIX}"))
    assert all(read_digest(file) is not None for file in files)
