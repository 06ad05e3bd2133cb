"""`belay check storage`: every finding says what is wrong, why and what to do, on real folders and mounts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from agents.storage import check as checking
from agents.storage import probes
from agents.storage.check import check_folder, check_mount
from agents.storage.exports import check_exports
from agents.storage.findings import Finding
from agents.training.checkpoint.places import Mount
from engine.cli import main

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
    code = "import os, sys; from pathlib import Path; from agents.storage.probes import main; os.setuid(65533); "
    code += f"main(Path({str(tmp_path)!r}), 1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    said = [json.loads(line) for line in done.stdout.splitlines() if "check" in line]
    assert [one["check"] for one in said] == ["write"] and "root_squash" in said[0]["cause"]


def test_a_squashed_owner_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the file really belongs to another user than the one that made it, as after a server's squash
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    (found,) = [one for one in probes.rights(tmp_path) if one.check == "owner"]
    assert found.state == "error" and "user 4242 belongs to user" in found.found and "all_squash" in found.cause


def test_a_server_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    silent = tmp_path / "silent"
    silent.write_text('#!/bin/sh\necho \'{"begins": "locks"}\'\nexec sleep 60\n')
    silent.chmod(0o755)
    # the process of the probes goes silent, as one that waits for a server in the kernel
    monkeypatch.setattr(checking.sys, "executable", str(silent))
    found = list(check_folder(tmp_path, 1 << 20, 0.3, table=""))
    assert [(one.check, one.state) for one in found] == [("locks", "error")] and time.monotonic() - begin < 10
    assert "nc -z SERVER 2049" in found[0].next_step


def test_a_name_that_is_missing_while_it_is_replaced_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_atomic(path: str, times: int) -> None:
        for _ in range(times):
            os.unlink(path)
            time.sleep(0.001)
            Path(path).write_bytes(bytes(8192))

    class Writer(threading.Thread):
        exitcode = 0

    class Threads:
        Process = Writer

    monkeypatch.setattr(probes, "_rewrite", not_atomic)
    monkeypatch.setattr(probes.multiprocessing, "get_context", lambda _: Threads)
    (found,) = probes.renames(tmp_path)
    assert found.state == "error" and "not atomic" in found.found
