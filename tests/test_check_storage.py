"""`belay check storage`: every finding says what is wrong, why and what to do, on real folders and mounts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from belay.agents.storage import check as checking
from belay.agents.storage import probes
from belay.agents.storage.check import check_folder, check_mount, located
from belay.agents.storage.exports import check_exports
from belay.agents.storage.findings import Finding
from belay.agents.training.checkpoint.places import Mount
from belay.engine.cli import main

ROOT = Path(__file__).resolve().parents[1]
STORAGE = ROOT / "deploy" / "storage"
GOOD = "rw,relatime,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp"


def wrong(found: list[Finding]) -> dict[str, str]:
    """Check → state of what is neither right nor a note; each with a cause and a next step."""
    assert all(one.cause and one.next_step for one in found if one.state not in ("ok", "unknown"))
    return {one.check: one.state for one in found if one.state not in ("ok", "note")}


def test_a_sound_folder_passes_and_stays_as_it_was(tmp_path: Path) -> None:
    found = list(check_folder(tmp_path, 8 << 20, 30, checkpoint=1 << 20))
    assert set(wrong(found)) <= {"fsync", "room", "small files"}, found
    tried = {one.check for one in found}
    assert {*probes.PROBES, "mount", "speed", "checkpoint", "room"} <= tried
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_findings_and_ends_with_1_for_errors(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["check", "storage", str(tmp_path), "--size", "4Mi", "-o", "json"])
    assert done.exit_code == 0, done.output
    assert {"check", "state", "found"} <= set(json.loads(done.output)["findings"][0])
    done = CliRunner().invoke(main, ["check", "storage", str(tmp_path), "--size", "4Mi", "--checkpoint", "999999Ti"])
    assert (
        done.exit_code == 1
        and "elastic training waits 900 s" in done.output
        and "two checkpoints do not fit" in done.output
    )
    assert "next:" in done.output
    for words, said in (
        ([], "nothing to check"),
        ([str(tmp_path), "--size", "big"], "write a size"),
        ([str(tmp_path), "--size", "65Gi"], "at most 64Gi"),
    ):
        done = CliRunner().invoke(main, ["check", "storage", *words])
        assert done.exit_code == 2 and said in done.output, done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (GOOD, ""),
        (GOOD.replace("hard", "soft"), "writes are lost"),
        (GOOD + ",nolock", "other hosts do not see locks"),
        (GOOD + ",local_lock=all", "other hosts do not see locks"),
        (GOOD.replace("4.2", "3"), "lockd and statd"),
        (GOOD.replace("tcp", "udp"), "damage data"),
        (GOOD + ",sync", "every write waits"),
        (GOOD + ",noac", "asks the server"),
        (GOOD.replace("wsize=1048576", "wsize=32768"), "wsize is 32768"),
        (GOOD.replace("rw", "ro", 1), "is read-only"),
    ],
)
def test_options_of_a_mount_are_judged(options: str, said: str) -> None:
    found = list(check_mount(Mount("/job/output", "nfs4", "nfs.example.com:/data", frozenset(options.split(",")))))
    others = [one for one in found if one.state != "ok"]
    assert [said in one.found for one in others] == ([True] if said else []), found
    wrong(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/data 10.0.0.0/16(rw,sync,root_squash)\n", ""),
        ("# none\n\n", "no folder is exported"),
        ("/data 10.0.0.0/16 (rw,sync)\n", "they are for everybody"),
        ("/data\n", "names no client"),
        ("data 10.0.0.1(rw)\n", "not absolute"),
        ("/data *(rw,sync)\n", "every host may mount"),
        ("/data a(rw,async)\n", "async"),
        ("/data a(rw,all_squash)\n", "all_squash without anonuid"),
        ("/data a(rw,no_root_squash)\n", "root of every client"),
        ("/data a(rw,insecure)\n", "any process"),
        ("/data a\n", "read-only, which is the default"),
        ("/data -async \\\n  a(rw)\n", "async"),
        ("/data -sync,rw\n", "names no client"),
        ('"/data set" a(rw,sync) # b(async)\n', ""),
        ("/data a(rw,sync\n", "is no CLIENT"),
    ],
)
def test_mistakes_in_exports_are_named(text: str, said: str) -> None:
    found = check_exports(text)
    others = [one for one in found if one.state != "ok"]
    assert bool(others) == bool(said) and (not said or any(said in one.found for one in others)), found
    assert all(one.cause and one.next_step for one in others)


def test_what_is_shipped_passes_the_checks() -> None:
    found = check_exports((STORAGE / "exports").read_text())
    assert wrong(found) == {}
    volumes = [d for d in yaml.safe_load_all((STORAGE / "volumes.yaml").read_text()) if d["kind"] == "PersistentVolume"]
    exported = {line.split()[0] for line in (STORAGE / "exports").read_text().splitlines() if line.startswith("/")}
    assert {one["spec"]["nfs"]["path"] for one in volumes} == exported
    for one in volumes:
        options = frozenset([*one["spec"]["mountOptions"], "proto=tcp"])
        assert wrong(list(check_mount(Mount("/job", "nfs4", "s:/e", options)))) == {}, one["metadata"]["name"]
    claims = {
        d["metadata"]["name"]
        for d in yaml.safe_load_all((STORAGE / "volumes.yaml").read_text())
        if d["kind"] == "PersistentVolumeClaim"
    }
    (job,) = yaml.safe_load_all((STORAGE / "job.yaml").read_text())
    pod = job["spec"]["replicaSpecs"]["Master"]["template"]["spec"]
    assert {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v} == claims


def test_a_user_without_rights_learns_the_cause(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give up its rights to a folder")
    tmp_path.chmod(0o700)
    code = "import os, sys; from pathlib import Path; from belay.agents.storage.probes import main; os.setuid(65533); "
    code += f"main(Path({str(tmp_path)!r}), 1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    said = [json.loads(line) for line in done.stdout.splitlines() if "check" in line]
    assert [one["check"] for one in said] == ["write"] and "root_squash" in said[0]["cause"]


def test_a_squashed_owner_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the file really belongs to another user than the one that made it, as after a server's squash
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    (found,) = [one for one in probes.rights(tmp_path) if one and one.check == "owner"]
    assert found.state == "error" and "user 4242 belongs to user" in found.found and "all_squash" in found.cause


class Silent:
    """A process of probes that began one and says nothing more, as one that waits for a server in the kernel."""

    def __init__(self, *_: object, **__: object) -> None:
        reading, self._kept = os.pipe()
        os.write(self._kept, b'{"begins": "locks"}\n')
        self.stdout = os.fdopen(reading, "rb")
        self.killed = False

    def kill(self) -> None:
        os.close(self._kept)

    def wait(self, seconds: float) -> None:
        raise subprocess.TimeoutExpired("probes", seconds)


def test_a_server_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking.subprocess, "Popen", Silent)
    found = list(check_folder(tmp_path, 1 << 20, 0.02, checkpoint=1 << 30, table=""))
    assert [(one.check, one.state) for one in found] == [("locks", "error"), ("checkpoint", "unknown")]
    assert "nc -z SERVER 2049" in found[0].next_step


class SlowStore:
    """A store of ``rate`` bytes a second by a clock of its own: writes wait for it, or the sync after them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rate: float, direct: bool) -> None:
        self.now, self.rate, self.held = 0.0, rate, 0
        self.longest, self._said = 0.0, 0.0
        pwrite, fsync, preadv, opened = os.pwrite, os.fsync, os.preadv, os.open

        def write(handle: int, data: bytes, place: int) -> int:
            self.held += len(data)
            if direct:
                self.settle()
            return pwrite(handle, data, place)

        def sync(handle: int) -> None:
            self.settle()
            fsync(handle)

        def read(handle: int, into: list[bytearray], place: int) -> int:
            self.held += len(into[0])
            self.settle()
            return preadv(handle, into, place)

        def make(path: str, flags: int, mode: int = 0o777) -> int:
            if not direct and flags & os.O_DIRECT:
                raise OSError(22, "Invalid argument")
            return opened(path, flags, mode)

        monkeypatch.setattr(probes.os, "pwrite", write)
        monkeypatch.setattr(probes.os, "fsync", sync)
        monkeypatch.setattr(probes.os, "preadv", read)
        monkeypatch.setattr(probes.os, "open", make)
        monkeypatch.setattr(probes.time, "perf_counter", lambda: self.now)

    def settle(self) -> None:
        self.now += self.held / self.rate
        self.held = 0

    def run(self, probe: probes.Probing) -> list[Finding]:
        found = []
        for one in probe:
            self.longest = max(self.longest, self.now - self._said)
            self._said = self.now
            if one is not None:
                found.append(one)
        return found


@pytest.mark.parametrize("direct", [True, False], ids=["past-the-cache", "through-the-cache"])
@pytest.mark.parametrize(("rate", "said"), [(20e6, "20 MB/s"), (1e6, "1.0 MB/s"), (0.3e6, "0.3 MB/s")])
def test_a_slow_store_is_measured_and_not_called_silent(
    rate: float, said: str, direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowStore(monkeypatch, rate, direct)
    found = store.run(probes.speed(tmp_path, 64 << 20))
    assert [one.check for one in found] == ["speed", "rate"]
    assert found[0].found.count(said) == 3, found[0].found
    assert abs(int(found[1].found) / rate - 1) < 0.01
    assert store.longest < 30 / 2, "the process that waits hears of it in time"
    assert store.now < 5 * probes.LONGEST, "it ends, however slow the store is"


def test_a_server_that_makes_a_file_a_second_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(probes.time, "perf_counter", lambda: float(next(clock)))
    (found,) = [one for one in probes.small_files(tmp_path) if one is not None]
    assert found.state == "warning" and "1.0 files" in found.found and "Pack data sets" in found.next_step


def test_a_name_that_is_missing_while_it_is_replaced_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        """Removes the name, lets the reader look, and writes it again: what a store does that cannot rename."""

        exitcode = 0

        def __init__(self, target: object, args: tuple[str, int, float, object]) -> None:
            self.path, self.looks = Path(args[0]), 0

        def start(self) -> None:
            self.path.unlink()

        def is_alive(self) -> bool:
            self.looks += 1
            if self.looks == 2:
                self.path.write_bytes(bytes(8192))
            return self.looks < 2

        def join(self) -> None:
            assert self.path.exists()

    class Writers:
        Process = Writer

    monkeypatch.setattr(probes.multiprocessing, "get_context", lambda _: Writers)
    (found,) = [one for one in probes.renames(tmp_path) if one is not None]
    assert found.state == "error" and "not atomic" in found.found


def test_the_mount_behind_a_symbolic_link_is_judged(tmp_path: Path) -> None:
    real, export = tmp_path / "real", tmp_path / "export"
    (real / "output").mkdir(parents=True)
    export.mkdir()
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "here").symlink_to("link/output/../output")
    table = "".join(
        f"{number} 1 0:1 / {point} rw,relatime - {kind} {source} rw,soft\n"
        for number, point, kind, source in (
            (1, "/", "ext4", "/dev/a"),
            (2, real, "nfs4", "s:/e"),
            (3, export, "nfs4", "s:/f"),
        )
    )
    assert located(tmp_path / "here", table) == real / "output"
    assert located(tmp_path / "link" / "output", table) == real / "output"
    # a link inside an export is the server's to follow: asking for it could wait for ever
    (export / "away").symlink_to(real)
    assert located(export / "away" / "deeper", table) == export / "away" / "deeper"
    (tmp_path / "circle").symlink_to("circle")
    (found,) = check_folder(tmp_path / "circle", 1 << 20, 1, table=table)
    assert (found.check, found.state) == ("mount", "error") and "symbolic links" in found.found
    # nor behind FUSE, whose process may be gone or wait itself
    behind = table + f"4 1 0:1 / {tmp_path} rw - fuse.juicefs j rw\n"
    assert located(tmp_path / "here", behind) == tmp_path / "here"
    assert located(tmp_path / "absent" / "x", table) == tmp_path / "absent" / "x"


@pytest.mark.parametrize(
    ("system", "package", "unit"),
    [
        ("Debian, Ubuntu", "apt install nfs-kernel-server", "systemctl enable --now nfs-kernel-server"),
        ("CentOS 7", "yum install nfs-utils", "systemctl enable --now rpcbind nfs-server"),
        ("CentOS Stream", "dnf install nfs-utils", "systemctl enable --now nfs-server"),
        ("openEuler", "dnf install nfs-utils", "systemctl enable --now rpcbind nfs-server"),
    ],
)
def test_the_page_starts_the_server_on_each_system_before_it_exports(system: str, package: str, unit: str) -> None:
    """Only Debian starts what it installs; ``exportfs`` succeeds without a server."""
    page = (Path(__file__).resolve().parents[1] / "docs/storage.md").read_text()
    (row,) = [line for line in page.splitlines() if line.strip().startswith(f"| {system}")]
    assert package in row and f"`{unit}`" in row
    assert page.index(row) < page.index("exportfs -ra && exportfs -v")
