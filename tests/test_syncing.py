"""`belay sync`: the controllers are asked over the server, and the command ends when the revision is in force."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.cli.syncing import WantedRevision, sync_standing
from belay.engine.cli.waiting import WaitStanding
from belay.engine.kube import CONFIGMAP
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.serve.engine_client import EngineClient
from belay.engine.serve.http import HttpServer
from belay.engine.status.status_reader import read_status
from belay.engine.store import PassStore, connect
from belay.engine.wire import names, sourceinfo
from tests.gitrepo import Repo
from tests.loop_world import Cluster
from tests.redis_server import redis_process, redis_url  # noqa: F401

pytestmark = pytest.mark.real_time
IN_FORCE = [{"type": "Applied", "status": "True", "message": "Everything"}]


def sync_map(commit: str, conditions: list[dict[str, str]], **more: str) -> dict[str, object]:
    data = {"appliedRevision": commit, "attemptedRevision": commit, "conditions.json": json.dumps(conditions), **more}
    metadata = {"name": names.SYNC, "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: "sync"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@contextmanager
def server(redis_url: str) -> Iterator[tuple[str, PassStore]]:  # noqa: F811
    """`belay server` without a cluster in a thread, and the store of the engine's Redis."""
    client = connect(redis_url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    served = TestServer(HttpServer(EngineClient(client, None), shard="main").application())

    async def start() -> str:
        await served.start_server()
        return str(served.make_url("/")).rstrip("/")

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(30), PassStore(client)
    finally:
        asyncio.run_coroutine_threadsafe(served.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        client.close()


def sync(cluster: Cluster, *words: str) -> Result:
    return CliRunner().invoke(main, ["sync", *words, "--kubeconfig", str(cluster.kubeconfig)])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    try:
        yield made
    finally:
        made.close()


def test_a_push_is_fetched_at_once_and_waited_for(
    redis_url: str,  # noqa: F811
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = Repo(tmp_path / "git")
    first = repository.commit({"desired/a.yaml": "a: 1\n"})
    cluster.ensure(CONFIGMAP, sync_map(first, IN_FORCE))
    following = sourceinfo.FollowedRepository(url=f"file://{repository.bare}", branch="main")
    cluster.ensure(CONFIGMAP, sourceinfo.build(following, "main"))
    second = repository.commit({"desired/a.yaml": "a: 2\n"})
    monkeypatch.chdir(tmp_path)

    with server(redis_url) as (url, passes):
        only_asked = sync(cluster, "--no-wait", "--server", url)
        assert only_asked.exit_code == 0 and passes.take_requests("main").fetch
        late = sync(cluster, "--timeout", "0.2s", "--server", url)
        assert late.exit_code == 1 and f"{second[:12]} is not in force" in late.output, "the branch's newest commit"
        passes.take_requests("main")

        def controller() -> None:
            while not passes.take_requests("main").fetch:
                threading.Event().wait(0.02)
            cluster.ensure(CONFIGMAP, sync_map(second, IN_FORCE))

        fetching = threading.Thread(target=controller)
        fetching.start()
        done = sync(cluster, second[:10], "--timeout", "30s", "--server", url)
        fetching.join(30)
        assert (done.exit_code, done.output) == (0, f"{second[:10]} is in force: Everything\n")

    clone = tmp_path / "clone"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(clone)]
    subprocess.run(["git", "clone", "-q", str(repository.bare), str(clone)], check=True)
    monkeypatch.chdir(clone)
    unasked = sync(cluster, "--server", url)
    assert unasked.exit_code == 0 and "The next poll fetches" in unasked.output, "the server is gone, the poll is not"
    assert sync(cluster, "--no-wait", "--server", url).exit_code == 2
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "mine"], check=True)
    unpushed = sync(cluster, "--server", url)
    assert unpushed.exit_code == 2 and "is on no remote branch. Push it (git push)" in unpushed.output


def test_only_the_command_asks(redis_url: str) -> None:  # noqa: F811
    async def work() -> tuple[int, int]:
        client = connect(redis_url)
        application = HttpServer(EngineClient(client, None), shard="main").application()
        async with TestClient(TestServer(application)) as http:
            foreign = await http.post("/api/v1/fetch")
            asked = PassStore(client).take_requests("main").fetch
        client.close()
        return foreign.status, int(asked)

    assert asyncio.run(work()) == (403, 0), "a page of another site cannot send the header"


REFUSED = [{"type": "Accepted", "status": "False", "reason": "EmptyTree", "message": "desired/ is empty"}]
BAD_DOCUMENT = [{"type": "Applied", "status": "False", "reason": "ExceptRefused", "message": "a.yaml:1:2 is wrong"}]
HELD = [{"type": "Applied", "status": "False", "reason": "HeldBack", "message": "2 held back"}]
BY_SERVER = [{"type": "Applied", "status": "False", "reason": "RefusedByServer", "message": "1 refused"}]
APPLYING = [{"type": "Applied", "status": "False", "reason": "Applying", "message": "1 on the way"}]


def test_a_policy_that_is_held_back_and_a_layout_that_waits_are_said() -> None:
    commit = "a" * 40
    wanted = WantedRevision(commit, lambda later: False)

    def standing(conditions: list[dict[str, str]], code: str) -> WaitStanding:
        status = read_status([sync_map(commit, conditions, **{"diagnostics.json": json.dumps([{"code": code}])})])
        return sync_standing(status, wanted, settled=True)

    held = standing(HELD, "PolicyHeldBack")
    assert held.hopeless and "Narrow the policy" in held.text
    waits = standing(IN_FORCE, "LayoutWaits")
    assert waits.reached and waits.text.endswith("1 chip is cut once free (belay status)")


@pytest.mark.parametrize(
    ("conditions", "prune", "ends"),
    [
        (REFUSED, {}, "Mend what is refused and push again"),
        (BAD_DOCUMENT, {}, "belay validate"),
        (BY_SERVER, {}, "belay status"),
        (HELD, {"digest": "3f9a41" * 8}, "belay confirm 3f9a413f9a41"),
        (HELD, {}, ""),
        (APPLYING, {}, ""),
    ],
)
def test_what_only_a_person_mends_is_not_waited_for(
    conditions: list[dict[str, str]], prune: dict[str, str], ends: str
) -> None:
    commit = "a" * 40
    more = {"heldPrune.json": json.dumps(prune)} if prune else {}
    status = read_status([sync_map(commit, conditions, **more)])
    wanted = WantedRevision(commit, lambda later: False)
    early, final = (sync_standing(status, wanted, settled=settled) for settled in (False, True))
    assert not early.reached and not early.hopeless, "what is published may be of the fetch before"
    assert final.hopeless == bool(ends) and ends in final.text and not final.reached
    other = sync_standing(status, WantedRevision("b" * 40, lambda later: False), settled=True)
    assert not other.hopeless, "that commit was not read yet"
