"""The functions of mindio_ttp: what they accept, refuse and promise; connections that are not welcome."""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from belay.agents.training.compat.mindio import controller_api, framework_api, security, update_times
from belay.agents.training.compat.mindio.controller_server import ControllerServer
from belay.agents.training.compat.mindio.environment import Environment
from belay.agents.training.compat.mindio.framework import Framework
from belay.agents.training.compat.mindio.update_times import can_repair, error_time, set_end, set_start
from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import ReportState
from belay.agents.training.compat.tft.controller_commands import ControllerSettings
from tests import needs
from tests.ports import free_port

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "agents/training/packages"


@pytest.fixture(autouse=True)
def packages(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.setenv("TTP_LOG_PATH", str(tmp_path / "logs"))
    yield
    controller_api.tft_destroy_controller()
    controller_api.host.callbacks.clear()
    controller_api.host.decrypt = None


def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    whole = dict(os.environ) | {"PYTHONPATH": f"{ROOT / 'src'}:{PACKAGES}"} | env
    return subprocess.run([sys.executable, "-c", script], env=whole, capture_output=True, text=True, timeout=100)


def test_all_documented_names_exist():
    ttp = importlib.import_module("mindio_ttp.framework_ttp")
    assert len(ttp.__all__) == 44 and all(hasattr(ttp, name) for name in ttp.__all__)
    assert {"tft_start_processor", "tft_destroy_processor"} <= set(ttp.__all__)
    assert callable(ttp.set_mindio_export_version)
    assert importlib.import_module("mindio_ttp.controller_ttp").tft_notify_controller_dump() == 1
    assert importlib.import_module("mindio_ttp.utils").tft_can_do_uce_repair(0) is False
    assert importlib.import_module("mindio_ttp.framework_ttp.ttp_decorator").get_device() is None


def test_adaptations_import_every_processor_function_from_ttp_decorator():
    decorator = importlib.import_module("mindio_ttp.framework_ttp.ttp_decorator")
    ttp = importlib.import_module("mindio_ttp.framework_ttp")
    controller = {"tft_init_controller", "tft_start_controller", "tft_destroy_controller"}
    hosts = controller | {"tft_query_high_availability_switch", "tft_register_mindx_callback"}
    elsewhere = hosts | {"tft_can_do_uce_repair"}
    assert {name for name in ttp.__all__ if not hasattr(decorator, name)} == elsewhere
    assert decorator.tft_get_repair_type is framework_api.tft_get_repair_type


def test_importing_it_imports_neither_torch_nor_the_engine():
    done = run(
        "import sys, mindio_ttp.framework_ttp, mindio_ttp.controller_ttp, mindio_ttp.utils;"
        "print([n for n in sys.modules if n.startswith(('torch', 'belay.engine', 'grpc', 'pydantic', 'msgspec'))])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    "arguments",
    [(-2, 4, False), (4, 4, False), (0, 0, False), (0, 100_001, False), ("0", 4, False), (0, 4, 1), (True, 4, False)],
)
def test_a_controller_with_wrong_arguments_is_refused(arguments):
    with pytest.raises(ValueError, match=r"rank|world_size|enable_local_copy"):
        controller_api.tft_init_controller(*arguments)


def test_mindspore_cannot_have_local_copies(monkeypatch):
    monkeypatch.setenv("MINDIO_FOR_MINDSPORE", "true")
    with pytest.raises(ValueError, match="MindSpore"):
        controller_api.tft_init_controller(0, 4, True)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "203.0.113.77"])
def test_an_address_that_cannot_be_listened_on_ends_with_2(address, capsys):
    controller_api.tft_init_controller(0, 4, False)
    with pytest.raises(SystemExit) as ended:
        controller_api.tft_start_controller(address, 18000, False)
    assert ended.value.code == 2 and "cannot listen" in capsys.readouterr().err


def test_a_port_in_use_ends_with_2():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        controller_api.tft_init_controller(0, 4, False)
        with pytest.raises(SystemExit):
            controller_api.tft_start_controller("127.0.0.1", taken.getsockname()[1], False)


def test_a_second_start_is_ignored():
    port = started()
    server = controller_api.host.server
    controller_api.tft_init_controller(0, 8, False)
    controller_api.tft_start_controller("127.0.0.1", port, False)
    assert controller_api.host.server is server and server.settings.world == 4


@pytest.mark.parametrize(
    "call",
    [
        lambda: controller_api.tft_notify_controller_stop_train({0: 1}, "sleep", 0),
        lambda: controller_api.tft_notify_controller_stop_train({"x": 1}, "stop", 0),
        lambda: controller_api.tft_notify_controller_stop_train([1, 2], "stop", 0),
        lambda: controller_api.tft_notify_controller_on_global_rank({0: 1}, 0),
        lambda: controller_api.tft_notify_controller_on_global_rank({0: 1}, 3601),
        lambda: controller_api.tft_notify_controller_prepare_action("move", {0: 1}),
        lambda: controller_api.tft_notify_controller_change_strategy("hope"),
        lambda: controller_api.tft_notify_controller_change_strategy("retry", "x" * 1025),
    ],
)
def test_a_wrong_order_is_answered_with_1_and_changes_nothing(call):
    started()
    assert call() == 1
    assert controller_api.host.server.machine.orders == {}


def test_orders_without_a_controller_are_answered_with_1():
    assert controller_api.tft_notify_controller_dump() == 1
    assert controller_api.tft_destroy_controller() == 0
    assert controller_api.tft_query_high_availability_switch() is False


def test_callbacks_are_answered_with_0_and_unknown_ones_with_1(monkeypatch):
    monkeypatch.setattr(controller_api.host, "callbacks", {})
    assert [controller_api.tft_register_mindx_callback(name, print) for name in controller_api.CALLBACKS] == [0] * 4
    assert controller_api.tft_register_mindx_callback("report_weather", print) == 1
    assert controller_api.tft_register_mindx_callback("report_result", 3) == 1
    assert set(controller_api.host.callbacks.values()) == {print}


def test_orders_with_the_defaults_of_mindio_are_accepted():
    started()
    assert controller_api.tft_notify_controller_stop_train({}, "pause", None) == 0
    assert controller_api.tft_notify_controller_prepare_action("stop switch") == 0


@pytest.mark.parametrize("arguments", ["-1, 4", "4, 4", "0, 100001", "'0', 4"])
def test_a_processor_out_of_range_ends_the_process_with_2(arguments):
    done = run(f"import mindio_ttp.framework_ttp as t; t.tft_init_processor({arguments}, False, False)")
    assert done.returncode == 2 and "belay: tft_init_processor" in done.stderr


def test_a_processor_without_a_controller_ends_with_2_after_its_tries():
    script = (
        "import mindio_ttp.framework_ttp as t; t.tft_init_processor(0, 4, False, False);"
        "t.tft_start_processor('127.0.0.1', 1025)"
    )
    done = run(script, TTP_RETRY_TIMES="1")
    assert done.returncode == 2 and "no answer after 1 tries" in done.stderr


@pytest.mark.parametrize(
    "change,said",
    [
        ({"MINDX_TASK_ID": "another"}, "controller of job ''"),
        ({"WORLD": "5"}, "world size 5 differs"),
        ({"COPY": "True"}, "enable_local_copy differs"),
    ],
)
def test_another_jobs_rank_is_refused_with_the_reason(change, said):
    port = started()
    script = (
        "import os, mindio_ttp.framework_ttp as t;"
        "t.tft_init_processor(1, int(os.environ.get('WORLD', 4)), bool(os.environ.get('COPY')), False);"
        f"t.tft_start_processor('127.0.0.1', {port})"
    )
    done = run(script, **change)
    assert done.returncode == 2 and said in done.stderr
    assert not controller_api.host.server.machine.peers


def started(**more) -> int:
    controller_api.tft_init_controller(-1, 4, False)
    port = free_port()
    controller_api.tft_start_controller("127.0.0.1", port, False)
    return port


def talk(port: int, data: bytes) -> bytes:
    """What the controller answers until it closes; empty when it only closes."""
    with socket.create_connection(("127.0.0.1", port), 5) as line:
        line.sendall(data)
        found = b""
        try:
            while part := line.recv(65536):
                found += part
        except ConnectionResetError:
            return found
        return found


HELLO = {
    "op": m.REGISTER, "versions": [1], "rank": 0, "world": 4, "job": "", "session": "a", "repair_id": 0,
    "local_copy": False, "uce": True, "arf": False, "zit": False, "controller": "",
    "status": {"n": 1, "step": 0, "backup": -1, "data": 0, "state": 0, "code": "", "parked": False, "gen": 0,
               "loaded": 0},
}  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        struct.pack(">I", 2**31) + b"x",
        struct.pack(">I", 5) + b"\x80\x04K\x01.",  # a pickle
        struct.pack(">I", 2) + b"[]",
        m.encode({"op": "explode"}),
        m.encode({"op": m.STATUS, "status": HELLO["status"]}),
        m.encode(HELLO | {"rank": "0"}),
        m.encode(HELLO | {"status": {}}),
        struct.pack(">I", 200_000) + b"[" * 200_000,
    ],
)
def test_a_foreign_client_is_disconnected_and_harms_nothing(data):
    port = started()
    assert talk(port, data) == b""
    assert not controller_api.host.server.machine.peers


@pytest.mark.parametrize("versions,said", [([0], "versions 0"), ([2, 3], "versions 2, 3")])
def test_another_version_of_the_protocol_is_refused_with_the_reason(versions, said):
    port = started()
    (answer,) = m.MessageDecoder().feed(talk(port, m.encode(HELLO | {"versions": versions})))
    assert answer["op"] == m.REFUSED and answer["final"] and said in answer["reason"]


def test_a_newer_processor_is_answered_in_the_version_both_speak():
    port = started()
    with socket.create_connection(("127.0.0.1", port), 5) as line:
        line.sendall(m.encode(HELLO | {"versions": [1, 2], "something": "new"}))
        (answer,) = m.MessageDecoder().feed(line.recv(65536))
        assert (answer["op"], answer["version"]) == (m.REGISTERED, 1)
        assert controller_api.tft_query_high_availability_switch() is True


def test_a_rank_that_lives_cannot_be_taken_over():
    port = started()
    with socket.create_connection(("127.0.0.1", port), 5) as line:
        line.sendall(m.encode(HELLO))
        line.recv(65536)
        (answer,) = m.MessageDecoder().feed(talk(port, m.encode(HELLO | {"session": "b"})))
        assert answer["op"] == m.REFUSED and "alive and healthy" in answer["reason"]


@pytest.mark.parametrize(
    "info",
    [
        None, [], [3], [{"rank_list": (0, 1), "replica_cnt": 1, "replica_shift": 0}],
        [{"rank_list": [0, 1], "replica_cnt": "1", "replica_shift": 0}], [{"rank_list": [0, 1], "replica_cnt": 1}],
        [{"rank_list": [0, 1], "replica_cnt": 3, "replica_shift": 0}],
        [{"rank_list": [1, 2], "replica_cnt": 1, "replica_shift": 0}],
        [{"rank_list": [0, "1"], "replica_cnt": 1, "replica_shift": 0}],
    ],
)  # fmt: skip
def test_impossible_replica_info_is_refused(info):
    with pytest.raises(ValueError, match=r"replica_info|replica_cnt"):
        framework_api.tft_set_optimizer_replica(0, info)


@pytest.mark.parametrize("step", [0, -1, 1.5, "1", None])
def test_a_step_below_1_is_refused(step):
    with pytest.raises(ValueError, match="step"):
        framework_api.tft_end_updating_os(step)


def test_handlers_must_be_callable():
    registers = [getattr(framework_api, n) for n in dir(framework_api) if n.startswith("tft_register_")]
    simple = [r for r in registers if r.__name__ == "register"]
    assert len(simple) == 13
    for register in simple:
        with pytest.raises(TypeError):
            register(None)
    with pytest.raises(TypeError):
        framework_api.tft_exception_handler(3)
    with pytest.raises(TypeError):
        framework_api.tft_register_decrypt_handler("secret")
    framework_api.tft_register_decrypt_handler(None)


def test_only_known_frameworks_are_exported(monkeypatch):
    monkeypatch.delenv("TTP_STOP_CLEAN_BEFORE_DUMP", raising=False)
    with pytest.raises(ValueError, match="MindSpeed"):
        framework_api.set_mindio_export_version("Caffe")
    monkeypatch.setattr(framework_api.framework, "export", None)
    assert framework_api.get_mindio_export_version() is None
    framework_api.set_mindio_export_version("MindSpeed-LLM")
    assert framework_api.get_mindio_export_version() == "MindSpeed-LLM"
    assert os.environ["TTP_STOP_CLEAN_BEFORE_DUMP"] == "1"


@pytest.mark.parametrize("name,low,high,default", [
    ("TTP_RETRY_TIMES", 1, 300, 10), ("TTP_NORMAL_ACTION_TIME_LIMIT", 30, 1800, 180),
    ("MINDIO_WAIT_MINDX_TIME", 1, 3600, 30),
])  # fmt: skip
def test_variables_out_of_range_count_as_not_set(name, low, high, default):
    field = {"TTP_RETRY_TIMES": "retry_times", "TTP_NORMAL_ACTION_TIME_LIMIT": "action_limit"}.get(
        name, "wait_clusterd"
    )
    for text, value in {str(low): low, str(high): high}.items():
        assert getattr(Environment.read({name: text}), field) == value
    for text in (str(low - 1), str(high + 1), "many", "", "1e3"):
        assert getattr(Environment.read({name: text}), field) == default


class Waits:
    """A processor that records its orders and never waits."""

    def __init__(self):
        self.reports = []


def framework() -> Framework:
    made = Framework(Environment.read({}))
    made.runner = Waits()
    return made


@pytest.mark.parametrize("text,state,code", [
    ("FORCE STOP now", ReportState.RS_NORMAL, ""),
    ("UCE ERROR. device error type 0x1234 at", ReportState.RS_UCE, "0x1234"),
    ("UCE ERROR. Device error type AB12f3, stream 1", ReportState.RS_UCE, "AB12f3"),
    ("UCE ERROR. device error type is not known", ReportState.RS_UCE, ""),
    ("HBM MULTI BIT ECC without a time", ReportState.RS_UCE_CORRUPTED, ""),
    ("ARF FINISH", ReportState.RS_PREREPAIR_FINISH, ""),
    ("STEP FINISH", ReportState.RS_STEP_FINISH, ""),
    ("SUSPECT REMOTE ERROR", ReportState.RS_HCCL_FAILED, ""),
    ("UB LINK ERROR", ReportState.RS_HCCL_FAILED, ""),
    ("HCCS LINK ERROR", ReportState.RS_HCCL_FAILED, ""),
])  # fmt: skip
def test_the_text_of_an_exception_decides_the_report(text, state, code):
    assert framework().classify(text) == (state, code)


def test_without_uce_repair_only_stops_and_arrivals_are_repaired():
    made = framework()
    made.uce = False
    assert made.classify("UCE ERROR") is None and made.classify("HCCL OP RETRY FAILED") is None
    assert made.classify("FORCE STOP") is not None and made.classify("CUDA out of memory") is None


def test_registered_patterns_come_after_the_built_in_ones():
    made = framework()
    made.register_pattern("PRECISION ERROR", "RS_RETRY", lambda text: text[:3])
    made.register_pattern("UCE", "RS_UNKNOWN", lambda text: "no")
    assert made.classify("PRECISION ERROR") == (ReportState.RS_RETRY, "PRE")
    assert made.classify("UCE ERROR") == (ReportState.RS_UCE, "")
    with pytest.raises(ValueError, match="RS_NORMAL"):
        made.register_pattern("x", "RS_MAYBE", str)
    with pytest.raises(TypeError):
        made.register_pattern("x", "RS_UCE", None)


def test_a_handle_answers_the_pattern_whose_state_is_reported():
    """As MindSpeed-LLM's handle of precision errors does."""
    made = framework()
    answers = {"PRECISION ERROR": "PRECISION ERROR"}
    made.register_pattern("PRECISION ERROR", "RS_RETRY", lambda text: answers["PRECISION ERROR"])
    text = "PRECISION ERROR load ckpt step=20, device error type 1f"
    assert made.classify("PRECISION ERROR") == (ReportState.RS_RETRY, "")
    assert made.classify(text) == (ReportState.RS_RETRY, "1f")
    answers["PRECISION ERROR"] = "FORCE STOP"
    assert made.classify(text) == (ReportState.RS_NORMAL, "1f")
    answers["PRECISION ERROR"] = "OTHER"
    assert made.classify(text) is None


def test_a_pattern_that_is_registered_again_is_replaced():
    made = framework()
    made.register_pattern("HBM MULTI BIT ECC", "RS_UCE", lambda text: "HBM MULTI BIT ECC")
    assert made.classify("HBM MULTI BIT ECC") == (ReportState.RS_UCE, "")
    made.register_pattern("HBM MULTI BIT ECC", "RS_RETRY", lambda text: "HBM MULTI BIT ECC can't repair")
    assert made.classify("HBM MULTI BIT ECC") == (ReportState.RS_UCE_CORRUPTED, "")


def test_a_memory_error_is_repaired_in_place_by_when_it_came(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(update_times, "_window", {})
    assert can_repair(150) is False  # no update yet
    set_start(start_time=100)
    assert can_repair(150) is False  # the first one runs
    set_end(end_time=200)
    # before the window a polluted gradient may have reached the update; inside it and after it not
    assert [can_repair(t) for t in (99, 100, 150, 200, 201, 0)] == [False, False, True, False, True, False]
    set_start(300)  # the next update runs
    assert [can_repair(t) for t in (250, 350)] == [False, True]
    assert can_repair(5, start_time=4, end_time=6) is True
    assert can_repair(hbm_error_time=7, start_time=4) is True  # the end that was set counts
    assert error_time("HBM MULTI BIT ECC, time us= 4711, …") == 4711


def test_a_script_without_a_processor_runs_without_protection():
    calls = []

    @framework_api.tft_exception_handler
    def train(args):
        framework_api.tft_start_updating_os()
        framework_api.tft_end_updating_os(1)
        framework_api.tft_pause_train(1)
        calls.append(args)
        return 7

    assert train("a") == 7 and calls == ["a"]
    assert framework_api.tft_wait_next_action() == 0 and framework_api.tft_is_reboot_node() is False
    assert framework_api.tft_get_repair_type() == "unknow" and framework_api.tft_get_reboot_type() == "arf"


def test_an_exception_of_the_script_stays_one():
    @framework_api.tft_exception_handler
    def train():
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train()


def test_a_handler_for_sigterm_that_the_script_installed_stays():
    script = (
        "import signal, sys, mindio_ttp.framework_ttp as t\n"
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\n"
        "t.tft_init_processor(0, 1, False, False)\n"
        "print('ready', flush=True)\nwhile True:\n    signal.pause()"
    )
    env = dict(os.environ) | {"PYTHONPATH": f"{ROOT / 'src'}:{PACKAGES}"}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 7


def test_the_log_goes_where_the_environment_says(tmp_path):
    done = run(
        "import mindio_ttp.controller_ttp as c; c.tft_init_controller(0, 4, False); c.tft_init_controller(0, 4, False)",
        TTP_LOG_PATH=str(tmp_path / "own"), TTP_LOG_MODE="ONLY_ONE",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "initialised already" in (tmp_path / "own" / "ttp_log.log").read_text()


# -- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    if shutil.which("openssl") is None:
        needs.lacking("openssl is not installed: make test-packages")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for authority in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{authority}.key", "-out",
                f"{authority}.pem", "-subj", f"/CN={authority}", "-days", "2")  # fmt: skip
        openssl("req", "-newkey", "rsa:2048", "-keyout", f"{authority}-rank.key", "-passout", "pass:open sesame",
                "-out", f"{authority}.csr", "-subj", "/CN=rank")  # fmt: skip
        openssl("x509", "-req", "-in", f"{authority}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                "-CAcreateserial", "-out", f"{authority}-rank.pem", "-days", "2")  # fmt: skip
    return folder


def info(folder: Path, authority: str = "ca", password: str = "emases nepo") -> str:
    return (
        f"(\ntlsCert: {folder}/{authority}-rank.pem;\ntlsCaPath: {folder};\ntlsCaFile: ca.pem;\n"
        f"tlsPk: {folder}/{authority}-rank.key;\ntlsPkPwd: {password};\n)"
    )


@pytest.mark.parametrize("text,said", [
    ("", "lacks tlsCert"), ("tlsCert: a; tlsPk: b;", "lacks tlsCaFile"), ("password: x;", "names 'password'"),
    ("tlsCert: /none; tlsPk: /none; tlsCaFile: /none;", "cannot be loaded"),
])  # fmt: skip
def test_tls_information_that_cannot_be_used_is_named(text, said):
    with pytest.raises(security.TLSError, match=said):
        security.context(True, text)


def test_tls_protects_the_connection_and_the_decrypt_handler_opens_the_key(certificates):
    controller_api.host.decrypt = lambda text: text[::-1]
    server = ControllerServer(ControllerSettings(rank=-1, world=4), dict)
    server.start("127.0.0.1", 0, security.context(True, info(certificates), lambda text: text[::-1]))
    script = (
        "import mindio_ttp.framework_ttp as t, os\n"
        "t.tft_register_decrypt_handler(lambda text: text[::-1])\n"
        "t.tft_init_processor(1, 4, False, True, os.environ['INFO'])\n"
        f"t.tft_start_processor('127.0.0.1', {server.port})\nprint('registered')"
    )
    try:
        assert "registered" in run(script, INFO=info(certificates)).stdout
        impatient = (
            f"import belay.agents.training.compat.mindio.framework_api as api\napi.REGISTER_WAIT = 2.0\n{script}"
        )
        stranger = run(impatient, INFO=info(certificates, "other"), TTP_RETRY_TIMES="1")
        assert stranger.returncode == 2 and "registered" not in stranger.stdout
        assert "open sesame" not in stranger.stderr + stranger.stdout
        assert talk(server.port, m.encode(HELLO)) == b"" or server.machine.peers.keys() <= {1}
    finally:
        server.destroy()


def test_a_wrong_password_is_not_shown(certificates):
    with pytest.raises(security.TLSError) as wrong:
        security.context(True, info(certificates, password="hunter2"))
    assert "hunter2" not in str(wrong.value)


def test_a_failed_report_is_repeated_up_to_three_times(caplog, monkeypatch):
    told = []

    def report(*arguments):
        told.append(time.monotonic())
        return 1 if len(told) < 3 else 0

    monkeypatch.setattr("belay.agents.training.compat.mindio.controller_server.REPORT_WAIT", 0.01)
    server = ControllerServer(
        ControllerSettings(rank=-1, world=2, clusterd=True), lambda: {"report_fault_ranks": report}
    )
    server.start("127.0.0.1", 0)
    try:
        with caplog.at_level(logging.WARNING), socket.create_connection(("127.0.0.1", server.port), 5) as line:
            line.sendall(m.encode(HELLO | {"world": 2}))
            line.recv(65536)
        deadline = time.monotonic() + 60
        while len(told) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(told) == 3
    finally:
        server.destroy()


@pytest.mark.parametrize("both", [False, True])
def test_a_callback_gets_the_arguments_that_it_takes(both):
    """MindSpore registers a report_fault_ranks of one parameter; ClusterD's takes the codes as well."""
    seen: queue.SimpleQueue[tuple[object, ...]] = queue.SimpleQueue()
    report = (lambda faults, codes: seen.put((faults, codes))) if both else (lambda faults: seen.put((faults,)))
    server = ControllerServer(
        ControllerSettings(rank=-1, world=2, clusterd=True), lambda: {"report_fault_ranks": report}
    )
    server.start("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", server.port), 5) as line:
            line.sendall(m.encode(HELLO | {"world": 2}))
            line.recv(65536)
        faults, *codes = seen.get(timeout=60)
    finally:
        server.destroy()
    assert faults == {0: 1}
    assert len(codes) == both


def test_a_message_is_checked_field_by_field():
    with pytest.raises(m.BadMessage, match=r"register\.rank must be int, got str"):
        m.decode(json.dumps(HELLO | {"rank": "0"}).encode())
    with pytest.raises(m.BadMessage, match=r"rebuild\.ranks must be a list of whole numbers"):
        m.check({"op": "rebuild", "term": 0, "gen": 1, "sn": 1, "strategy": "", "ranks": ["0"]})
