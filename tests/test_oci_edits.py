"""What `create` writes into config.json, per product, on a host made of a private mount namespace.

runc is a program that notes how it was called; the rest (device nodes, driver library, lists, files) is real.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runtime_host import HOME, LISTS, Host, libdcmi, oci_programs, possible

__all__ = ["libdcmi", "oci_programs"]

pytestmark = pytest.mark.skipif(bool(possible()), reason=f"a private host {possible()}")

MINORS = {
    **{f"davinci{n}": n for n in range(8)},
    "davinci_manager": 20, "davinci_manager_docker": 21, "devmm_svm": 22, "hisi_hdc": 23, "dvpp_cmdlist": 24,
    "svm0": 30, "ts_aisle": 31, "upgrade": 32, "sys": 33, "vdec": 34, "vpc": 35, "pngd": 36, "venc": 37, "log_drv": 38,
    "acodec": 39, "ai": 40, "ao": 41, "vo": 42, "hdmi": 43,
}  # fmt: skip
MAJOR = 240
DRIVER = "/usr/local/Ascend/driver"
RUNC = """#!/bin/sh
printf '%s\\n' "$0" "$@" >/etc/runc-called
exit "$(cat /etc/runc-exit 2>/dev/null || echo 0)"
"""


@pytest.fixture(scope="module")
def host(oci_programs: Sequence[Path], libdcmi: Path) -> Iterator[Host]:
    with Host() as made:
        made.install(oci_programs)
        made.driver(libdcmi)
        made.write("/usr/local/bin/runc", RUNC, "0755")
        made.shell(f"mkdir -p {DRIVER}/lib64/common {DRIVER}/lib64/driver; rm -rf /usr/local/bin/docker-runc")
        yield made


class Container:
    """A bundle on the host."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder, self.log = host, folder, folder / "log.json"
        self.spec: dict[str, Any] = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["sh"], "env": ["PATH=/bin"], "cwd": "/"},
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}, "namespaces": [{"type": "mount"}]},
            "x-unknown": {"kept": [1.50, "\u00e9"]},
        }

    @property
    def file(self) -> Path:
        return self.folder / "config.json"

    def save(self) -> str:
        self.file.write_text(json.dumps(self.spec, indent=3))
        return self.file.read_text()

    def create(self, *env: str, before: Sequence[str] = (), program: str = f"{HOME}/belay-oci-runtime") -> Any:
        """`create` with these variables; the process that ended."""
        if env:
            self.spec["process"]["env"] = ["PATH=/bin", *env]
        self.save()
        self.host.shell("rm -f /etc/runc-called")
        return self.call(program, before)

    def call(self, program: str = f"{HOME}/belay-oci-runtime", before: Sequence[str] = ()) -> Any:
        options = [
            "--log",
            str(self.log),
            "--log-format",
            "json",
            *before,
            "create",
            "--bundle",
            str(self.folder),
            "c-1",
        ]
        return self.host.run(program, *options, check=False)

    def given(self, *env: str) -> dict[str, Any]:
        """config.json after a `create` that reached runc."""
        done = self.create(*env)
        assert done.returncode == 0, done.stderr
        assert self.ran()
        return self.read()

    def read(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.file.read_text())
        return read

    def ran(self) -> list[str]:
        return self.host.run("cat", "/etc/runc-called", check=False).stdout.splitlines()

    def refused(self, *env: str) -> str:
        """The reason of a `create` that never reached runc, the same on stderr and in the engine's log."""
        before = self.log.read_text() if self.log.exists() else ""
        done = self.create(*env)
        assert done.returncode == 1 and not self.ran(), done.stderr
        line = json.loads(self.log.read_text()[len(before) :])
        assert line["level"] == "error" and line["time"].endswith("Z")
        assert done.stderr == line["msg"] + "\n"
        return str(line["msg"])


@pytest.fixture
def container(host: Host, tmp_path: Path) -> Container:
    return Container(host, tmp_path)


def paths(spec: Mapping[str, Any]) -> list[str]:
    return [device["path"].removeprefix("/dev/") for device in spec["linux"].get("devices", [])]


@pytest.fixture
def machine(host: Host, libdcmi: Path) -> Callable[..., None]:
    def make(chip: str, product: str = "", without: Sequence[str] = (), **shape: Any) -> None:
        host.driver(libdcmi, chip_name=chip, product=product, **shape)
        host.shell("cd /dev; rm -rf uburma ummu " + " ".join([*MINORS, "vdavinci100", "vdavinci148"]))
        host.nodes({name: (MAJOR, minor) for name, minor in MINORS.items() if name not in without})

    return make


MANAGERS = ["davinci_manager", "devmm_svm", "hisi_hdc"]
NODES_310B = [
    "svm0",
    "ts_aisle",
    "upgrade",
    "sys",
    "vdec",
    "vpc",
    "pngd",
    "venc",
    "log_drv",
    "acodec",
    "ai",
    "ao",
    "vo",
    "hdmi",
]


@pytest.mark.parametrize(
    ("chip", "product", "wanted"),
    [
        ("910B3", "", ["dvpp_cmdlist", *MANAGERS]),
        ("910", "", ["dvpp_cmdlist", *MANAGERS]),
        ("Ascend910_9392", "", ["dvpp_cmdlist", *MANAGERS]),
        ("310P3", "Atlas 300I Duo", ["dvpp_cmdlist", *MANAGERS]),
        ("310P1", "Atlas 200I SoC A1", ["dvpp_cmdlist", "davinci_manager"]),
        ("310", "", ["dvpp_cmdlist", *MANAGERS]),
        ("310", "Atlas 200 Model 3000", ["dvpp_cmdlist", "davinci_manager"]),
        ("310B4", "Atlas 200I A2", ["dvpp_cmdlist", *NODES_310B, "davinci_manager"]),
        ("Ascend950PR", "", ["davinci_manager", "hisi_hdc"]),
        ("Ascend950-310", "", ["davinci_manager", "hisi_hdc"]),
        ("Ascend950-310P", "", ["dvpp_cmdlist", *MANAGERS]),
        ("Hi1981", "", MANAGERS),
    ],
)
def test_nodes_of_each_product(
    container: Container, machine: Callable[..., None], chip: str, product: str, wanted: list[str]
) -> None:
    machine(chip, product)
    spec = container.given("ASCEND_VISIBLE_DEVICES=5,1-2")
    assert paths(spec) == ["davinci1", "davinci2", "davinci5", *wanted]
    rules = spec["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    for device, rule in zip(spec["linux"]["devices"], rules[1:], strict=True):
        assert rule == {"allow": True, "type": "c", "major": MAJOR, "minor": device["minor"], "access": "rwm"}
        source = (
            "davinci_manager_docker"
            if chip == "310B4" and device["path"] == "/dev/davinci_manager"
            else device["path"][5:]
        )
        assert (device["type"], device["major"], device["minor"]) == ("c", MAJOR, MINORS[source])
        assert (device["fileMode"], device["uid"], device["gid"]) == (0o660, 0, 0)


def test_a_whole_file_stays_as_it_was_but_for_the_grant(container: Container, machine: Callable[..., None]) -> None:
    machine("910B3")
    container.spec["process"]["env"] = ["ASCEND_VISIBLE_DEVICES=Ascend910-3"]
    before = container.save()
    assert container.call().returncode == 0
    hook = f'{{"path":"{HOME}/ascend-docker-hook","args":["{HOME}/ascend-docker-hook"]}}'
    node = '{{"path":"/dev/{}","type":"c","major":240,"minor":{},"fileMode":432,"uid":0,"gid":0}}'
    rule = '{{"allow":true,"type":"c","major":240,"minor":{},"access":"rwm"}}'
    names = ["davinci3", "dvpp_cmdlist", "davinci_manager", "devmm_svm", "hisi_hdc"]
    nodes, rules = (",".join(form.format(*put) for put in ((n, MINORS[n]) for n in names)) for form in (node, "{0}"))
    rules = ",".join(rule.format(MINORS[name]) for name in names)
    library = f"LD_LIBRARY_PATH={DRIVER}/lib64/common:{DRIVER}/lib64/driver:/usr/lib64"
    wanted = (
        before.replace('Ascend910-3"\n      ]', f'Ascend910-3"\n      ,"ASCEND_DOCKER_RUNTIME=True","{library}"]')
        .replace('"access": "rwm"\n            }\n         ]', f'"access": "rwm"\n            }}\n         ,{rules}]')
        .replace(
            '"type": "mount"\n         }\n      ]\n   }',
            f'"type": "mount"\n         }}\n      ]\n   ,"devices":[{nodes}]}}',
        )
    )
    assert wanted.endswith("\n}")
    wanted = wanted[:-1] + f',"hooks":{{"prestart":[{hook}]}}}}'
    assert container.file.read_text() == wanted


def test_runc_gets_the_same_arguments(container: Container, machine: Callable[..., None]) -> None:
    machine("910B3")
    container.create("ASCEND_VISIBLE_DEVICES=0", before=["--root", "/run/x", "--systemd-cgroup"])
    options = ["--log", str(container.log), "--log-format", "json", "--root", "/run/x", "--systemd-cgroup"]
    assert container.ran() == ["/usr/local/bin/runc", *options, "create", "--bundle", str(container.folder), "c-1"]


def test_ub_nodes_come_before_the_managers(container: Container, machine: Callable[..., None], host: Host) -> None:
    machine("910B3")
    host.shell("mkdir -p /dev/ummu/below")
    host.nodes(
        {"uburma/b": (MAJOR, 101), "uburma/a": (MAJOR, 100), "ummu/tid": (MAJOR, 102), "ummu/below/x": (MAJOR, 103)}
    )
    spec = container.given("ASCEND_VISIBLE_DEVICES=0")
    assert paths(spec) == ["davinci0", "uburma/a", "uburma/b", "ummu/tid", "dvpp_cmdlist", *MANAGERS]


def test_missing_nodes(container: Container, machine: Callable[..., None], host: Host) -> None:
    machine("310B4", without=["dvpp_cmdlist", "ai", "davinci_manager_docker"])
    spec = container.given("ASCEND_VISIBLE_DEVICES=0")
    assert "ai" not in paths(spec) and "dvpp_cmdlist" not in paths(spec)
    assert spec["linux"]["devices"][-1]["minor"] == MINORS["davinci_manager"]
    assert "left out: /dev/ai" in host.read("/var/log/ascend-docker-runtime/runtime-run.log")
    machine("910B3", without=["hisi_hdc"])
    assert "/dev/hisi_hdc: No such file" in container.refused("ASCEND_VISIBLE_DEVICES=0")
    assert "/dev/davinci300: No such file" in container.refused("ASCEND_VISIBLE_DEVICES=300")
    host.shell("rm /dev/davinci1; ln -s davinci0 /dev/davinci1")
    assert "/dev/davinci1: is not a device node" in container.refused("ASCEND_VISIBLE_DEVICES=1")


# -- the environment


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        (["ASCEND_VISIBLE_DEVICES=0", "ASCEND_VISIBLE_DEVICES=1"], ["davinci1"]),
        (["ASCEND_VISIBLE_DEVICES=0", "A=1"], ["davinci0"]),
        (["ASCEND_VISIBLE_DEVICES=0", "broken"], []),
        (["broken", "ASCEND_VISIBLE_DEVICES=0"], ["davinci0"]),
        (["ASCEND_VISIBLE_DEVICES=1", "ASCEND_VISIBLE_DEVICES="], []),
        (["ASCEND_VISIBLE_DEVICES=void"], []),
        (["ASCEND_VISIBLE_DEVICES"], []),
        (["XASCEND_VISIBLE_DEVICES=1"], []),
    ],
)  # fmt: skip
def test_which_variable_counts(
    container: Container, machine: Callable[..., None], env: list[str], wanted: list[str]
) -> None:
    machine("910B3")
    spec = container.given(*env)
    assert [name for name in paths(spec) if name[7:].isdigit()] == wanted
    assert ("hooks" in spec) == bool(wanted)
    assert "ASCEND_DOCKER_RUNTIME=True" in spec["process"]["env"]


LIBRARIES = f"{DRIVER}/lib64/common:{DRIVER}/lib64/driver:/usr/lib64"


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ([], ["ASCEND_DOCKER_RUNTIME=True", f"LD_LIBRARY_PATH={LIBRARIES}"]),
        (["LD_LIBRARY_PATH=/a:/b"], [f"LD_LIBRARY_PATH={LIBRARIES}:/a:/b", "ASCEND_DOCKER_RUNTIME=True"]),
        (["LD_LIBRARY_PATH="], [f"LD_LIBRARY_PATH={LIBRARIES}", "ASCEND_DOCKER_RUNTIME=True"]),
        (
            ["LD_LIBRARY_PATH=/usr/lib64/x:/usr/lib64", "A=b"],
            [
                f"LD_LIBRARY_PATH={LIBRARIES.removesuffix(':/usr/lib64')}:/usr/lib64/x:/usr/lib64",
                "A=b",
                "ASCEND_DOCKER_RUNTIME=True",
            ],
        ),
        ([f"LD_LIBRARY_PATH=/x:{LIBRARIES}"], [f"LD_LIBRARY_PATH=/x:{LIBRARIES}", "ASCEND_DOCKER_RUNTIME=True"]),
        (
            ["LD_LIBRARY_PATH=/first", "LD_LIBRARY_PATH=/last"],
            ["LD_LIBRARY_PATH=/first", f"LD_LIBRARY_PATH={LIBRARIES}:/last", "ASCEND_DOCKER_RUNTIME=True"],
        ),
    ],
)  # fmt: skip
def test_the_library_path_of_every_container(container: Container, env: list[str], wanted: list[str]) -> None:
    container.spec["process"]["env"] = env
    assert container.given()["process"]["env"] == wanted


def test_a_hook_that_is_there_is_not_added_again(container: Container, machine: Callable[..., None]) -> None:
    machine("910B3")
    other = {"path": "/opt/other/ascend-docker-hook-2", "args": ["x"]}
    container.spec["hooks"] = {"prestart": [other], "poststart": None}
    assert container.given("ASCEND_VISIBLE_DEVICES=0")["hooks"] == {"prestart": [other], "poststart": None}


def test_sockets_for_the_device_plugin(container: Container, host: Host) -> None:
    host.shell("mkdir -p /etc/x; mount -t tmpfs t /run; mkdir /run/docker /run/containerd; touch /run/docker.sock")
    try:
        container.spec["mounts"].append({"destination": "/run/docker", "type": "bind", "source": "/x"})
        mounts = container.given("MOUNT_BY_RUNTIME_FOR_DP=")["mounts"]
    finally:
        host.shell("umount /run")
    assert [mount["destination"] for mount in mounts] == ["/proc", "/run/docker", "/run/docker.sock", "/run/containerd"]
    assert mounts[-1] == {
        "destination": "/run/containerd",
        "type": "bind",
        "source": "/run/containerd",
        "options": ["rbind", "rprivate", "ro"],
    }
    assert mounts[1]["source"] == "/x"
    container.spec["mounts"] = []
    assert container.given("X=MOUNT_BY_RUNTIME_FOR_DP=1")["mounts"] == []


# -- vNPUs


def vnpu_host(machine: Callable[..., None], host: Host) -> None:
    machine("310P3", templates=[("vir01", 1.0, 3000), ("vir04", 4.0, 12000)], aicores=8)
    host.nodes({"vdavinci148": (MAJOR, 90)})


def test_a_virtual_chip_is_cut_for_the_container(
    container: Container, machine: Callable[..., None], host: Host
) -> None:
    vnpu_host(machine, host)
    spec = container.given("ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04", "ASCEND_RUNTIME_OPTIONS=NODRV")
    assert paths(spec) == ["davinci148", "dvpp_cmdlist", *MANAGERS]
    assert spec["linux"]["devices"][0]["minor"] == 90
    assert "ASCEND_RUNTIME_OPTIONS=NODRV,VIRTUAL" in spec["process"]["env"]
    assert spec["hooks"]["poststop"] == [
        {"path": f"{HOME}/ascend-docker-destroy", "args": [f"{HOME}/ascend-docker-destroy", "3", "0", "148"]}
    ]
    state = open_state(host)
    assert (state.chip[3].vdevs[0].id, state.chip[3].vdevs[0].name) == (148, b"vir04")
    host.run(*spec["hooks"]["poststop"][0]["args"])
    assert open_state(host).chip[3].vdevs[0].id == 0


def open_state(host: Host) -> Any:
    from belay.agents.drivers.standin.state import Standin

    return Standin.open(host.folder / "state").state


@pytest.mark.parametrize(
    ("env", "options"),
    [([], "VIRTUAL"), (["ASCEND_RUNTIME_OPTIONS="], "VIRTUAL"), (["ASCEND_RUNTIME_OPTIONS=NODRV"], "NODRV,VIRTUAL")],
)
def test_options_of_a_cut_chip(
    container: Container, machine: Callable[..., None], host: Host, env: list[str], options: str
) -> None:
    vnpu_host(machine, host)
    lines = container.given("ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir01", *env)["process"]["env"]
    assert [line for line in lines if "RUNTIME_OPTIONS" in line] == [f"ASCEND_RUNTIME_OPTIONS={options}"]


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (["ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir99"], "'vir99' is not a vNPU template"),
        (["ASCEND_VISIBLE_DEVICES=2,3", "ASCEND_VNPU_SPECS=vir01"], "exactly one chip"),
        (["ASCEND_VISIBLE_DEVICES=256", "ASCEND_VNPU_SPECS=vir01"], "exactly one chip"),
        (["ASCEND_VISIBLE_DEVICES=9", "ASCEND_VNPU_SPECS=vir01"], "no chip 9"),
        (["ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir16"], "no vNPU of template vir16 could be made"),
    ],
)
def test_virtual_chips_that_cannot_be(
    container: Container, machine: Callable[..., None], host: Host, env: list[str], reason: str
) -> None:
    vnpu_host(machine, host)
    assert reason in container.refused(*env)


def test_a_virtual_chip_of_a_failed_start_is_given_back(
    container: Container, machine: Callable[..., None], host: Host
) -> None:
    vnpu_host(machine, host)
    host.shell("rm /dev/vdavinci148")
    assert "/dev/vdavinci148: No such file" in container.refused("ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04")
    assert open_state(host).chip[3].vdevs[0].id == 0
    vnpu_host(machine, host)
    host.write("/etc/runc-exit", "3")
    done = container.create(
        "ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04", before=["--root", str(container.folder)]
    )
    assert done.returncode == 3 and open_state(host).chip[3].vdevs[0].id == 0
    # runc has kept a state: its delete will run the hook
    (container.folder / "c-1").mkdir()
    (container.folder / "c-1/state.json").write_text("{}")
    done = container.create(
        "ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04", before=["--root", str(container.folder)]
    )
    host.shell("rm /etc/runc-exit")
    assert done.returncode == 3 and open_state(host).chip[3].vdevs[0].id == 148


def test_who_ends_the_runtime_ends_runc_and_the_vnpu(
    container: Container, machine: Callable[..., None], host: Host
) -> None:
    vnpu_host(machine, host)
    host.shell("mkfifo /etc/fifo")
    host.write("/usr/local/bin/docker-runc", "#!/bin/sh\nkill -TERM $PPID\nread line </etc/fifo\n", "0755")
    try:
        done = container.create("ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04", before=["--root", "/nowhere"])
    finally:
        host.shell("rm /usr/local/bin/docker-runc /etc/fifo")
    assert done.returncode == 128 + 15 and open_state(host).chip[3].vdevs[0].id == 0


def test_static_virtual_chips_are_only_named(container: Container, machine: Callable[..., None], host: Host) -> None:
    machine("310P3")
    host.nodes({"vdavinci100": (MAJOR, 91)})
    spec = container.given("ASCEND_VISIBLE_DEVICES=100", "ASCEND_RUNTIME_OPTIONS=VIRTUAL", "ASCEND_VNPU_SPECS=vir04")
    assert paths(spec)[0] == "davinci100" and spec["linux"]["devices"][0]["minor"] == 91
    assert "poststop" not in spec["hooks"]


@pytest.mark.parametrize(
    "arguments", [["1", "2"], ["a", "0", "1"], ["0", "0", "65536"], ["-1", "0", "1"], ["0", "0", "1", "2"]]
)
def test_the_destroy_hook_takes_numbers_only(host: Host, arguments: list[str]) -> None:
    done = host.run(f"{HOME}/ascend-docker-destroy", *arguments, check=False)
    assert done.returncode == 1 and "destroy:" in done.stderr


# -- CDI


def test_cdi_mode_needs_no_hook(container: Container, machine: Callable[..., None], host: Host) -> None:
    machine("910B3")
    host.write(
        f"{LISTS}/base.list", f"# driver\n\n {DRIVER}/lib64\n/usr/local/dcmi\n/nowhere\n{DRIVER}/lib64/*\n", "0440"
    )
    host.write(f"{HOME}/ascend_docker_runtime_install.info", "version=1\ninjection-mode=cdi\n", "0640")
    try:
        container.spec["process"]["env"] = ["ASCEND_VISIBLE_DEVICES=1", "LD_LIBRARY_PATH=/cann"]
        spec = container.given()
        bare = container.given(
            "ASCEND_VISIBLE_DEVICES=1", "ASCEND_RUNTIME_OPTIONS=NODRV", "ASCEND_RUNTIME_MOUNTS=,Other"
        )
        plain = container.given("A=b")
    finally:
        host.write(f"{HOME}/ascend_docker_runtime_install.info", "injection-mode=legacy\n", "0640")
    assert "hooks" not in spec
    assert paths(spec) == ["dvpp_cmdlist", *MANAGERS, "davinci1"]
    assert [mount["destination"] for mount in spec["mounts"][1:]] == [f"{DRIVER}/lib64", "/usr/local/dcmi"]
    assert spec["mounts"][1]["options"] == ["rbind", "rprivate", "ro"]
    assert f"LD_LIBRARY_PATH={DRIVER}/lib64/common:{DRIVER}/lib64/driver:/cann" in spec["process"]["env"]
    assert len(bare["mounts"]) == 1 and paths(bare) == paths(spec)
    assert plain["process"]["env"] == ["PATH=/bin", "A=b", "ASCEND_DOCKER_RUNTIME=True"]


# -- what is broken


def test_containers_without_chips_start_whatever_is_broken(container: Container, host: Host) -> None:
    host.shell(f"mkdir /etc/kept; mv {HOME}/* /usr/local/dcmi /etc/kept/; cp /etc/kept/belay-oci-runtime {HOME}/")
    host.write(f"{HOME}/ascend_docker_runtime_install.info", "\0\xff nonsense", "0666")
    try:
        assert "ASCEND_DOCKER_RUNTIME=True" in container.given("A=b")["process"]["env"]
        assert "ascend-docker-hook: No such file" in container.refused("ASCEND_VISIBLE_DEVICES=0")
    finally:
        host.shell(f"rm -f {HOME}/*; mv /etc/kept/dcmi /usr/local/dcmi; mv /etc/kept/* {HOME}/; rmdir /etc/kept")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"process":null}',
        '{"process":{"env":{}}}',
        '{"process":{"env":[1]}}',
        '{"process":{"env":["A=\\u0000"]}}',
        "[]",
    ],
)
def test_files_that_only_runc_can_judge_go_to_runc_unchanged(container: Container, host: Host, text: str) -> None:
    container.file.write_text(text)
    host.shell("rm -f /etc/runc-called")
    assert container.call().returncode == 0 and container.ran()
    assert container.file.read_text() == text


def test_a_pipe_in_the_place_of_the_file_is_refused_at_once(container: Container, host: Host) -> None:
    os.mkfifo(container.file)
    host.shell("rm -f /etc/runc-called")
    done = container.call()
    assert done.returncode == 1 and not container.ran()
    assert "config.json: is not a regular file" in done.stderr


def test_a_damaged_file_that_asks_for_chips_is_refused_with_its_place(container: Container, host: Host) -> None:
    container.file.write_text('{"process":{"env":["ASCEND_VISIBLE_DEVICES=0"]},\n "x":}')
    host.shell("rm -f /etc/runc-called")
    done = container.call()
    assert done.returncode == 1 and not container.ran()
    assert "config.json:2:6: no JSON value" in done.stderr


def test_an_endless_environment_is_refused_where_it_may_ask_for_chips(container: Container, host: Host) -> None:
    """It is not read to its end; runc would start the container, without the chips that it asks for."""
    many = [f"A{number}=b" for number in range(65_536)]
    assert "process.env has more than 65535 lines" in container.refused(*many, "ASCEND_VISIBLE_DEVICES=0")
    host.shell("rm -f /etc/runc-called")
    container.create(*many)
    assert container.ran()


def test_without_a_bundle_runc_says_what_it_thinks(container: Container, host: Host) -> None:
    assert host.run(f"{HOME}/belay-oci-runtime", "create", "c", cwd=container.folder).returncode == 0
    assert container.ran()[1:] == ["create", "c"]


def hang(host: Host) -> None:
    entry = open_state(host).overrides[0]
    entry.name, entry.remaining, entry.delay_ms, entry.phy = b"dcmi_init", -1, 30_000, -1


def test_a_driver_that_is_away_or_foreign_or_hangs(
    container: Container, machine: Callable[..., None], host: Host
) -> None:
    machine("910B3")
    host.shell("mv /usr/local/dcmi/libdcmi.so /usr/local/dcmi/away")
    assert "libdcmi.so was found nowhere; is the NPU driver installed?" in container.refused("ASCEND_VISIBLE_DEVICES=0")
    host.shell("mv /usr/local/dcmi/away /usr/local/dcmi/libdcmi.so; chmod 0777 /usr/local/dcmi/libdcmi.so")
    assert "not root's alone" in container.refused("ASCEND_VISIBLE_DEVICES=0")
    host.shell("chmod 0555 /usr/local/dcmi/libdcmi.so")
    host.env["BELAY_OCI_DRIVER_SECONDS"] = "1"
    try:
        hang(host)
        assert "the NPU driver did not answer 'identify' in 1 s" in container.refused("ASCEND_VISIBLE_DEVICES=0")
    finally:
        del host.env["BELAY_OCI_DRIVER_SECONDS"]
        machine("910B3")
    assert paths(container.given("ASCEND_VISIBLE_DEVICES=0"))


def test_what_others_could_have_changed_is_refused(
    container: Container, machine: Callable[..., None], host: Host
) -> None:
    machine("910B3")
    container.save()
    container.file.chmod(0o666)
    container.spec["process"]["env"].append("ASCEND_VISIBLE_DEVICES=0")
    container.file.write_text(json.dumps(container.spec))
    host.shell("rm -f /etc/runc-called")
    done = container.call()
    assert done.returncode == 1 and "config.json: mode 0666 lets others write; chmod go-w it" in done.stderr
    container.file.chmod(0o644)
    host.shell(f"chmod 0755 {HOME}/belay-oci-runtime; chmod 0772 {HOME}")
    assert "lets others write" in container.refused("ASCEND_VISIBLE_DEVICES=0")
    host.shell(f"chmod 0755 {HOME}; chmod 6755 /usr/local/bin/runc")
    assert "setuid" in container.refused("ASCEND_VISIBLE_DEVICES=0")
    host.shell("chmod 0755 /usr/local/bin/runc")


def test_odd_arguments_pass_unless_chips_are_asked_for(
    container: Container, machine: Callable[..., None], host: Host
) -> None:
    machine("910B3")
    assert container.create("A=b", before=["--criu", "x;y"]).returncode == 0
    done = container.create("ASCEND_VISIBLE_DEVICES=0", before=["--criu", "x;y"])
    assert done.returncode == 1 and "only letters, digits, blanks" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["start", "create"], ["delete", "--force", "create"], ["--version"], [], ["kill", "c", "9"]]
)
def test_everything_else_is_runcs(container: Container, host: Host, arguments: list[str]) -> None:
    before = container.save()
    host.shell("rm -f /etc/runc-called")
    host.run(f"{HOME}/ascend-docker-runtime", *arguments, cwd=container.folder)
    assert container.ran() == ["/usr/local/bin/runc", *arguments]
    assert container.file.read_text() == before


def test_docker_runc_is_preferred_and_this_program_never_calls_itself(container: Container, host: Host) -> None:
    host.shell(f"ln -s {HOME}/belay-oci-runtime /usr/local/bin/docker-runc")
    try:
        assert container.create("A=b").returncode == 0 and container.ran()[0] == "/usr/local/bin/runc"
        host.shell("rm /usr/local/bin/docker-runc; mkdir -p /etc/real; cp /usr/local/bin/runc /etc/real/docker-runc")
        host.shell("ln -s /etc/real/docker-runc /usr/local/bin/docker-runc")
        assert container.create("A=b").returncode == 0 and container.ran()[0] == "/etc/real/docker-runc"
    finally:
        host.shell("rm -f /usr/local/bin/docker-runc")


def test_a_host_without_runc_says_so(container: Container, host: Host) -> None:
    container.save()
    done = host.run(
        "env", "PATH=/nowhere", f"{HOME}/belay-oci-runtime", "create", "c", check=False, cwd=container.folder
    )
    assert done.returncode == 1 and "neither docker-runc nor runc is on PATH; install runc" in done.stderr


def test_the_log_is_bounded_and_closed_to_others(
    container: Container, machine: Callable[..., None], host: Host
) -> None:
    machine("910B3")
    folder = "/var/log/ascend-docker-runtime"
    host.shell(f"mkdir -p {folder}; rm -f {folder}/*; head -c 2097152 /dev/zero >{folder}/runtime-run.log")
    container.given("ASCEND_VISIBLE_DEVICES=0")
    sizes = host.shell(f"stat -c '%n %s %a' {folder}/*").splitlines()
    assert sizes[1].endswith("runtime-run.log.1 2097152 644")
    assert sizes[0].startswith(f"{folder}/runtime-run.log ") and sizes[0].endswith(" 400") and len(sizes) == 2
    container.refused("ASCEND_VISIBLE_DEVICES=0\n2026-01-01 [INFO] made up")
    assert "made up" not in [line[:7] for line in host.read(f"{folder}/runtime-run.log").splitlines()]
    assert all(line.startswith("20") for line in host.read(f"{folder}/runtime-run.log").splitlines())
