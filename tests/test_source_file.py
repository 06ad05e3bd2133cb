"""A Source document given to the controller: read with places, followed while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP
from belay.engine.load.source_file import read_source
from belay.engine.settings import from_environment, with_source_file
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, until
from tests.redis_server import redis_process, redis_url  # noqa: F401

pytestmark = pytest.mark.real_time

DOCUMENT = """\
apiVersion: belay.dev/v1alpha1
kind: Source
metadata: {{name: main}}
spec: {{url: {url}, branch: main, interval: 1s, suspend: {suspend}}}
"""
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}\ndata: {}\n"


def test_a_source_becomes_settings(tmp_path: Path) -> None:
    file = tmp_path / "source.yaml"
    file.write_text(DOCUMENT.format(url="https://git.example.com/a.git", suspend="true"))
    settings = from_environment({"BELAY_SOURCE_FILE": str(file)})
    assert (settings.source_url, settings.source_interval, settings.source_suspend) == (
        "https://git.example.com/a.git", 1.0, True,
    )  # fmt: skip
    file.write_text(DOCUMENT.format(url="https://git.example.com/b.git", suspend="false"))
    again = with_source_file(settings)
    assert (again.source_url, again.source_suspend) == ("https://git.example.com/b.git", False)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("apiVersion: belay.dev/v1alpha1\nkind: Source\nmetadata: {name: a}\nspec: {interval: soon}\n", ":4:"),
        ("a: [\n", ":2:1"),
        ("a: 1\n---\nb: 2\n", "holds 2 documents"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", ":2:7"),
    ],
)
def test_a_broken_source_is_refused_at_its_place(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "source.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=place):
        read_source(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_source(tmp_path / "none.yaml")


def test_suspending_and_resuming_takes_effect_while_it_runs(tmp_path: Path, redis_url: str) -> None:  # noqa: F811
    repository = Repo(tmp_path / "git")
    repository.commit({"desired/one.yaml": CONFIG % "one"})
    file = tmp_path / "source.yaml"
    file.write_text(DOCUMENT.format(url=repository.bare, suspend="false"))
    cluster = Cluster(tmp_path)
    found = with_source_file(from_environment({"BELAY_SOURCE_FILE": str(file)}))
    loop = Loop(
        cluster, redis_url, tmp_path / "data", source_file=str(file), source_url=found.source_url, source_interval=1.0
    )

    def has_condition(condition: str) -> bool:
        live = cluster.get(CONFIGMAP, "belay-sync", "belay-system")
        return live is not None and condition in live["data"]["conditions.json"]

    try:
        until(lambda: cluster.get(CONFIGMAP, "one", "default"), what="the first revision")
        file.write_text("spec: [")  # broken: nothing changes
        file.write_text(DOCUMENT.format(url=repository.bare, suspend="true"))
        until(lambda: has_condition("Suspended"), what="being suspended")
        repository.commit({"desired/two.yaml": CONFIG % "two"})
        loop.controller.fetch_soon()
        until(lambda: has_condition("Suspended"))
        assert cluster.get(CONFIGMAP, "two", "default") is None
        file.write_text(DOCUMENT.format(url=repository.bare, suspend="false"))
        until(lambda: cluster.get(CONFIGMAP, "two", "default"), what="the revision pushed meanwhile")
    finally:
        loop.close()
        cluster.close()
