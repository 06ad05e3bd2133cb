"""Redis with a password and TLS as deploy/ starts it: processes of ours get in, others do not, no secret is shown."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from belay.engine.errors import InputError
from belay.engine.settings import Settings, from_environment, to_environment
from belay.engine.store import PassStore, StoreUnavailable, connect
from tests.loop_world import Cluster, cluster, until
from tests.needs import lacking
from tests.test_deploy import BASE, ROOT
from tests.test_tasks import PATIENCE, Processes, each_chip_once

__all__ = ["cluster"]

PASSWORD = "planted/pass@word:%41"
PAGE = ROOT / "docs" / "connecting.md"


class Redis:
    """A Redis of the manifests; ``port`` on this machine."""

    def __init__(self, folder: Path, script: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.log = folder / "redis.log"
        script = script.replace("/etc/belay/", f"{folder}/").replace("port 6379", f"port {self.port}")
        if f"port {self.port}" not in script:
            script = script.replace('save ""', f'port {self.port}\nsave ""')
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(["sh", "-ec", script], stdout=output, stderr=output, cwd=folder)

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def scripts() -> tuple[str, str]:
    """The commands of the container without and with TLS."""
    base = next(d for d in yaml.safe_load_all((BASE / "redis.yaml").read_text()) if d["kind"] == "Deployment")
    (container,) = base["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-ec"]
    component = yaml.safe_load((ROOT / "deploy/components/redis-tls/kustomization.yaml").read_text())
    patch = next(p["patch"] for p in component["patches"] if p["target"]["name"] == "belay-redis")
    value = next(op["value"] for op in yaml.safe_load(patch) if op["path"].endswith("/args/0"))
    return container["args"][0], value


def secrets(folder: Path) -> Path:
    """What the Secrets hold, the certificate made by the commands of docs/connecting.md."""
    for tool in ("openssl", "redis-server"):
        if shutil.which(tool) is None:
            lacking(f"{tool} is not on PATH: make test-packages")
    (folder / "redis").mkdir()
    (folder / "redis" / "password").write_text(f"{PASSWORD}\n")
    tls = folder / "redis-tls"
    tls.mkdir()
    section = PAGE.read_text().partition("\n## Redis\n")[2].partition("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    openssl ")]
    commands = [line for line in commands if "rand" not in line]
    assert len(commands) == 3
    text = "\n".join(commands).replace("DNS:belay-redis", "DNS:belay-redis,IP:127.0.0.1")
    subprocess.run(["sh", "-ec", text], cwd=tls, check=True, capture_output=True)
    return folder


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Redis]:
    made = Redis(secrets(tmp_path), scripts()[1])
    try:
        until(made.answers, PATIENCE, "Redis")
        yield made
    finally:
        made.close()


def variables(folder: Path, url: str, *, ca: str = "redis-tls/ca.crt") -> dict[str, str]:
    given = {"BELAY_REDIS_URL": url, "BELAY_REDIS_PASSWORD_FILE": str(folder / "redis" / "password")}
    return given | ({"BELAY_REDIS_CA_FILE": str(folder / ca)} if ca else {})


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_controller_and_worker_work_over_tls(cluster: Cluster, encrypted: Redis, tmp_path: Path) -> None:
    given = variables(tmp_path, f"rediss://127.0.0.1:{encrypted.port}/0")
    processes = Processes(cluster, given["BELAY_REDIS_URL"], tmp_path)
    processes.settings = msgspec.structs.replace(
        Settings(redis_url=given["BELAY_REDIS_URL"], kubeconfig=cluster.kubeconfig, data=str(tmp_path / "data")),
        redis_password_file=given["BELAY_REDIS_PASSWORD_FILE"],
        redis_ca_file=given["BELAY_REDIS_CA_FILE"],
    )
    try:
        processes.start("controller")
        processes.start("worker")
        cluster.add_node("node-1")
        cluster.add_pod("train", 8)
        until(lambda: cluster.bound() == {"train"}, PATIENCE, "the binding")
        each_chip_once(cluster, 8)
    finally:
        processes.close()
    said = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert "planted" not in said and "pass@word" not in said and "pass%40word" not in said


@pytest.mark.e2e
def test_password_authority_and_tls_are_needed(encrypted: Redis, tmp_path: Path) -> None:
    place = f"127.0.0.1:{encrypted.port}/0"
    good = from_environment(variables(tmp_path, f"rediss://{place}"))
    assert PassStore(connect(good.redis_url)).now() > 0
    (tmp_path / "redis" / "password").write_text("another\n")
    other = from_environment(variables(tmp_path, f"rediss://{place}"))
    for url in (
        f"rediss://{place}?ssl_ca_certs={tmp_path}/redis-tls/ca.crt",
        other.redis_url,
        good.redis_url.replace("ssl_ca_certs", "ssl_ca_unused").partition("?")[0],
        good.redis_url.replace("rediss://", "redis://").partition("?")[0],
    ):
        with pytest.raises(StoreUnavailable) as caught:
            PassStore(connect(url)).now()
        assert "planted" not in str(caught.value) and "another" not in str(caught.value)
    pid = encrypted.process.pid
    shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    assert b"planted" not in shown and "planted" not in encrypted.log.read_text()


@pytest.mark.e2e
def test_without_tls_the_password_alone_is_asked_for(tmp_path: Path) -> None:
    running = Redis(secrets(tmp_path), scripts()[0])
    try:
        until(running.answers, PATIENCE, "Redis")
        url = f"redis://127.0.0.1:{running.port}/0"
        assert PassStore(connect(from_environment(variables(tmp_path, url, ca="")).redis_url)).now() > 0
        with pytest.raises(StoreUnavailable, match="uthentication"):
            PassStore(connect(url)).now()
    finally:
        running.close()


@pytest.mark.parametrize(
    ("url", "made"),
    [
        ("redis://h:1/0", "redis://:p%40w@h:1/0"),
        ("redis://user:old@h:1/0", "redis://user:p%40w@h:1/0"),
        ("redis://:p%40w@h:1/0", "redis://:p%40w@h:1/0"),
        ("rediss://h:1/0?ssl_check_hostname=true", "rediss://:p%40w@h:1/0?ssl_check_hostname=true"),
        ("unix:///run/redis.sock", "unix://:p%40w@/run/redis.sock"),
    ],
)
def test_the_password_comes_from_its_file(url: str, made: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p@w\r\n")
    settings = from_environment({"BELAY_REDIS_URL": url, "BELAY_REDIS_PASSWORD_FILE": str(file)})
    assert settings.redis_url == made
    assert from_environment(to_environment(settings)).redis_url == made, "the same in a child process"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"two\nlines\n", b"x" * 600, b"\xff\xfe"])
def test_a_file_without_a_password_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=f"BELAY_REDIS_PASSWORD_FILE {re.escape(str(file))}: "):
        from_environment({"BELAY_REDIS_PASSWORD_FILE": str(file)})


def test_an_authority_needs_tls_and_a_file(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    for url, said in (("redis://h:1/0", "needs TLS: write rediss://"), ("rediss://h:1/0", "cannot be read")):
        with pytest.raises(InputError, match=said):
            from_environment({"BELAY_REDIS_URL": url, "BELAY_REDIS_CA_FILE": str(ca)})
    ca.touch()
    url = from_environment({"BELAY_REDIS_URL": "rediss://h:1/0", "BELAY_REDIS_CA_FILE": str(ca)}).redis_url
    assert "ssl_cert_reqs=required" in url and "ssl_check_hostname=true" in url and os.path.basename(ca) in url


def test_only_engine_processes_see_the_keys() -> None:
    def mounted(pod: dict[str, Any]) -> set[str]:
        return {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}

    found: dict[str, set[str]] = {}
    for file in sorted(BASE.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document.get("kind") in ("Deployment", "StatefulSet"):
                found[document["metadata"]["name"]] = mounted(document["spec"]["template"]["spec"])
    assert {name for name, names in found.items() if "belay-batch-keys" in names} == {
        "belay-controller",
        "belay-worker",
    }
    assert found.pop("belay-admission") == set(), "what guards the accounts sees no secret"
    assert all("belay-redis" in names for names in found.values())
