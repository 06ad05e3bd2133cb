"""What the page and Telegraf's lines say: labels, containers, vNPUs, values, times, how often it is rendered."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from belay.agents.exporter import telegraf
from belay.agents.exporter.chips import Machine, Vnpu
from belay.agents.exporter.entries import SHARED, Container
from belay.agents.exporter.groups import Group
from belay.agents.exporter.page import Page
from belay.agents.exporter.samples import FAILED, NODE, Cache, Value
from tests.exporter_world import TIME_MS, Now, chip, container, machine

CARD = 'container_name="{}",id="0",model_name="910B3-Ascend-V1",namespace="{}",pcie_bus_info="0000:00:00.0",pod_name="{}",vdie_id="D0"'  # noqa: E501


class World:
    """A cache, a page and the clock they share."""

    def __init__(self, here: Machine | None = None, *, legacy: bool = False) -> None:
        self.now, self.cache = Now(), Cache()
        self.page = Page(self.cache, self.now, legacy=legacy)
        self.machine = here or machine()
        self.show()

    def show(self, containers: Mapping[int, Sequence[Container]] | None = None) -> None:
        self.page.show(self.machine, containers or {})

    def put(self, group: str, values: Sequence[Value], phy: int = 0, seconds: int = 60) -> None:
        self.cache.put(Group(group, seconds), phy, list(values), TIME_MS, self.now())

    def lines(self, name: str) -> list[str]:
        return [line for line in self.page.plain().decode().splitlines() if line.startswith((name + "{", name + " "))]


def test_a_line_is_as_the_go_client_writes_it() -> None:
    world = World()
    world.put("npu", [Value("npu_chip_info_temperature", 45), Value("npu_chip_info_power", 90.5)])
    text = world.page.plain().decode()
    assert "# TYPE npu_chip_info_power gauge\n" in text
    assert world.lines("npu_chip_info_power") == [f"npu_chip_info_power{{{CARD.format('', '', '')}}} 90.5 {TIME_MS}"]
    assert world.lines("npu_chip_info_temperature")[0].endswith(f"}} 45 {TIME_MS}")
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert names == sorted(names)


def test_labels_are_escaped_and_every_line_can_be_parsed() -> None:
    world = World(machine(chips=[chip(serial='a"b\\c\nd')]))
    world.put("npu", [Value("npu_chip_info_serial_number", 1, ('a"b\\c\nd',))])
    (family,) = [f for f in text_string_to_metric_families(world.page.plain().decode()) if "serial" in f.name]
    assert family.samples[0].labels["serial_number"] == 'a"b\\c\nd'


def test_one_container_is_named_several_are_not() -> None:
    world = World()
    world.put("npu", [Value("npu_chip_info_temperature", 45)])
    one = container("ns_pod-1_main", 0, id_="abc")
    world.show({0: [one]})
    labels = CARD.format("main", "ns", "pod-1")
    assert world.lines("npu_chip_info_temperature")[0].startswith(f"npu_chip_info_temperature{{{labels}}}")
    assert world.lines("npu_container_info") == [
        'npu_container_info{containerID="abc",containerName="ns_pod-1_main",container_name="main",'
        'model_name="910B3-Ascend-V1",namespace="ns",npuID="0",pcie_bus_info="0000:00:00.0",pod_name="pod-1",'
        f'vdie_id="D0"}} 1 {TIME_MS}'
    ]
    world.show({0: [one, container("ns_pod-2_main", 0, id_="def")]})
    assert CARD.format(SHARED, SHARED, SHARED) in world.lines("npu_chip_info_temperature")[0]
    assert world.lines("npu_container_info") == []
    world.show({0: [container("odd", 0)]})
    assert CARD.format("", "", "") in world.lines("npu_chip_info_temperature")[0]
    assert world.lines("npu_container_info") == []


def test_container_metrics_are_for_chips_that_one_container_holds() -> None:
    world = World()
    world.put("hbm", [Value("container_npu_total_memory", 65_536), Value("container_npu_used_memory", 10)])
    world.put("utilization", [Value("container_npu_utilization", 7)])
    names = ("container_npu_total_memory", "container_npu_used_memory", "container_npu_utilization")
    assert [world.lines(name) for name in names] == [[], [], []]
    world.show({0: [container("ns_pod_main", 0)]})
    assert [len(world.lines(name)) for name in names] == [1, 1, 1]
    world.show({0: [container("ns_pod_main", 0), container("ns_pod_other", 0, id_="c2")]})
    assert [world.lines(name) for name in names] == [[], [], []]


def test_a_process_gets_the_pod_of_its_container_only() -> None:
    world = World()
    world.put("npu", [
        Value("npu_chip_info_process_info", 1024, ("41",)), Value("npu_chip_info_process_info", 1, ("42",)),
    ])  # fmt: skip
    world.show({0: [container("ns_pod_main", 0, id_="abc", pids=[42])]})
    host, inside = world.lines("npu_chip_info_process_info")
    world.put("npu", [Value("npu_chip_info_process_info", 0, ("",)), Value("npu_chip_info_process_info_num", 0)])
    assert world.lines("npu_chip_info_process_info") == [], "none for a chip without processes"
    assert 'container_id=""' in host and 'container_name=""' in host and 'process_id="41"' in host
    assert 'namespace=""' in host and 'pod_name=""' in host
    assert 'container_id="abc"' in inside and 'container_name="ns_pod_main"' in inside
    assert 'namespace="ns"' in inside and 'pod_name="pod"' in inside and 'process_id="42"' in inside


def vnpu_world() -> World:
    cut = (Vnpu(100, 4.0, 12, 2048, 1024), Vnpu(101, 2.0, 0, 1024, 0))
    return World(machine("Ascend310P", chips=[chip(vnpus=cut), chip(1)]))


def test_a_cut_chip_is_shown_once_for_each_of_its_vnpus() -> None:
    world = vnpu_world()
    world.put("npu", [Value("npu_chip_info_temperature", 45), Value("npu_chip_info_health_status", 1)])
    world.put("npu", [Value("npu_chip_info_temperature", 46), Value("npu_chip_info_health_status", 0)], phy=1)
    world.show({100: [container("ns_pod_main", 100)], 0: [container("ns_other_main", 0)]})
    lines = world.lines("npu_chip_info_temperature")
    assert [('pod_name="pod"' in line, 'pod_name=""' in line) for line in lines] == [
        (True, False), (False, True), (False, True),
    ]  # fmt: skip
    assert world.lines("machine_npu_nums") == ["machine_npu_nums 3"]
    assert world.lines("machine_healthy_npu_nums") == ["machine_healthy_npu_nums 2"]
    assert world.lines("machine_unhealthy_npu_nums") == ["machine_unhealthy_npu_nums 1"]
    assert world.lines("machine_card_nums") == ["machine_card_nums 2"]


def test_vnpu_metrics_need_exactly_one_container() -> None:
    world = vnpu_world()
    world.put("vnpu", [])
    assert world.lines("vnpu_pod_used_memory") == []
    world.show({100: [container("ns_pod_main", 100)]})
    assert world.lines("vnpu_pod_used_memory") == [
        'vnpu_pod_used_memory{aicore_count="4.00",container_name="main",id="0",is_virtual="true",'
        f'model_name="910B3-Ascend-V1",namespace="ns",pod_name="pod",v_dev_id="100"}} 1024 {TIME_MS}'
    ]
    assert len(world.lines("vnpu_pod_total_memory")) == len(world.lines("vnpu_pod_aicore_utilization")) == 1
    world.put("hbm", [Value("container_npu_total_memory", 1)])
    assert world.lines("container_npu_total_memory") == []


def test_counts_add_up_when_nothing_is_known_yet() -> None:
    world = World(machine(chips=[chip(0), chip(1)]))
    world.put("npu", [Value("npu_chip_info_health_status", FAILED)])
    assert world.lines("machine_unknown_npu_nums") == ["machine_unknown_npu_nums 2"]
    assert world.lines("npu_chip_info_health_status")[0].endswith(f"}} -1 {TIME_MS}")


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("npu_chip_info_temperature", -1, None), ("npu_chip_info_voltage", 4_294_967_295, None),
        ("npu_chip_info_utilization", 4_294_967_295, None), ("npu_chip_info_hbm_utilization", -1, None),
        ("npu_chip_optical_vcc", -1, None), ("npu_chip_info_bandwidth_tx", -1, None),
        ("npu_chip_info_network_status", FAILED, "-1"), ("npu_chip_info_link_status", FAILED, "-1"),
        ("npu_chip_info_hccs_statistic_info_tx_cnt_1", FAILED, "-1"),
        ("npu_chip_info_hbm_used_memory", 4_294_967_295, "4294967295"),
        ("npu_chip_mac_rx_pause_num", -1, "-1"), ("npu_chip_info_sio_crc_tx_err_cnt", 0, "0"),
    ],
)  # fmt: skip
def test_values_that_could_not_be_read(metric: str, value: float, shown: str | None) -> None:
    world = World()
    world.put("any", [Value(metric, value)])
    assert world.lines(metric) == (
        [] if shown is None else [f"{metric}{{{CARD.format('', '', '')}}} {shown} {TIME_MS}"]
    )


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_costs_itself_and_not_the_page(odd: float) -> None:
    world = World(machine("Ascend910B"))
    total = "npu_chip_info_hccs_bandwidth_info_total_tx"
    world.put("hccs", [Value(total, odd), Value("npu_chip_info_hccs_bandwidth_info_total_rx", 2.5)])
    assert world.lines(total) == [] and len(world.lines("npu_chip_info_hccs_bandwidth_info_total_rx")) == 1
    samples = {"hccs": world.cache.of("hccs", world.now())}
    assert "total_rx=2.5" in telegraf.lines(world.machine, samples, (), TIME_MS)


def test_containers_of_an_ascend950_are_found_by_its_logic_id() -> None:
    world = World(machine("Ascend910A5", chips=[chip(0, logic=3), chip(3, logic=0)]))
    world.show({3: [container("ns_pod_main", 3)]})
    world.put("utilization", [Value("npu_chip_info_utilization", 7)])
    world.put("utilization", [Value("npu_chip_info_utilization", 8)], phy=3)
    (mine,) = [line for line in world.lines("npu_chip_info_utilization") if 'pod_name="pod"' in line]
    assert 'id="0"' in mine


def test_only_ten_error_codes_are_shown_and_telegraf_gets_all() -> None:
    world = World()
    codes = [Value("npu_chip_info_error_code", 100 + n, suffix=f"_{n}" if n else "") for n in range(12)]
    world.put("npu", codes)
    shown = [line for line in world.page.plain().decode().splitlines() if line.startswith("npu_chip_info_error_code")]
    assert len(shown) == 10
    assert world.lines("npu_chip_info_error_code_9")[0].endswith(f" 109 {TIME_MS}")
    lines = telegraf.lines(world.machine, {"npu": world.cache.of("npu", world.now())}, (), TIME_MS)
    assert "npu_chip_info_error_code=100," in lines and "npu_chip_info_error_code_11=111" in lines


def test_ports_have_labels_and_old_names_where_asked() -> None:
    value = Value("npu_chip_info_link_status", 1, ("0", "4"), "_0_4")
    plain = World(machine("Ascend910A5", mainboard=0x68))
    plain.put("network", [value])
    assert 'pod_name="",port="4",udie="0",vdie_id="D0"' in plain.lines("npu_chip_info_link_status")[0]
    assert plain.lines("npu_chip_info_link_status_0_4") == []
    for mainboard, count in ((0x6B, 1), (0x23, 0)):
        old = World(machine("Ascend910A5", mainboard=mainboard), legacy=True)
        old.put("network", [value])
        assert len(old.lines("npu_chip_info_link_status_0_4")) == count
        assert len(old.lines("npu_chip_info_link_status")) == 1


def test_samples_vanish_when_they_are_too_old_and_others_stay() -> None:
    world = World(machine(chips=[chip(0), chip(1)]))
    world.put("hbm", [Value("npu_chip_info_hbm_used_memory", 1)])
    world.put("version", [Value("npu_exporter_version_info", 1, ("0.1",))], phy=NODE, seconds=-1)
    world.now.seconds += 100
    world.put("hbm", [Value("npu_chip_info_hbm_used_memory", 2)], phy=1)
    assert len(world.lines("npu_chip_info_hbm_used_memory")) == 2
    world.now.seconds += 20
    assert [line.split()[-2] for line in world.lines("npu_chip_info_hbm_used_memory")] == ["2"]
    world.now.seconds += 10_000
    assert world.lines("npu_chip_info_hbm_used_memory") == []
    assert world.lines("npu_exporter_version_info") == ['npu_exporter_version_info{exporterVersion="0.1"} 1']


def test_the_page_is_rendered_once_for_each_change() -> None:
    world = World()
    world.put("npu", [Value("npu_chip_info_temperature", 45)])
    first = [world.page.plain() for _ in range(100)]
    packed = [world.page.zipped() for _ in range(100)]
    assert world.page.renders == 1 and len({id(page) for page in first}) == len({id(page) for page in packed}) == 1
    assert gzip.decompress(packed[0]) == first[0]
    world.show()
    world.page.plain()
    assert world.page.renders == 1
    world.put("npu", [Value("npu_chip_info_temperature", 46)])
    assert gzip.decompress(world.page.zipped()) == world.page.plain() != first[0]
    assert world.page.renders == 2


def test_a_chip_that_left_is_forgotten() -> None:
    world = World(machine(chips=[chip(0), chip(1)]))
    for phy in (0, 1):
        world.put("npu", [Value("npu_chip_info_temperature", 45)], phy=phy)
    world.machine = machine(chips=[chip(1)])
    world.cache.keep({1})
    world.show()
    assert len(world.lines("npu_chip_info_temperature")) == 1
    assert world.lines("machine_npu_nums") == ["machine_npu_nums 1"]


def test_telegraf_lines() -> None:
    world = World(machine(chips=[chip(4, logic=2)]))
    world.put("npu", [
        Value("npu_chip_info_temperature", 45), Value("npu_chip_info_health_status", 1),
        Value("npu_chip_info_name", 1, text="910B3"), Value("npu_chip_info_serial_number", 1, ("S 4",), text='S "4'),
        Value("npu_chip_info_process_info", 64, ("42",), "_42"),
    ], phy=4)  # fmt: skip
    world.put("utilization", [Value("container_npu_utilization", 7)], phy=4)
    world.put("pcie", [Value("npu_chip_info_pcie_rx_p_bw", 3, ("avgPcieBw",), "_avgPcieBw")], phy=4)
    world.put("version", [Value("npu_exporter_version_info", 1, ("0.1",), text="0.1")], phy=NODE)
    world.put("nodeBase", [Value("node_base_info", 1, ("0.1", "25.0"))], phy=NODE)
    samples = {group: world.cache.of(group, world.now()) for group in world.cache.groups()}
    stamp = f"{TIME_MS}000000"
    assert telegraf.lines(world.machine, samples, (), TIME_MS).splitlines() == [
        f"ascend,device=ascend910 machine_npu_nums=1i,machine_healthy_npu_nums=1i,machine_unhealthy_npu_nums=0i,"
        f'machine_unknown_npu_nums=0i,machine_card_nums=1i,npu_exporter_version_info="0.1" {stamp}',
        "ascend,device=ascend910-2 npu_chip_info_temperature=45,npu_chip_info_health_status=1,"
        'npu_chip_info_name="910B3",npu_chip_info_serial_number="S \\"4",npu_chip_info_process_info_42=64,'
        f"npu_chip_info_pcie_rx_p_bw_avgPcieBw=3i {stamp}",
        f"ascend,exporterVersion=0.1,driverVersion=25.0 node_base_info=1i {stamp}",
    ]


def test_telegraf_fields_have_the_types_of_the_source() -> None:
    world = World(machine(chips=[chip(4, logic=2)]))
    for group, values in {
        "npu": [("npu_chip_info_power", 90.0), ("npu_chip_info_process_info_num", 0.0),
                ("npu_chip_info_process_info", 0.0), ("npu_chip_info_error_code", 12.0)],
        "hbm": [("npu_chip_info_hbm_used_memory", 8.0), ("npu_chip_info_hbm_utilization", 8.0)],
        "hccs": [("npu_chip_info_hccs_statistic_info_tx_cnt_1", float(2**64 - 1)),
                 ("npu_chip_info_hccs_bandwidth_info_total_tx", 2.0),
                 ("npu_chip_info_hccs_bandwidth_info_profiling_time", 200.0)],
        "network": [("npu_chip_link_speed", 100.0)],
        "roce": [("npu_chip_roce_rx_all_pkt_num", 7.0)],
        "optical": [("npu_chip_optical_vcc", 3.0)],
        "sio": [("npu_chip_info_sio_crc_tx_err_cnt", 5.0)],
    }.items():  # fmt: skip
        world.put(group, [Value(name, number) for name, number in values], phy=4)
    samples = {group: world.cache.of(group, world.now()) for group in world.cache.groups()}
    fields = dict(
        field.split("=", 1)
        for line in telegraf.lines(world.machine, samples, (), TIME_MS).splitlines()
        if "ascend910-2 " in line
        for field in line.split()[1].split(",")
    )
    assert {name for name, value in fields.items() if value.endswith("i")} == {
        "npu_chip_info_process_info_num", "npu_chip_info_process_info", "npu_chip_info_hbm_used_memory",
        "npu_chip_info_hccs_statistic_info_tx_cnt_1", "npu_chip_info_hccs_bandwidth_info_profiling_time",
        "npu_chip_roce_rx_all_pkt_num", "npu_chip_info_sio_crc_tx_err_cnt",
    }  # fmt: skip
    assert len(fields) == 13 and fields["npu_chip_info_hccs_statistic_info_tx_cnt_1"] == "9223372036854775807i"


def test_telegraf_names_vnpus_and_ub_ports() -> None:
    world = World(machine("Ascend310P", chips=[chip(3, logic=1, vnpus=(Vnpu(148, 4, 12, 2048, 1024),))]))
    world.put("vnpu", [], phy=3)
    text = telegraf.lines(world.machine, {"vnpu": world.cache.of("vnpu", world.now())}, (), TIME_MS)
    assert text.startswith("ascend,device=ascend310p-1,vdev_id=148 vnpu_pod_aicore_utilization=12i,")
    ports = World(machine("Ascend910A5", chips=[chip(3, logic=1)]))
    for group in ("ub", "network"):
        ports.put(group, [Value("npu_chip_info_link_status", 1, ("0", "4"), "_0_4")], phy=3)
    samples = {group: ports.cache.of(group, ports.now()) for group in ports.cache.groups()}
    assert [line.split()[0] for line in telegraf.lines(ports.machine, samples, (), TIME_MS).splitlines()] == [
        "ascend,device=npu-3", "ascend,device=npu-1",
    ]  # fmt: skip
