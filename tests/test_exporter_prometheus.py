"""The exporter before a real Prometheus: scraped over TLS with client certificates, its alerts and dashboards checked.

Debian's package `prometheus` brings the server and promtool; without them these tests skip, in CI they fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from belay.agents.daemon.__main__ import _parser
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.agents.exporter import option
from belay.agents.exporter.settings import parse
from belay.agents.exporter.table import BY_NAME
from belay.engine.metrics import METRICS
from tests.needs import lacking
from tests.test_exporter_http import certificates

ROOT = Path(__file__).resolve().parents[1]
MONITORING = ROOT / "deploy" / "monitoring"
NAME = re.compile(r"\b((?:npu|machine|container_npu|vnpu|node_base|belay)_[a-z0-9_]+)\b")
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
ENGINE = {one.name + suffix for one in METRICS for suffix in SUFFIXES[one.type]}
RUNBOOKS = ROOT / "docs" / "runbooks.md"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        lacking(f"{name} is not installed: make test-packages")
    return found


def promtool(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_alerts() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(MONITORING / "alerts.yaml"))


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    for file in (MONITORING / "alerts.yaml", ROOT / "tests" / "samples" / "alerts_test.yaml"):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", "alerts_test.yaml", cwd=tmp_path)


def test_every_alert_names_its_section_of_the_runbooks() -> None:
    sections = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.M)
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert sections == [rule["alert"] for rule in rules]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for file in sorted((MONITORING / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{file.name}: {panel['title']}", target["expr"]


def test_alerts_and_dashboards_speak_of_metrics_that_exist(tmp_path: Path) -> None:
    rules = []
    for number, (where, expression) in enumerate(expressions()):
        for name in NAME.findall(re.sub(r'"[^"]*"', '""', expression)):
            assert name in BY_NAME or name in ENGINE, f"{where}: {name}"
        rules.append({"record": f"checked_{number}", "expr": expression.replace("$__rate_interval", "5m")})
    assert len(rules) > 50
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yaml"))


@pytest.mark.parametrize("file", sorted((MONITORING / "dashboards").glob("*.json")), ids=lambda file: file.stem)
def test_dashboards_are_whole(file: Path) -> None:
    board = json.loads(file.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) and board["uid"] and board["title"]
    used = set(re.findall(r"\$(\w+)", json.dumps([panel["targets"] for panel in board["panels"]])))
    named = {variable["name"] for variable in board["templating"]["list"]}
    assert used - {"__rate_interval", "datasource"} <= named
    places = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] >= 0 and at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        places |= cells


def test_the_scrape_configuration_is_yaml_of_the_right_form() -> None:
    found = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    assert [job["job_name"] for job in found["scrape_configs"]] == ["belay-npu", "belay-server"]
    assert all((MONITORING / rules).is_file() for rules in found["rule_files"])


def free_port(first: int, last: int) -> int:
    for port in range(first + os.getpid() % 1000, last):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@contextlib.contextmanager
def process(arguments: list[str], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as out:
        running = subprocess.Popen(arguments, stdout=out, stderr=out, env={**os.environ, **env}, cwd=ROOT)
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(20)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def until(check: Callable[[], Any], what: str, log: Path, seconds: float = 60) -> Any:
    end, last = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            if found := check():
                return found
        except (OSError, KeyError, IndexError, ValueError) as error:
            last = str(error)
        time.sleep(0.1)
    raise AssertionError(f"{what}: {last}\n{log.read_text()[-3000:]}")


@pytest.mark.e2e
def test_a_real_prometheus_scrapes_the_exporter(tmp_path: Path) -> None:
    server = program("prometheus")
    standin = Standin.create(tmp_path / "state", chips=8)
    library = build(tmp_path / "lib")
    files = certificates(tmp_path / "tls")
    port, web = free_port(20_000, 30_000), free_port(31_000, 39_000)
    flags = [
        "-ip=127.0.0.1", f"-port={port}", f"-driver=dcmi:{library}", f"-configDir={tmp_path}", "-limitIPReq=100/1",
        "-updateTime=1",
        f"-metricsTLSCert={files['srv.crt']}", f"-metricsTLSKey={files['srv.key']}",
        f"-metricsClientCA={files['ca.crt']}", "-containerMode=containerd", f"-containerd={tmp_path}/none.sock",
        f"-endpoint={tmp_path}/none.sock",
    ]  # fmt: skip
    job = {
        "job_name": "npu", "scrape_interval": "500ms", "scrape_timeout": "400ms", "scheme": "https",
        "tls_config": {"ca_file": files["ca.crt"], "cert_file": files["cli.crt"], "key_file": files["cli.key"]},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }  # fmt: skip
    shutil.copy(MONITORING / "alerts.yaml", tmp_path)
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump({
        "global": {"evaluation_interval": "500ms"}, "rule_files": ["alerts.yaml"], "scrape_configs": [job],
    }))  # fmt: skip
    promtool("check", "config", str(config))

    def query(text: str) -> list[dict[str, Any]]:
        address = f"http://127.0.0.1:{web}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(address, timeout=5) as answer:
            return list(json.load(answer)["data"]["result"])

    def value(text: str) -> float:
        return float(query(text)[0]["value"][1])

    exporter_log, server_log = tmp_path / "exporter.log", tmp_path / "prometheus.log"
    exporter = [sys.executable, "-m", "belay.engine.cli", "exporter", *flags]
    prometheus = [
        server, f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{web}", "--log.level=warn",
    ]  # fmt: skip
    with (
        process(exporter, exporter_log, BELAY_SIM_DCMI_STATE=str(standin.file)),
        process(prometheus, server_log),
    ):
        until(lambda: query("up == 1"), "the exporter is scraped", exporter_log)
        until(lambda: value("count(npu_chip_info_temperature)") == 8, "eight chips are seen", server_log)
        assert value('npu_chip_info_temperature{id="3"}') == 43
        assert value("machine_npu_nums") == 8 and value("machine_healthy_npu_nums") == 8
        assert value('npu_chip_info_hbm_total_memory{id="0"}') == 65_536
        labels = query('npu_chip_info_power{id="5"}')[0]["metric"]
        assert labels["model_name"] == "910B3-Ascend-V1" and labels["pcie_bus_info"] == "0000:15:00.0"
        standin.raise_code(3, "80E01801", severity=3)
        standin.chip(3).health = 3
        until(lambda: value('npu_chip_info_health_status{id="3"}') == 0, "the fault is seen", server_log)
        until(lambda: value('npu_chip_info_error_code{id="3"}') == 0x80E01801, "its code is seen", server_log)
        until(
            lambda: query('ALERTS{alertname="NPUUnhealthy",alertstate="pending",id="3"}'), "its alert waits", server_log
        )
        standin.clear_code(3, "80E01801")
        standin.chip(3).health = 0
        until(lambda: not query("npu_chip_info_health_status == 0"), "the fault is gone", server_log)
        assert value("scrape_samples_scraped") > 500
    for line in exporter_log.read_text().splitlines():
        assert json.loads(line)["level"] != "error", line


def test_the_exporters_manifest_says_what_the_exporter_understands() -> None:
    documents = list(yaml.safe_load_all((MONITORING / "exporter.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Namespace", "DaemonSet", "NetworkPolicy"]
    pod = documents[1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    verb, *flags = container["args"]
    settings = parse(flags)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert verb == "exporter" and settings.enable_healthz
    assert ports == {"metrics": settings.port, "health": settings.healthz_address}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert settings.config_dir in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_agents_component_switches_the_exporter_on() -> None:
    component = yaml.safe_load((ROOT / "deploy/components/metrics/kustomization.yaml").read_text())
    patch = yaml.safe_load(component["patches"][0]["patch"])
    (flags,) = [step["value"] for step in patch if step["path"].endswith("/args/-")]
    chosen = option.chosen(_parser().parse_args(["--driver=dcmi", flags]))
    (port,) = [step["value"] for step in patch if step["path"].endswith("/ports/-")]
    assert chosen is not None and port == {"name": "metrics", "containerPort": chosen.port}
