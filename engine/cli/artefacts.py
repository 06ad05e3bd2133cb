"""`belay import`: an artefact of Flux, or an OCI image layout, as a commit of a Git repository that Belay follows.

Flux's source-controller packs what it fetched and verified as a gzipped tar archive (``status.artifact`` of
its sources: url, digest, revision). An OCI artefact is such an archive as a layer, by the digest of its
manifest (OCI image layout: ``oci-layout``, ``index.json``, ``blobs/``).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import click

from belay.engine.cli.invocation import fails_clearly
from belay.engine.model.wording import counted

MOST_PACKED: Final = 64 * 1024 * 1024
MOST_BYTES: Final = 256 * 1024 * 1024
MOST_FILES: Final = 20_000
_SECONDS: Final = 120
_WHO: Final = {"NAME": "belay import", "EMAIL": "belay@localhost"}


@click.command(name="import", short_help="Put an artefact of Flux into a Git repository.")
@click.argument("artefact", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.argument("repository", metavar="REPOSITORY", type=click.Path(path_type=Path))
@click.option("--digest", metavar="sha256:…", help="What the artefact must have; another one is refused.")
@click.option("--revision", default="", help="What it is of (main@sha1:…), for the commit's message.")
@click.option("--branch", default="main", show_default=True)
@fails_clearly
def import_(artefact: Path, repository: Path, digest: str | None, revision: str, branch: str) -> None:
    """Commit the files of an artefact to a bare repository, which `Source` names as url. Nothing is committed when
    they are as before. FILE is a gzipped tar archive as Flux's source-controller serves it, DIR an OCI image layout.

    Example: belay import artefact.tar.gz /srv/git/state.git --revision main@sha1:4f2c
    """
    files = files_of(layer_of(artefact, digest) if artefact.is_dir() else _archive(artefact, digest), str(artefact))
    commit, fresh = committed(files, repository, branch, revision or artefact.name)
    click.echo(f"{commit[:12]}: {counted(len(files), 'file') if fresh else 'as before'}")


def files_of(packed: bytes, where: str) -> dict[str, bytes]:
    """The files of a gzipped tar archive, by path.

    Raises:
        InputError: no such archive, too large, or a member that is not a plain file below the root.
    """
    from belay.engine.errors import InputError

    try:
        data = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"is not a gzipped archive: {error}", where=where) from error
    if len(data) > MOST_BYTES:
        raise InputError(f"is larger than {MOST_BYTES >> 20} MiB unpacked", where=where)
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if member.isdir():
                    continue
                path = PurePosixPath(member.name)
                parts = [part for part in path.parts if part != "."]
                odd = path.is_absolute() or not parts or any(part == ".." or part.lower() == ".git" for part in parts)
                if odd or "\0" in member.name or not member.isfile():
                    raise InputError(f"{member.name[:200]!r} is not a plain file below the root", where=where)
                stream = archive.extractfile(member)
                found["/".join(parts)] = stream.read() if stream is not None else b""
                if len(found) > MOST_FILES:
                    raise InputError(f"has more than {MOST_FILES} files", where=where)
    except (tarfile.TarError, OSError, ValueError, OverflowError, UnicodeError) as error:
        raise InputError(f"is not a tar archive: {error}", where=where) from error
    if not found:
        raise InputError("holds no file", where=where)
    return found


def layer_of(layout: Path, digest: str | None) -> bytes:
    """The packed files of an OCI image layout with one manifest, every blob checked by its digest.

    Raises:
        InputError: no layout, several manifests, a blob that is missing or differs, no gzipped layer.
    """
    import msgspec

    from belay.engine.errors import InputError

    def described(data: bytes, where: str) -> Mapping[str, object]:
        try:
            return msgspec.json.decode(data, type=dict[str, object])
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise InputError(f"is not a description: {error}", where=where) from error

    def only(listed: object, why: str, ending: str = "") -> str:
        rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
        fits = [row for row in rows if str(row.get("mediaType", "")).endswith(ending)]
        if len(fits) != 1:
            raise InputError(f"{why}: {len(fits)} instead of one", where=str(layout))
        return str(fits[0].get("digest", ""))

    def blob(name: str) -> bytes:
        algorithm, _, value = name.partition(":")
        if algorithm != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise InputError(f"{name[:100]!r} is not a sha256 digest", where=str(layout))
        data = _read(layout / "blobs" / "sha256" / value)
        if hashlib.sha256(data).hexdigest() != value:
            raise InputError("is not what its name says", where=f"{layout}/blobs/sha256/{value}")
        return data

    if not (layout / "index.json").is_file():
        raise InputError(
            "is a folder without index.json, so no OCI image layout", where=str(layout),
            hint="Give the archive itself, or a folder that oras copy --to-oci-layout or skopeo copy … oci:DIR wrote.",
        )  # fmt: skip
    index = described(_read(layout / "index.json"), f"{layout}/index.json")
    name = only(index.get("manifests"), "manifests in index.json")
    if digest and digest != name:
        raise InputError(f"is {name}, not {digest[:100]}", where=str(layout))
    return blob(only(described(blob(name), name).get("layers"), "gzipped tar layers", "tar+gzip"))


def committed(files: Mapping[str, bytes], repository: Path, branch: str, message: str) -> tuple[str, bool]:
    """Commit exactly these files to a branch of a bare repository, which is made where it is missing.

    Returns:
        The commit, and whether it is a new one.

    Raises:
        InputError: git refused, or something else than a repository is there.
    """
    from belay.engine.errors import InputError

    if not repository.exists() or (repository.is_dir() and not any(repository.iterdir())):
        _git(None, {}, "init", "-q", "--bare", f"--initial-branch={branch}", str(repository))
    elif not _is_bare(repository):
        raise InputError(
            "is not a bare Git repository, and nothing is written to it", where=str(repository),
            hint="Name a path that does not exist yet or an empty folder; the repository is made there.",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="belay-import-") as scratch:
        tree = Path(scratch) / "tree"
        for path, data in files.items():
            file = tree / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        # the highest of all attributes files: what the archive says about line ends and filters changes no byte
        (repository / "info").mkdir(exist_ok=True)
        (repository / "info/attributes").write_text("* -text -ident -filter !eol !working-tree-encoding\n")
        more = {"GIT_INDEX_FILE": str(Path(scratch) / "index"), "GIT_WORK_TREE": str(tree)}
        _git(
            repository, more, "-c", "core.bare=false", "-c", "core.autocrlf=false", "add", "-A", "-f", ".", folder=tree
        )
        made = _git(repository, more, "write-tree")
        head = f"refs/heads/{branch}"
        before = _git(repository, {}, "for-each-ref", "--format=%(objectname)", head)
        if before and _git(repository, {}, "rev-parse", f"{before}^{{tree}}") == made:
            return before, False
        commit = _git(repository, {}, "commit-tree", made, *(("-p", before) if before else ()), "-m", message)
        # another import in between is refused
        _git(repository, {}, "update-ref", head, commit, before or "0" * 40)
        return commit, True


def _archive(file: Path, digest: str | None) -> bytes:
    from belay.engine.errors import InputError

    data = _read(file)
    found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if digest and digest != found:
        raise InputError(f"is {found}, not {digest[:100]}", where=str(file))
    return data


def _read(file: Path) -> bytes:
    from belay.engine.errors import InputError

    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_PACKED + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from error
    if len(data) > MOST_PACKED:
        raise InputError(f"is larger than {MOST_PACKED >> 20} MiB", where=str(file))
    return data


def _is_bare(repository: Path) -> bool:
    from belay.engine.errors import InputError

    try:
        return _git(repository, {}, "rev-parse", "--is-bare-repository") == "true"
    except InputError:
        return False


def _git(repository: Path | None, more: Mapping[str, str], *words: str, folder: Path | None = None) -> str:
    from belay.engine.errors import InputError

    bare = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    bare |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **more}
    bare |= {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _WHO.items()}
    place = ["--git-dir", str(repository.resolve())] if repository is not None else []
    verb = next(word for word in words if not word.startswith("-") and "=" not in word)
    try:
        done = subprocess.run(
            ["git", *place, *words], env=bare, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"git {verb} took longer than {_SECONDS} s", where=str(repository or words[-1])) from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        raise InputError(f"git {verb} failed: {said}", where=str(repository or words[-1]))
    return done.stdout.strip()


VERBS = (import_,)
