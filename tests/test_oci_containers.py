"""Containers made by the real runc through belay-oci-runtime, looked at from inside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.runtime_host import FUSE, HOME, LISTS, LOOP_CONTROL, ON_A_HOST, Host, busybox, libdcmi, need, oci_programs

__all__ = ["libdcmi", "oci_programs"]

RUNTIME = f"{HOME}/belay-oci-runtime"
DRIVER = "/usr/local/Ascend/driver"

pytestmark = ON_A_HOST


@pytest.fixture(scope="module")
def host(oci_programs: Sequence[Path], libdcmi: Path) -> Iterator[Host]:
    need("runc", "busybox")
    with Host() as made:
        made.install(oci_programs)
        made.driver(libdcmi)
        made.chips(even=LOOP_CONTROL)
        for name in ("common/liba.so", "driver/libb.so"):
            made.write(f"{DRIVER}/lib64/{name}", name, "0444")
        made.write("/usr/local/bin/npu-smi", "#!/bin/sh\n", "0555")
        made.shell(f"ln -s libdcmi.so /usr/local/dcmi/libdcmi.so.1; mkdir -p {LISTS}")
        yield made


class Bundle:
    """A busybox container."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.name, self.log, self.root = f"belay-{folder.name}", folder / "log.json", folder / "rootfs"
        programs = ("sh", "ls", "cat", "env", "grep", "mknod", "stat", "touch", "head", "test")
        busybox(self.root, programs, ("proc", "dev", "sys", "tmp"))
        subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=30)
        self.spec = json.loads((folder / "config.json").read_text())

    def run(self, script: str, *env: str) -> tuple[int, str]:
        """Create, start and wait for it; exit code and output of the script, or of the creation that failed."""
        self.spec["process"] |= {"terminal": False, "args": ["/bin/sh", "-c", script], "env": ["PATH=/bin", *env]}
        caps = self.spec["process"]["capabilities"]
        for names in caps.values():
            names.append("CAP_MKNOD")
        self.spec["root"]["readonly"] = False
        (self.folder / "config.json").write_text(json.dumps(self.spec))
        output = self.folder / "output"
        options = ["--log", str(self.log), "--log-format", "json"]
        with output.open("w") as file:
            made = subprocess.run(
                self.host.command(RUNTIME, *options, "create", "--bundle", str(self.folder), self.name),
                env=self.host.env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=60,
            )  # fmt: skip
        if made.returncode:
            return made.returncode, output.read_text()
        try:
            pid = json.loads(self.host.run("runc", "state", self.name).stdout)["pid"]
            self.host.run(RUNTIME, "start", self.name)
            self.host.run(
                "bash", "-c", f"for i in $(seq 300); do [ -e /proc/{pid}/exe ] || exit 0; sleep 0.1; done; exit 1"
            )
        finally:
            self.host.run(RUNTIME, "delete", "--force", self.name)
        return 0, output.read_text()


@pytest.fixture
def bundle(host: Host, tmp_path: Path) -> Bundle:
    host.write(f"{LISTS}/base.list", f"{DRIVER}/lib64\n/usr/local/bin/npu-smi\n/var/queue_schedule\n", "0440")
    return Bundle(host, tmp_path)


def test_exactly_what_was_asked_for(bundle: Bundle) -> None:
    code, text = bundle.run(
        "ls /dev | grep -E 'davinci|svm|hdc'; env; cat /proc/mounts; cat /usr/local/Ascend/driver/lib64/driver/libb.so;"
        "echo; touch /usr/local/Ascend/driver/lib64/x; touch /usr/local/bin/npu-smi;"
        "stat -c 'parent %a' /usr/local/bin;"
        "for d in 1 2; do head -c 0 /dev/davinci$d && echo opened $d; done;"
        "mknod /tmp/other c 10 235; head -c 0 /tmp/other;"
        "mknod /tmp/mine c 10 229; head -c 0 /tmp/mine && echo mine",
        "ASCEND_VISIBLE_DEVICES=1,2",
    )
    assert code == 0, text
    lines = text.splitlines()
    assert lines[:5] == ["davinci1", "davinci2", "davinci_manager", "devmm_svm", "hisi_hdc"]
    assert "ASCEND_DOCKER_RUNTIME=True" in lines
    assert f"LD_LIBRARY_PATH={DRIVER}/lib64/common:{DRIVER}/lib64/driver:/usr/lib64" in lines
    mounts = [line.split() for line in lines if line.startswith("overlay ")]
    assert [mount[1] for mount in mounts] == ["/usr/local/bin/npu-smi", f"{DRIVER}/lib64"]
    assert all({"ro", "nosuid"} <= set(mount[3].split(",")) for mount in mounts)
    assert "driver/libb.so" in lines and "parent 755" in lines
    assert text.count("Read-only file system") == 2
    assert {"opened 1", "opened 2", "mine"} <= set(lines)
    assert "can't open '/tmp/other': Operation not permitted" in text or "/tmp/other: Operation not permitted" in text


def test_a_container_without_chips_sees_none(bundle: Bundle) -> None:
    code, text = bundle.run("ls /dev; cat /proc/mounts; mknod /tmp/chip c 10 229; head -c 0 /tmp/chip; env")
    assert code == 0
    assert "davinci" not in text and "Ascend/driver/lib64 " not in text
    assert "/tmp/chip: Operation not permitted" in text or "'/tmp/chip': Operation not permitted" in text
    assert "ASCEND_DOCKER_RUNTIME=True" in text


@pytest.fixture(params=["as it is", "v2"])
def hierarchy(request: pytest.FixtureRequest, host: Host) -> Iterator[str]:
    """Cgroups as the machine has them, and version 2 alone, where programs in the kernel (BPF) judge devices: no file
    shows their rules, so only an open from inside does."""
    if request.param == "v2":
        host.shell("mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    yield request.param
    if request.param == "v2":
        host.shell("umount /sys/fs/cgroup")


@pytest.mark.parametrize("mode", ["legacy", "cdi"])
def test_only_granted_devices_can_be_opened_from_inside(
    bundle: Bundle, host: Host, oci_programs: Sequence[Path], hierarchy: str, mode: str
) -> None:
    if hierarchy == "v2":
        assert host.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup").stdout == "cgroup2fs\n"
    host.install(oci_programs, mode=mode)
    # chip 4 is one device of the kernel, every other chip and the managers are another
    script = (
        "head -c 0 /dev/davinci4 && echo granted; mknod /tmp/granted c 10 237; head -c 0 /tmp/granted && echo named;"
        "mknod /tmp/other c 10 235; head -c 0 /tmp/other && echo leak; [ -e /dev/davinci3 ] && echo leak; true"
    )
    code, text = bundle.run(script, "ASCEND_VISIBLE_DEVICES=4")
    host.install(oci_programs)
    assert code == 0, text
    assert {"granted", "named"} <= set(text.splitlines()) and "leak" not in text.splitlines(), text
    assert "/tmp/other" in text and "Operation not permitted" in text


def test_a_chip_that_another_container_has_cannot_be_opened_in_this_one(bundle: Bundle, hierarchy: str) -> None:
    """Even by a node that the container makes itself, with the right to make any."""
    code, text = bundle.run("mknod /tmp/chip c 10 237; head -c 0 /tmp/chip && echo leak; true")
    assert code == 0 and "leak" not in text.splitlines() and "Operation not permitted" in text, text


def test_links_of_the_image_lead_nowhere_outside(bundle: Bundle, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (bundle.root / "usr").mkdir()
    (bundle.root / "usr/local").symlink_to(f"../../../..{outside}")
    code, text = bundle.run("cat /proc/mounts; ls -l /usr", "ASCEND_VISIBLE_DEVICES=1")
    assert code == 0, text
    assert not list(outside.iterdir()), "the image's link let the mounter make files on the host"
    assert f" {outside}/Ascend/driver/lib64 overlay ro" in text


def test_links_of_the_image_inside_are_followed(bundle: Bundle) -> None:
    (bundle.root / "opt/real").mkdir(parents=True)
    (bundle.root / "usr").mkdir()
    (bundle.root / "usr/local").symlink_to("/opt/./real/../real")
    code, text = bundle.run(
        "cat /proc/mounts; cat /usr/local/Ascend/driver/lib64/common/liba.so", "ASCEND_VISIBLE_DEVICES=1"
    )
    assert code == 0 and " /opt/real/Ascend/driver/lib64 overlay ro" in text and "common/liba.so" in text


def test_an_endless_link_in_the_image_is_an_error(bundle: Bundle) -> None:
    (bundle.root / "usr").mkdir()
    (bundle.root / "usr/local").symlink_to("local")
    code, text = bundle.run("true", "ASCEND_VISIBLE_DEVICES=1")
    assert code == 1 and "too many links in the image" in text
    assert "too many links in the image" in bundle.log.read_text()


def test_no_driver_mounts_nothing(bundle: Bundle) -> None:
    code, text = bundle.run("cat /proc/mounts; ls /dev", "ASCEND_VISIBLE_DEVICES=1", "ASCEND_RUNTIME_OPTIONS= NODRV ")
    assert code == 0 and "Ascend" not in text and "davinci1" in text


def test_lists_by_name(bundle: Bundle, host: Host) -> None:
    host.write(f"{LISTS}/tools.list", "/usr/local/bin/npu-smi\n\n/usr/local//dcmi/../dcmi/libdcmi.so\n", "0440")
    code, text = bundle.run("cat /proc/mounts", "ASCEND_VISIBLE_DEVICES=1", "ASCEND_RUNTIME_MOUNTS= TOOLS ")
    assert code == 0, text
    assert [line.split()[1] for line in text.splitlines() if line.startswith("overlay ")] == [
        "/usr/local/bin/npu-smi", "/usr/local/dcmi/libdcmi.so",
    ]  # fmt: skip


def test_patterns_and_links_of_the_ub_driver(bundle: Bundle, host: Host) -> None:
    host.shell("cd /usr/local/dcmi; ln -sf /usr/local/bin/npu-smi libdcmi.away; mkdir -p sub; touch sub/libdcmi.x")
    host.write(
        f"{LISTS}/ub_driver.list", "/usr/local/dcmi/libd*\n/usr/local/dcmi/[xs]ub\n/usr/local/*/libdcmi.so\n", "0440"
    )
    try:
        code, text = bundle.run("cat /proc/mounts", "ASCEND_VISIBLE_DEVICES=1")
        without, other = bundle.run("cat /proc/mounts", "ASCEND_VISIBLE_DEVICES=1", "DISABLE_UB_MOUNT=True")
    finally:
        host.shell(f"rm {LISTS}/ub_driver.list; cd /usr/local/dcmi; rm -r libdcmi.away sub")
    assert code == 0, text
    found = {line.split()[1] for line in text.splitlines() if line.startswith("overlay ")}
    assert {"/usr/local/dcmi/libdcmi.so", "/usr/local/dcmi/libdcmi.so.1", "/usr/local/dcmi/sub"} <= found
    assert "/usr/local/dcmi/libdcmi.away" not in found
    assert without == 0 and "libdcmi" not in other


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (["ASCEND_RUNTIME_MOUNTS=nothere"], "nothere.list: No such file"),
        (["ASCEND_RUNTIME_MOUNTS=../../etc/base"], "is not the name of a list"),
        (["ASCEND_RUNTIME_MOUNTS=base,"], "is not the name of a list"),
        (["ASCEND_RUNTIME_OPTIONS=NODRV,NEW"], "'NEW' is neither NODRV nor VIRTUAL"),
        (["ASCEND_RUNTIME_OPTIONS=" + "NODRV," * 30], "longer than 128"),
        (["ASCEND_ALLOW_LINK=true"], "ASCEND_ALLOW_LINK: 'true' is neither True nor False"),
        (["DISABLE_UB_MOUNT=1"], "DISABLE_UB_MOUNT: '1' is neither True nor False"),
    ],
)
def test_wrong_settings_fail_the_container_in_words(bundle: Bundle, env: list[str], reason: str) -> None:
    code, text = bundle.run("true", "ASCEND_VISIBLE_DEVICES=1", *env)
    assert code == 1 and reason in text
    assert reason in json.loads(bundle.log.read_text().splitlines()[-1])["msg"]


def test_links_among_mounts_need_permission(bundle: Bundle, host: Host) -> None:
    host.write(f"{LISTS}/base.list", "/usr/local/dcmi/libdcmi.so.1\n", "0440")
    code, text = bundle.run("true", "ASCEND_VISIBLE_DEVICES=1")
    assert code == 1 and "is a symbolic link; ASCEND_ALLOW_LINK=True allows them" in text
    code, text = bundle.run("cat /proc/mounts", "ASCEND_VISIBLE_DEVICES=1", "ASCEND_ALLOW_LINK=True")
    assert code == 0 and " /usr/local/dcmi/libdcmi.so.1 overlay ro" in text


def test_sources_that_others_may_write_are_refused(bundle: Bundle, host: Host) -> None:
    host.shell(f"chmod 0666 {DRIVER}/lib64/driver/libb.so")
    code, text = bundle.run("true", "ASCEND_VISIBLE_DEVICES=1")
    host.shell(f"chmod 0444 {DRIVER}/lib64/driver/libb.so; chown 7 {DRIVER}/lib64/common")
    assert code == 1 and f"{DRIVER}/lib64/driver/libb.so: mode 0666 lets others write" in text
    code, text = bundle.run("true", "ASCEND_VISIBLE_DEVICES=1")
    host.shell(f"chown 0 {DRIVER}/lib64/common")
    assert code == 1 and f"{DRIVER}/lib64/common: belongs to user 7" in text


def test_long_lists_are_refused(bundle: Bundle, host: Host) -> None:
    host.write(f"{LISTS}/base.list", "/nowhere\n" * 128, "0440")
    assert bundle.run("true", "ASCEND_VISIBLE_DEVICES=1")[0] == 0
    host.write(f"{LISTS}/base.list", "/nowhere\n" * 129, "0440")
    code, text = bundle.run("true", "ASCEND_VISIBLE_DEVICES=1")
    assert code == 1 and "too long, more than 128 lines" in text


def test_a_cut_chip_lives_as_long_as_its_container(bundle: Bundle, host: Host, libdcmi: Path) -> None:
    from belay.agents.drivers.standin.state import Standin

    shape = {"chip_name": "310P3", "templates": [("vir04", 4.0, 12000)], "aicores": 8}
    state = host.driver(libdcmi, **shape).state
    host.nodes({"vdavinci148": FUSE, "dvpp_cmdlist": FUSE})
    code, text = bundle.run("ls /dev; env", "ASCEND_VISIBLE_DEVICES=3", "ASCEND_VNPU_SPECS=vir04")
    assert code == 0, text
    assert "davinci148" in text.split() and "vdavinci148" not in text and "ASCEND_RUNTIME_OPTIONS=VIRTUAL" in text
    assert state.chip[3].vdevs[0].id == 0, "runc delete ran the destroy hook"
    assert state.chip[3].vdevs[0].name == b"vir04"
    assert isinstance(Standin.open(host.folder / "state"), Standin)
    host.driver(libdcmi)


def test_cdi_mode_leaves_the_mounting_to_runc(bundle: Bundle, host: Host, oci_programs: Sequence[Path]) -> None:
    host.install(oci_programs, mode="cdi")
    try:
        code, text = bundle.run(
            "ls /dev; env; cat /proc/mounts; touch /usr/local/Ascend/driver/lib64/x; cat /usr/local/bin/npu-smi",
            "ASCEND_VISIBLE_DEVICES=1",
        )
        written = json.loads((bundle.folder / "config.json").read_text())
    finally:
        host.install(oci_programs)
    assert code == 0, text
    assert "davinci1" in text.split() and "davinci2" not in text and "#!/bin/sh" in text
    assert " /usr/local/Ascend/driver/lib64 overlay ro" in text and "Read-only file system" in text
    assert "hooks" not in written
