"""The table of metrics against MindCluster's documentation, groups and their files, flags."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest

from belay.agents.exporter import groups, table
from belay.agents.exporter.settings import FLAGS, FlagError, duration, parse
from tests.exporter_world import machine

DOCUMENTED = [
    tuple(cell.strip() for cell in line.split("|"))
    for line in (Path(__file__).parent / "samples" / "exporter_metrics.txt").read_text().splitlines()
    if not line.startswith("#")
]


def test_every_documented_metric_is_there_with_its_group_labels_unit_and_products() -> None:
    rows = [
        (m.name, m.group.replace("|", "/"), m.labels.replace("|", "/"), m.unit, ",".join(sorted(m.products)),
         m.telegraf or "-")
        for m in table.METRICS
    ]  # fmt: skip
    assert len(rows) == 199 == len(table.BY_NAME)
    assert sorted(rows) == sorted(DOCUMENTED)
    assert all(set(m.products) <= set(table.PRODUCTS) for m in table.METRICS)


def test_only_counts_of_the_node_and_the_version_carry_no_time() -> None:
    assert {m.name for m in table.METRICS if not m.timestamped} == {
        "npu_exporter_version_info", "machine_npu_nums", "machine_card_nums", "machine_healthy_npu_nums",
        "machine_unhealthy_npu_nums", "machine_unknown_npu_nums",
    }  # fmt: skip


SUPPORT = {
    # family, board, main board: groups besides version, utilization, npu, nodeBase and text
    ("Ascend910", 0, 0): {"ddr", "hbm", "roce", "optical", "network"},
    ("Ascend910B", 0x30, 0): {"hbm", "hccs", "pcie", "roce", "optical", "network"},
    ("Ascend910B", 0x28, 0): {"hbm", "hccs", "pcie"},
    ("Ascend910A3", 0xB0, 0x18): {"sio", "hbm", "hccs", "roce", "optical", "network"},
    ("Ascend310P", 0, 0): {"ddr", "vnpu"},
    ("Ascend310", 0, 0): {"ddr"},
    ("Ascend910A5", 0, 0x23): {"sio", "hbm", "optical", "network", "ub"},
    ("Ascend910A5", 0, 0x68): {"sio", "hbm", "pcie", "ub"},
    ("Ascend910A5", 0, 0x6B): {"sio", "hbm", "pcie", "network", "ub"},
    ("Ascend910A5", 0, 0x07): {"sio", "hbm", "network", "ub"},
    ("Ascend910A5", 0, 0x44): {"sio", "hbm", "pcie", "optical", "network", "ub"},
}


@pytest.mark.parametrize(("kind", "extra"), SUPPORT.items())
def test_groups_follow_the_product(kind: tuple[str, int, int], extra: set[str]) -> None:
    family, board, mainboard = kind
    here = machine(family, board=board, mainboard=mainboard)
    always = {"version", "utilization", "npu", "nodeBase", "text"}
    assert {g.name for g in groups.DEFAULTS if groups.supported(g.name, here)} == always | extra


def test_intervals_without_files(tmp_path: Path) -> None:
    found = {group.name: group.seconds for group in groups.configured(tmp_path)}
    assert found == {
        "version": -1, "utilization": 1, "npu": 5, "ddr": 10, "sio": 60, "hbm": 60, "hccs": 60, "pcie": 60, "vnpu": 60,
        "nodeBase": 86_400, "roce": 60, "optical": 60, "network": 60, "ub": 60, "text": 60,
    }  # fmt: skip
    assert {g.seconds for g in groups.configured(tmp_path, update_time=7)} == {7}


def test_files_switch_groups(tmp_path: Path) -> None:
    entries = [
        {"metricsGroup": "npu", "state": "on", "intervalSeconds": 30},
        {"metricsGroup": "hbm", "state": "ON"},
        {"metricsGroup": "ddr", "state": "OFF", "intervalSeconds": 10},
        {"metricsGroup": "version", "state": "ON", "intervalSeconds": -1},
        {"metricsGroup": "sio", "state": "ON", "intervalSeconds": 0},
        {"metricsGroup": "roce", "state": "ON", "intervalSeconds": -2},
        {"metricsGroup": "pcie", "state": "ON", "intervalSeconds": 86_401},
        {"metricsGroup": "hccs", "state": "ON", "intervalSeconds": "5"},
        {"metricsGroup": "gpu", "state": "ON"},
        {"state": "ON"},
        "npu",
    ]
    (tmp_path / groups.METRICS_FILE).write_text(json.dumps(entries))
    (tmp_path / groups.PLUGINS_FILE).write_text(json.dumps([{"metricsGroup": "text", "state": "OFF"}]))
    assert {g.name: g.seconds for g in groups.configured(tmp_path)} == {"npu": 30, "hbm": 60, "version": -1}
    (tmp_path / groups.PLUGINS_FILE).write_text("{")
    assert {g.name for g in groups.configured(tmp_path)} == {"npu", "hbm", "version", "text"}


def test_a_sample_lives_twice_its_interval_and_at_least_a_minute() -> None:
    assert [groups.Group("npu", n).lifetime for n in (1, 30, 60, 86_400, -1)] == [60, 60, 120, 172_800, float("inf")]


def test_defaults_of_the_flags() -> None:
    found = parse(["-ip=10.0.0.1"])
    assert (found.port, found.container_mode, found.concurrency, found.cache_size) == (8082, "docker", 5, 102_400)
    limits = found.limits()
    assert (limits.spacing, limits.per_address, limits.total) == (0.05, 5, 20)
    assert (found.profiling_time, found.hccs_bw_profiling_time, found.device_reset_timeout) == (200, 200, 600)
    assert (found.update_time, found.platform, found.healthz_address) == (0, "Prometheus", 11_251)


def test_flags_are_read_as_go_reads_them() -> None:
    found = parse([
        "-ip", "::1", "--port=9000", "-containerMode=containerd", "-containerd=/x/y.sock", "-endpoint",
        "unix:///a.sock", "-limitIPReq=3/2", "-enableLegacyMetrics", "-updateTime=61", "--enable-healthz=true",
        "-trustedScrapers=10.0.0.0/8, 127.0.0.1",
    ])  # fmt: skip
    assert (found.ip, found.port, found.containerd, found.endpoint) == (
        "::1",
        9000,
        "unix:///x/y.sock",
        "unix:///a.sock",
    )
    assert (found.limits().spacing, found.enable_legacy_metrics, found.enable_healthz) == (2 / 3, True, True)
    assert found.update_time == 0
    assert ipaddress.ip_network("127.0.0.1/32") in found.trusted_scrapers
    assert parse(["-ip=1.1.1.1", "-containerMode=podman"]).container_mode == "docker"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "-ip: is needed"),
        (["-ip=localhost"], "no IPv4 or IPv6"),
        (["-ip=1.1.1.1", "-port=80"], "use 1025 to 40000"),
        (["-ip=1.1.1.1", "-port=x"], "not an integer"),
        (["-ip=1.1.1.1", "-concurrency=513"], "use 1 to 512"),
        (["-ip=1.1.1.1", "-limitIPConn=129"], "use 1 to 128"),
        (["-ip=1.1.1.1", "-limitTotalConn=0"], "use 1 to 512"),
        (["-ip=1.1.1.1", "-cacheSize=1024001"], "use 1 to 1024000"),
        (["-ip=1.1.1.1", "-limitIPReq=0/1"], "such as 20/1"),
        (["-ip=1.1.1.1", "-limitIPReq=1000/1"], "such as 20/1"),
        (["-ip=1.1.1.1", "-containerd=/run/x"], "must contain .sock"),
        (["-ip=1.1.1.1", "-platform=Zabbix"], "use Prometheus or Telegraf"),
        (["-ip=1.1.1.1", "-poll_interval=1s"], "is for Telegraf only"),
        (["-ip=1.1.1.1", "-profilingTime=2001"], "use 1 to 2000"),
        (["-ip=1.1.1.1", "-hccsBWProfilingTime=0"], "use 1 to 1000"),
        (["-ip=1.1.1.1", "-deviceResetTimeout=9"], "use 10 to 600"),
        (["-ip=1.1.1.1", "-logLevel=4"], "use -1 to 3"),
        (["-ip=1.1.1.1", "-maxAge=6"], "use 7 to 700"),
        (["-ip=1.1.1.1", "-maxBackups=181"], "use 1 to 180"),
        (["-ip=1.1.1.1", "-enableLegacyMetrics=maybe"], "neither true nor false"),
        (["-ip=1.1.1.1", "-tls-cert-file=x"], "give both or none"),
        (["-ip=1.1.1.1", "-metricsClientCA=x"], "needs -metricsTLSCert"),
        (["-ip=1.1.1.1", "-trustedScrapers=x"], "no network"),
        (["-ip=1.1.1.1", "-color=red"], "is not a flag"),
        (["-ip"], "needs a value"),
        (["-platform=Telegraf", "-ip=1.1.1.1"], "-ip: is not known with Telegraf"),
        (["-platform=Telegraf", "-poll_interval=soon"], "not a duration"),
    ],
)
def test_a_wrong_flag_is_named_with_what_is_allowed(arguments: list[str], text: str) -> None:
    with pytest.raises(FlagError) as error:
        parse(arguments)
    assert text in str(error.value)


def test_telegraf_takes_names_and_values() -> None:
    found = parse(["platform=Telegraf", "poll_interval=1m30s", "updateTime=5"])
    assert (found.platform, found.poll_interval, found.update_time) == ("Telegraf", 90.0, 5)
    assert duration("poll_interval", "500ms") == 0.5


def test_every_flag_of_the_original_is_known() -> None:
    assert set(FLAGS) >= {
        "ip", "port", "updateTime", "containerMode", "containerd", "endpoint", "concurrency", "limitIPReq",
        "limitIPConn", "limitTotalConn", "cacheSize", "platform", "poll_interval", "profilingTime",
        "hccsBWProfilingTime", "deviceResetTimeout", "textMetricsFilePath", "enableLegacyMetrics", "logFile",
        "logLevel", "maxAge", "maxBackups", "version", "enable-healthz", "healthz-address", "tls-cert-file",
        "tls-private-key-file",
    }  # fmt: skip
