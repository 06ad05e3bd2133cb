"""What a release is made of, signed and verified: ``make dist``, ``make release``, ``make verify-release``.

    python -m tests.releases dist [FOLDER]            wheels and source archives of HEAD, and SHA256SUMS
    python -m tests.releases sign KEY [FOLDER]        signs SHA256SUMS with an SSH key that allowed-signers lists
    python -m tests.releases verify FOLDER [SIGNERS]  checks the signature and every file's checksum

The packages are made from ``git archive`` of a commit, so that nothing else of the folder gets into them, with the
commit's time as SOURCE_DATE_EPOCH: the same commit gives the same bytes (docs/releases.md).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from belay.engine import versions

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LIGHT = "agents/training/packages/belay_training"
SUMS = "SHA256SUMS"
SIGNERS = "deploy/release/allowed-signers"
SPACE = "belay-release"
"""The namespace of signatures (ssh-keygen -Y -n), so that none made for something else counts."""
IMAGES = {
    "deploy/base/kustomization.yaml": r"newTag: (\S+)",
    "deploy/overlays/example/kustomization.yaml": r"newName: registry\.example\.com/belay, newTag: ([^}]+)\}",
    "deploy/chart/belay/Chart.yaml": r"appVersion: (\S+)",
    "deploy/review/github-workflow.yaml": r"belay/deploy/review@v(\S+)",
    "deploy/review/gitea-workflow.yaml": r"registry\.example\.com/belay:(\S+)",
    "deploy/review/gitlab-ci.yml": r"registry\.example\.com/belay:(\S+)",
    "docs/running.md": r"IMAGE=registry\.example\.com/belay:(\S+)",
}
BIGGEST = 256 * 1024 * 1024


class ReleaseError(Exception):
    """A release cannot be made or does not verify; the text says why and what to do."""


def dist(folder: Path = DIST, ref: str = "HEAD", root: Path = ROOT) -> list[Path]:
    """Wheel and source archive of both packages, made from a commit alone; and their checksums.

    Raises:
        ReleaseError: a build failed, or the folder holds something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ReleaseError(f"{folder} is not empty: remove what lies there, or name another folder")
    epoch = _run("git", "-C", str(root), "show", "-s", "--format=%ct", f"{ref}^{{commit}}").strip()
    with tempfile.TemporaryDirectory(prefix="belay-release-") as scratch:
        tree = Path(scratch) / "tree"
        extract(ref, tree, root)
        surroundings = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0", "TZ": "UTC"}
        surroundings.pop(versions.GIVEN, None)
        for project in (tree, tree / LIGHT):
            build = (sys.executable, "-m", "hatchling", "build", "-d", str(folder.resolve()))
            _run(*build, cwd=project, env=surroundings)
    made = sorted(folder.iterdir())
    (folder / SUMS).write_text("".join(f"{_digest(file)}  {file.name}\n" for file in made))
    return made


def extract(ref: str, folder: Path, root: Path = ROOT) -> None:
    """The files of a commit, as `git archive` gives them."""
    packed = folder.parent / f"{folder.name}.tar"
    _run("git", "-C", str(root), "archive", "--format=tar", "-o", str(packed), ref)
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()


def releasable(root: Path = ROOT) -> str:
    """The tag of HEAD, when everything says the same version and the tag's signature is one of the listed keys.

    Raises:
        ReleaseError: what is not as a release needs it.
    """
    if _run("git", "-C", str(root), "status", "--porcelain").strip():
        raise ReleaseError("the tree has changes: commit them, a release is what a tag names")
    tags = _run("git", "-C", str(root), "tag", "--points-at", "HEAD", "--list", "v[0-9]*").split()
    if len(tags) != 1:
        raise ReleaseError(f"HEAD has {len(tags)} tags of releases, not one: git tag -s v0.2.0 -m 'Belay 0.2.0'")
    wanted = versions.of_tag(tags[0])
    entries = versions.changelog(root)
    if not entries or entries[0].version != wanted or not re.fullmatch(r"\d{4}-\d\d-\d\d", entries[0].date):
        raise ReleaseError(f"CHANGELOG.md does not begin with '## {wanted} (YYYY-MM-DD)'")
    for place, named in image_tags(root):
        if named != wanted:
            raise ReleaseError(f"{place} names image {named}, the tag {wanted}")
    built = versions.of_tree(root).version
    if built != wanted:
        raise ReleaseError(f"the tag says {wanted}, the tree {built}")
    check = ("-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={root / SIGNERS}", "verify-tag", tags[0])
    try:
        _run("git", "-C", str(root), *check)
    except ReleaseError as error:
        raise ReleaseError(f"tag {tags[0]} is not signed by a key of {SIGNERS}: {error}") from error
    return tags[0]


def image_tags(root: Path = ROOT) -> list[tuple[str, str]]:
    """Where manifests and guides name Belay's image, as ``file:line``, and the tag there."""
    found = []
    for name, pattern in IMAGES.items():
        if (root / name).exists():
            for number, line in enumerate((root / name).read_text().splitlines(), 1):
                found += [(f"{name}:{number}", one) for one in re.findall(pattern, line)]
    return found


def sign(key: Path, folder: Path = DIST, signers: Path = ROOT / SIGNERS) -> Path:
    """Sign the checksums, and verify them at once with the public list; returns the signature's file.

    Raises:
        ReleaseError: ssh-keygen refused, or the key is not listed.
    """
    sums = folder / SUMS
    signature = folder / f"{SUMS}.sig"
    signature.unlink(missing_ok=True)
    _run("ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", SPACE, str(sums))
    try:
        verify(folder, signers)
    except ReleaseError:
        signature.unlink(missing_ok=True)
        raise
    return signature


def verify(folder: Path, signers: Path = ROOT / SIGNERS) -> str:
    """The signer of a release, after the signature and every file were checked.

    Raises:
        ReleaseError: no signature, none of a listed key, a file that differs, is missing or is not named.
    """
    sums, signature = folder / SUMS, folder / f"{SUMS}.sig"
    for file in (sums, signature):
        if not file.is_file():
            raise ReleaseError(f"{file} is missing: nothing says who made these files")
    found = _run("ssh-keygen", "-Y", "find-principals", "-s", str(signature), "-f", str(signers), may_fail=True)
    names = [name for name in found.splitlines() if name.strip()]
    if not names:
        raise ReleaseError(f"{signature} was made by a key that {signers} does not list")
    command = ("ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", names[0], "-n", SPACE, "-s", str(signature))
    _run(*command, stdin=sums.read_bytes())
    listed = dict(_listed(sums))
    lying = {file.name for file in folder.iterdir()} - {SUMS, signature.name}
    if lying != listed.keys():
        odd = sorted(lying ^ listed.keys())
        raise ReleaseError(f"{SUMS} and the folder do not name the same files: {', '.join(odd[:5])}")
    for name, digest in listed.items():
        if _digest(folder / name) != digest:
            raise ReleaseError(f"{folder / name} is not the file that was signed")
    return names[0]


def _listed(sums: Path) -> list[tuple[str, str]]:
    rows = []
    for number, line in enumerate(sums.read_text(errors="replace").splitlines(), 1):
        found = re.fullmatch(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+-]*)", line)
        if not found:
            raise ReleaseError(f"{sums}:{number}: not 'SHA256  FILE'")
        rows.append((found[2], found[1]))
    return rows


def _digest(file: Path) -> str:
    if file.stat().st_size > BIGGEST:
        raise ReleaseError(f"{file} is larger than {BIGGEST >> 20} MiB")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _run(
    *command: str,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: bytes | None = None,
    may_fail: bool = False,
) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, input=stdin, capture_output=True, timeout=600, check=False)
    if done.returncode and not may_fail:
        told = (done.stderr or done.stdout).decode(errors="replace").strip()[-500:]
        raise ReleaseError(f"{command[0]} ended with {done.returncode}: {told}")
    return done.stdout.decode(errors="replace")


def main(words: list[str]) -> None:
    """One verb of the three above."""
    verb, rest = (words[0], words[1:]) if words else ("", [])
    if verb == "dist":
        for file in dist(Path(rest[0]) if rest else DIST):
            sys.stdout.write(f"{file}\n")
    elif verb == "sign" and rest:
        tag = releasable()
        folder = Path(rest[1]) if len(rest) > 1 else DIST
        sys.stdout.write(f"{sign(Path(rest[0]), folder)}: {tag}\n")
    elif verb == "verify" and rest:
        signer = verify(Path(rest[0]), Path(rest[1]) if len(rest) > 1 else ROOT / SIGNERS)
        sys.stdout.write(f"signed by {signer}, every file is as it was signed\n")
    else:
        raise ReleaseError(__doc__ or "")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ReleaseError as error:
        sys.exit(f"{error}")
