"""Versions, packages, checksums and signatures of releases."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from belay.engine import versions
from belay.engine.versions import Entry
from tests import needs, releases

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("Breaking", "Added", "Changed", "Fixed")
MOST_ENTRIES = 130
#: One line that begins as a sentence or a name does, not as the rest of another line, and ends with a stop.
READS_AS_ONE = re.compile(r"- (?!(?:And|But|Or|Also|Before|Which|Where)\b)\**[A-Z0-9`\[]\S* (?:\S+ ){2,}\S+\.")
NEXT = [Entry("0.3.0", "unreleased"), Entry("0.2.0", "2026-11-23")]


def git(folder: Path, *words: str, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", **variables}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *who, *words], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@functools.cache
def ref() -> str:
    """A commit of what is tracked here, with changes that are not committed."""
    with tempfile.TemporaryDirectory() as folder:
        # an index of its own: workers that run side by side, and the user's Git, lock the repository's
        index = Path(folder, "index")
        shutil.copyfile(ROOT / git(ROOT, "rev-parse", "--git-path", "index"), index)
        return git(ROOT, "stash", "create", GIT_INDEX_FILE=str(index)) or "HEAD"


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("v0.2.0", "0.2.0"),
        ("v0.3.0-rc.1", "0.3.0rc1"),
        ("v0.2.0-5-g1a2b3c4d5e6f", "0.3.0.dev5+g1a2b3c4d5e6f"),
        ("v0.2.0-5-g1a2b3c4d5e6f-dirty", "0.3.0.dev5+g1a2b3c4d5e6f.dirty"),
        ("v0.2.0-dirty", "0.3.0.dev0+g0123456789ab.dirty"),
        ("v0.3.0-rc.1-2-g1a2b3c4d5e6f", "0.3.0.dev2+g1a2b3c4d5e6f"),
        ("v0.4.0-2-g1a2b3c4d5e6f", "0.4.1.dev2+g1a2b3c4d5e6f"),
        ("1a2b3c4d5e6f", "0.3.0.dev0+g1a2b3c4d5e6f"),
        ("1a2b3c4d5e6f-dirty", "0.3.0.dev0+g1a2b3c4d5e6f.dirty"),
        ("very odd", "0.3.0.dev0"),
    ],
)
def test_a_description_of_git_is_a_version_that_sorts(described: str, expected: str) -> None:
    from packaging.version import Version

    got = versions.from_description(described, NEXT, "0123456789abcdef" if described == "v0.2.0-dirty" else "")
    assert got == expected
    assert str(Version(got)) == got


def test_development_versions_sort_between_the_releases() -> None:
    from packaging.version import Version

    steps = ("v0.2.0", "v0.2.0-5-g1a2b3c4", "v0.2.0-6-g1a2b3c4", "v0.3.0-rc.1", "v0.3.0")
    got = [Version(versions.from_description(one, NEXT)) for one in steps]
    assert got == sorted(got)


def repository(folder: Path, *, changelog: str = "# Changelog\n\n## 0.2.0 (2026-11-23)\n") -> Path:
    """A repository with one commit and this changelog."""
    folder.mkdir()
    (folder / "CHANGELOG.md").write_text(changelog)
    shutil.copy(ROOT / ".gitattributes", folder)
    shutil.copy(ROOT / ".git_archival.txt", folder)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def test_the_version_follows_tags_changes_clones_and_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = repository(tmp_path / "tree")
    head = git(tree, "rev-parse", "HEAD")
    assert versions.of_tree(tree).version == f"0.2.0.dev0+g{head[:12]}"
    git(tree, "tag", "-am", "Belay 0.2.0", "v0.2.0")
    # a hook of Git sets GIT_DIR to the repository that is committed to
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert versions.of_tree(tree)[:2] == ("0.2.0", head)
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## 0.3.0 (unreleased)\n\n## 0.2.0 (2026-11-23)\n")
    assert versions.of_tree(tree).version == f"0.3.0.dev0+g{head[:12]}.dirty"
    git(tree, "commit", "-qam", "second")
    second = git(tree, "rev-parse", "HEAD")
    assert versions.of_tree(tree).version == f"0.3.0.dev1+g{second[:12]}"

    # a clone of CI without history and tags
    git(tmp_path, "clone", "-q", "--depth=1", "--no-tags", f"file://{tree}", str(tmp_path / "shallow"))
    assert versions.of_tree(tmp_path / "shallow").version == f"0.3.0.dev0+g{second[:12]}"

    # an archive, as GitHub offers it for a tag, and for a commit
    for ref, wanted in (("v0.2.0", "0.2.0"), ("HEAD", f"0.3.0.dev1+g{second[:12]}")):
        folder = tmp_path / ref
        monkeypatch.delenv("GIT_DIR", raising=False)
        releases.extract(ref, folder, tree)
        assert versions.of_tree(folder).version == wanted
        assert versions.of_tree(folder).commit == git(tree, "rev-parse", f"{ref}^{{commit}}")

    # a copy of the files alone
    shutil.rmtree(tree / ".git")
    assert versions.of_tree(tree).version == "0.3.0.dev0"
    (tree / "CHANGELOG.md").unlink()
    assert versions.of_tree(tree).version == versions.UNKNOWN


def test_a_build_without_git_is_given_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.GIVEN, "v0.9.0")
    assert versions.for_build() == "0.9.0"
    monkeypatch.setenv(versions.GIVEN, "newest; rm -rf /")
    with pytest.raises(ValueError, match=r"is not a version: write 0\.2\.0"):
        versions.for_build()


def test_the_changelog_names_every_version_once_newest_first() -> None:
    entries = versions.changelog(ROOT)
    keys = [versions.order(entry.version) for entry in entries]
    assert keys == sorted(set(keys), reverse=True)
    assert [entry.date for entry in entries].count("unreleased") <= 1
    assert all(entry.date != "unreleased" for entry in entries[1:])


def unreadable(release: str) -> list[str]:
    """What keeps one release of the changelog from being read at a glance; empty if nothing does."""
    sections = re.findall(r"^### (.*)$", release, re.MULTILINE)
    entries = re.findall(r"^- .*(?:\n  .*)*", release, re.MULTILINE)

    found = []
    if sections != [name for name in SECTIONS if name in sections]:
        found.append(f"sections {', '.join(sections)} instead of {', '.join(SECTIONS)}, each once")
    if len(entries) > MOST_ENTRIES:
        found.append(f"{len(entries)} lines, more than {MOST_ENTRIES}: merge those about one thing")
    for section in re.split(r"^#{3,4} .*\n(?=\s*\Z|\s*### )", release, flags=re.MULTILINE)[1:]:
        found.append(f"a heading without lines before {section.strip()[:40]!r}")
    found += [f"{len(line)} characters: {line}" for line in release.splitlines() if len(line) > 120]
    found += [f"no sentence or noun phrase: {entry}" for entry in entries if not READS_AS_ONE.fullmatch(entry)]
    return found


def test_a_release_in_the_changelog_is_read_at_a_glance() -> None:
    releases_in_it = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(releases_in_it) == len(versions.changelog(ROOT))
    assert {release.partition("\n")[0]: unreadable(release) for release in releases_in_it if unreadable(release)} == {}


@pytest.mark.parametrize(
    ("release", "problem"),
    [
        ("### Added\n\n- Jobs that wait name a way out.\n\n### Breaking\n\n- Agents need a Secret.\n", "sections"),
        ("### News\n\n- Jobs that wait name a way out.\n", "sections"),
        ("### Added\n\n### Fixed\n\n- Jobs that wait had no way out.\n", "without lines"),
        ("### Fixed\n\n" + "- Jobs that wait had no way out.\n" * 200, "merge those"),
        (f"### Fixed\n\n- Jobs that wait {'for room ' * 20}had no way out.\n", "characters"),
        ("### Fixed\n\n- Jobs that wait had no way out,\n  which is named now.\n", "no sentence"),
        ("### Fixed\n\n- which is named now in every case.\n", "no sentence"),
        ("### Fixed\n\n- Before, none.\n", "no sentence"),
        ("### Fixed\n\n- Jobs that wait had no way out\n", "no sentence"),
    ],
)
def test_a_changelog_that_reads_badly_is_noticed(release: str, problem: str) -> None:
    assert any(problem in found for found in unreadable(release))


def test_manifests_and_guides_name_the_image_of_the_newest_version() -> None:
    named = releases.image_tags()
    assert {place.rpartition(":")[0] for place, _ in named} == releases.IMAGES.keys()
    assert {tag for _, tag in named} == {versions.changelog(ROOT)[0].version}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes of this commit."""
    if not (ROOT / ".git").exists():
        needs.lacking("the repository itself is needed: this is no clone")
    folder = tmp_path_factory.mktemp("dist")
    releases.dist(folder, ref())
    return folder


@pytest.mark.timeout(600)
def test_the_packages_are_the_same_from_the_commit_and_from_their_source_archives(made: Path, tmp_path: Path) -> None:
    wheels = sorted(made.glob("*.whl"))
    assert [file.name.split("-")[0] for file in wheels] == ["belay", "belay_training"]
    for wheel in wheels:
        source = made / f"{'-'.join(wheel.name.split('-')[:2])}.tar.gz"
        shutil.unpack_archive(source, tmp_path / wheel.name, filter="data")
        (tree,) = (tmp_path / wheel.name).iterdir()
        again = tmp_path / "again"
        epoch = git(ROOT, "show", "-s", "--format=%ct", ref())
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(again)]
        subprocess.run(
            command, cwd=tree, env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, check=True, capture_output=True
        )
        assert (again / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_wheel_knows_its_version_and_commit(made: Path, tmp_path: Path) -> None:
    for wheel in made.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            built = json.loads(archive.read("belay/engine/build.json"))
            archive.extract("belay/engine/versions.py", tmp_path)
            archive.extract("belay/engine/build.json", tmp_path)
        assert built["commit"] == git(ROOT, "rev-parse", ref())
        assert built["version"] == wheel.name.split("-")[1]
        # far from any Git
        code = "import versions; print(versions.version())"
        folder = tmp_path / "belay/engine"
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
        assert done.stdout.strip() == built["version"]


def test_the_light_wheel_holds_every_module_that_it_imports(made: Path) -> None:
    (wheel,) = made.glob("belay_training-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        missing = []
        for name in sorted(name for name in names if name.endswith(".py")):
            for module, member in imported(archive.read(name).decode()):
                if module.split(".")[0] not in TOPS:
                    continue
                below = f"{module}.{member}"
                if not held(module, names) or ((ROOT / "src" / place(below)).exists() and not held(below, names)):
                    missing.append(f"{name}: {below}")
    assert missing == []


TOPS = ("belay", "belay_training", "taskd", "mindio_acp", "mindio_ttp", "mindx_elastic")


def place(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def held(module: str, names: set[str]) -> bool:
    return place(module) in names or f"{module.replace('.', '/')}/__init__.py" in names


def imported(source: str) -> list[tuple[str, str]]:
    """The modules that a source imports, and the names taken from them."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, alias.name) for alias in node.names]
    return found


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if shutil.which("ssh-keygen") is None:
        needs.lacking("ssh-keygen is needed: make test-packages installs it")
    file = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)], check=True)
    return file


def listed(key: Path, file: Path, options: str = 'namespaces="git,belay-release"') -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"maker@example.com {options} {key.with_suffix('.pub').read_text()}")
    return file


def test_a_signed_release_verifies_and_a_changed_one_does_not(key: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "belay.whl").write_bytes(b"wheel")
    (folder / releases.SUMS).write_text(f"{releases._digest(folder / 'belay.whl')}  belay.whl\n")
    signers = listed(key, tmp_path / "signers")
    with pytest.raises(releases.ReleaseError, match="says who made"):
        releases.verify(folder, signers)
    releases.sign(key, folder, signers)
    assert releases.verify(folder, signers) == "maker@example.com"

    (folder / "more.whl").write_bytes(b"slipped in")
    with pytest.raises(releases.ReleaseError, match=r"do not name the same files: more\.whl"):
        releases.verify(folder, signers)
    (folder / "more.whl").unlink()
    (folder / "belay.whl").write_bytes(b"other")
    with pytest.raises(releases.ReleaseError, match="not the file that was signed"):
        releases.verify(folder, signers)
    (folder / releases.SUMS).write_text(f"{releases._digest(folder / 'belay.whl')}  belay.whl\n")
    with pytest.raises(releases.ReleaseError, match="ended with"):
        releases.verify(folder, signers)


@pytest.mark.parametrize("options", ['namespaces="git"', 'valid-before="20200101"'])
def test_a_key_that_may_not_sign_releases_is_refused(key: Path, tmp_path: Path, options: str) -> None:
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / releases.SUMS).write_text("")
    signers = listed(key, tmp_path / "signers", options)
    with pytest.raises(releases.ReleaseError):
        releases.sign(key, folder, signers)
    assert not (folder / f"{releases.SUMS}.sig").exists(), "a signature that does not verify is not left behind"


def test_only_a_signed_tag_that_the_changelog_names_is_released(key: Path, tmp_path: Path) -> None:
    tree = repository(tmp_path / "tree")
    listed(key, tree / releases.SIGNERS)
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "signers")
    with pytest.raises(releases.ReleaseError, match="0 tags of releases"):
        releases.releasable(tree)
    git(tree, "tag", "-am", "x", "v0.2.0")
    with pytest.raises(releases.ReleaseError, match="not signed by a key"):
        releases.releasable(tree)
    git(tree, "tag", "-d", "v0.2.0")
    by = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={key}")
    git(tree, *by, "tag", "-s", "-m", "Belay 0.2.1", "v0.2.1")
    with pytest.raises(releases.ReleaseError, match=r"does not begin with '## 0\.2\.1"):
        releases.releasable(tree)
    git(tree, "tag", "-d", "v0.2.1")
    git(tree, *by, "tag", "-s", "-m", "Belay 0.2.0", "v0.2.0")
    assert releases.releasable(tree) == "v0.2.0"
    (tree / "odd").write_text("")
    with pytest.raises(releases.ReleaseError, match="has changes"):
        releases.releasable(tree)
