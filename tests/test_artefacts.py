"""`belay import`: artefacts of Flux and OCI image layouts as a source."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from belay.engine import cli
from belay.engine.source import GitSource, SourceConfig

FILES = {"desired/a.yaml": b"a: 1\n", "./policies/b.yaml": b"b: 1\n"}


def packed(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
        for member in more:
            archive.addfile(member)
    return data.getvalue()


def layout(folder: Path, layer: bytes) -> str:
    """An image layout as `flux push artifact` and `oras` fill registries with; returns the manifest's digest."""

    def blob(data: bytes) -> dict[str, object]:
        value = hashlib.sha256(data).hexdigest()
        (folder / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (folder / "blobs/sha256" / value).write_bytes(data)
        return {"digest": f"sha256:{value}", "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.cncf.flux.config.v1+json", **blob(b"{}")},
        "layers": [{"mediaType": "application/vnd.cncf.flux.content.v1.tar+gzip", **blob(layer)}],
    }
    row = {"mediaType": manifest["mediaType"], **blob(json.dumps(manifest).encode())}
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [row]}))
    return str(row["digest"])


def belay(*words: object) -> Result:
    return CliRunner().invoke(cli.main, ["import", *map(str, words)])


def test_a_source_follows_what_was_imported(tmp_path: Path) -> None:
    archive, repository = tmp_path / "a.tar.gz", tmp_path / "state.git"
    archive.write_bytes(packed(FILES))
    digest = f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
    done = belay(archive, repository, "--digest", digest, "--revision", "main@sha1:0123")
    assert done.exit_code == 0, done.output
    assert "2 files" in done.stdout
    assert "as before" in belay(archive, repository).stdout

    source = GitSource(SourceConfig(url=str(repository)), tmp_path / "mirror")
    first = source.fetch().revision
    assert first is not None and set(first.files) == {"desired/a.yaml", "policies/b.yaml"}
    folder = tmp_path / "layout"
    digest = layout(folder, packed({**FILES, "desired/a.yaml": b"a: 2\n"}))
    assert belay(folder, repository, "--digest", digest).exit_code == 0
    second = source.fetch(first).revision
    assert second is not None and set(second.changed) == {"desired/a.yaml"}
    assert source.read(second.files.values())[second.files["desired/a.yaml"]] == b"a: 2\n"


def test_what_an_archive_says_about_line_ends_changes_no_byte(tmp_path: Path) -> None:
    archive, repository = tmp_path / "a.tar.gz", tmp_path / "state.git"
    files = {".gitattributes": b"* text eol=lf ident working-tree-encoding=UTF-16\n", "desired/a.yaml": b"a: $Id$\r\n"}
    archive.write_bytes(packed(files))
    assert belay(archive, repository).exit_code == 0
    command = ["git", "--git-dir", str(repository), "cat-file", "blob", "HEAD:desired/a.yaml"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"a: $Id$\r\n"


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (packed({"../out": b""}), "not a plain file below the root"),
        (packed({"/etc/passwd": b""}), "not a plain file below the root"),
        (packed({"desired/.GIT/hooks/x": b""}), "not a plain file below the root"),
        (packed({}, link("desired/a.yaml", "/etc/shadow")), "not a plain file below the root"),
        (packed({}), "holds no file"),
        (b"hello", "not a gzipped archive"),
        (packed(FILES)[:-20], "not a gzipped archive"),
    ],
    # an archive holds the time at which it was packed
    ids=["above", "absolute", "hooks", "link", "empty", "text", "cut"],
)
def test_a_hostile_archive_writes_nothing(data: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(data)
    done = belay(tmp_path / "a.tar.gz", tmp_path / "state.git")
    assert done.exit_code == 2 and match in done.stderr
    assert not (tmp_path / "state.git").exists()


def test_only_a_repository_or_an_empty_place_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(packed(FILES))
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes").write_text("mine")
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (other, file):
        done = belay(tmp_path / "a.tar.gz", place)
        assert (
            done.exit_code == 2
            and "is not a bare Git repository" in done.stderr
            and "does not exist yet" in done.stderr
        )
    assert sorted(path.name for path in other.iterdir()) == ["notes"] and file.read_text() == "mine"
    (tmp_path / "volume").mkdir()
    assert belay(tmp_path / "a.tar.gz", tmp_path / "volume").exit_code == 0, "an empty volume becomes one"
    done = belay(other, tmp_path / "new.git")
    assert done.exit_code == 2 and "no OCI image layout" in done.stderr
    done = belay(tmp_path / "absent", tmp_path / "new.git")
    assert done.exit_code == 2 and "cannot be read: No such file" in done.stderr
    assert not (tmp_path / "new.git").exists()


def test_what_has_another_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(packed(FILES))
    done = belay(tmp_path / "a.tar.gz", tmp_path / "state.git", "--digest", "sha256:" + "0" * 64)
    assert done.exit_code == 2 and "not sha256:000" in done.stderr
    folder = tmp_path / "layout"
    layout(folder, packed(FILES))
    assert belay(folder, tmp_path / "state.git", "--digest", "sha256:" + "0" * 64).exit_code == 2
    for blob in (folder / "blobs/sha256").iterdir():
        blob.write_bytes(blob.read_bytes() + b" ")
    done = belay(folder, tmp_path / "state.git")
    assert done.exit_code == 2 and "is not what its name says" in done.stderr
    assert not (tmp_path / "state.git").exists()
