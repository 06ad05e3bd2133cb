"""What ``belay checkpoint check`` says of a place: mounts as the kernel lists them, rights, locks, a real folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from belay.agents.training.checkpoint import places
from belay.engine.cli import main

SIZE = 8 << 20
LINE = "36 35 0:61 / {point} rw,relatime shared:1 - {kind} {source} rw,{options}"


def table(folder: Path, kind: str, options: str, source: str = "nas1:/export/ckpt") -> str:
    root = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw"
    point = str(folder).replace(" ", "\\040")
    return "\n".join([root, LINE.format(point=point, kind=kind, source=source, options=options)])


def test_a_good_folder_has_facts_only(tmp_path: Path):
    report = places.check(tmp_path, SIZE, table=table(tmp_path, "nfs4", "vers=4.2,hard,proto=tcp,local_lock=none"))
    assert not report.errors and not report.warnings
    text = "\n".join(report.facts)
    assert "nfs4 from nas1:/export/ckpt" in text and "version 4.2" in text and "locks hold" in text and "MB/s" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("nfs4", "vers=4.2,soft", "the mount is soft"),
        ("nfs", "vers=3,nolock,hard", "locks are local"),
        ("nfs", "vers=3,hard", "needs lockd"),
        ("nfs4", "vers=4.1,hard,wsize=32768", "wsize=32768 is small"),
        ("nfs4", "vers=4.2,ro,hard", "read-only"),
        ("tmpfs", "size=1g", "is memory"),
        ("overlay", "lowerdir=/x", "container's own layer"),
    ],
)
def test_mistakes_of_mounts_are_named(tmp_path: Path, kind: str, options: str, said: str):
    report = places.check(tmp_path, SIZE, table=table(tmp_path, kind, options))
    assert said in "\n".join([*report.errors, *report.warnings])


def test_the_nearest_mount_counts_and_spaces_are_read(tmp_path: Path):
    folder = tmp_path / "with space"
    found = places.mount_of(folder / "deeper", table(folder, "nfs4", "vers=4.2"))
    assert found is not None and (found.kind, found.point, found.value("vers")) == ("nfs4", str(folder), "4.2")
    other = places.mount_of(tmp_path / "with spaces", table(folder, "nfs4", "vers=4.2"))
    assert other is not None and other.kind == "ext4"
    assert places.mount_of(folder, "rubbish\n1 2 3\n") is None


def test_squashed_root_is_seen_by_the_owner_of_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    errors = places.check(tmp_path, SIZE).errors
    assert len(errors) == 1 and "squashed" in errors[0] and "no_root_squash" in errors[0]


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EACCES, "root_squash"), (errno.ESTALE, "mount it again"), (errno.EDQUOT, "quota")]
)
def test_a_refusal_comes_with_its_likely_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str):
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(places, "_rights", refuse)
    assert said in places.check(tmp_path, SIZE).errors[0]


def test_locks_that_do_not_hold_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert "given twice" in places.check(tmp_path, SIZE).errors[0]


def test_the_verb_reports_errors_by_its_exit_code(tmp_path: Path):
    done = CliRunner().invoke(main, ["checkpoint", "check", str(tmp_path), "--size", "8"])
    assert done.exit_code == (1 if "error:" in done.output else 0) and "8 MiB" in done.output
