"""The signed commit reaches the node: SSH signatures and Git's objects are checked there, forged links found."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from belay.agents.node.shipped import shipped_rules
from belay.engine.cli import main
from belay.engine.source import GitSource
from belay.engine.source.records import SourceConfig
from belay.engine.wire import commitproof, revisionlog, sshsignatures
from belay.engine.wire.commitproof import CommitProof, git_object, object_name
from belay.engine.wire.names import SYSTEM
from belay.engine.wire.revisionlog import RevisionEntry, RevisionLog
from tests.agent_world import World, scenario
from tests.gitrepo import Repo
from tests.signing import allow, ssh_key, ssh_options
from tests.test_agent_orders import faulty
from tests.test_signed_orders import SignedWorld, export

PRODUCT = "apiVersion: belay.dev/v1alpha1\nkind: Product\nmetadata: {name: ours}\nspec: {title: Ours}\n"
LAYOUT = "apiVersion: belay.dev/v1alpha1\nkind: VNPULayout\nmetadata: {name: split}\nspec: {pool: a}\n"
FILES: dict[str, str | bytes] = {
    "policies/products/ours.yaml": PRODUCT,
    "desired/layouts/split.yaml": LAYOUT,
    "desired/other.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: product-list}\n",
}
RULE = "Product/ours#reset"
NOW = 1_800_000_000.0


def signed_blob(key: Path, payload: bytes, namespace: str = "git") -> bytes:
    command = ["ssh-keygen", "-Y", "sign", "-n", namespace, "-f", str(key)]
    return subprocess.run(command, input=payload, capture_output=True, check=True).stdout


@pytest.mark.parametrize("kind", [("ed25519",), ("ecdsa", "-b", "256"), ("ecdsa", "-b", "521"), ("rsa", "-b", "2048")])
def test_signatures_of_ssh_keygen_are_judged_as_ssh_keygen_does(tmp_path: Path, kind: tuple[str, ...]) -> None:
    for name in ("ada", "eve"):
        command = ["ssh-keygen", "-q", "-t", *kind, "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    public = (tmp_path / "ada.pub").read_text()
    listed = sshsignatures.allowed_signers(f'# team\nada@x,a@x namespaces="git,file",valid-before="20300101Z" {public}')
    good = signed_blob(tmp_path / "ada", b"payload")
    said = sshsignatures.signer_of(b"payload", good, listed, [NOW])
    assert said == f"ada@x,a@x ({sshsignatures.fingerprint(listed[0].key)})"
    shown = subprocess.run(["ssh-keygen", "-l", "-f", str(tmp_path / "ada.pub")], capture_output=True, text=True)
    assert sshsignatures.fingerprint(listed[0].key) in shown.stdout
    for payload, signature, moments, problem in (
        (b"Payload", good, [NOW], "does not fit"),
        (b"payload", signed_blob(tmp_path / "eve", b"payload"), [NOW], "is not on the list"),
        (b"payload", signed_blob(tmp_path / "ada", b"payload", "file"), [NOW], "not for git"),
        (b"payload", good, [NOW, 1_900_000_000.0], "outside its valid-after"),
        (b"payload", good.replace(b"U1NIU0lH", b"U1NIU0lI"), [NOW], "unknown version"),
        (b"payload", b"-----BEGIN PGP SIGNATURE-----", [NOW], "no SSH signature"),
    ):
        with pytest.raises(ValueError, match=problem):
            sshsignatures.signer_of(payload, signature, listed, moments)


def test_no_cut_or_changed_signature_passes_or_crashes(tmp_path: Path) -> None:
    key = ssh_key(tmp_path, "ada")
    listed = sshsignatures.allowed_signers(f"ada@x {key.with_suffix('.pub').read_text()}")
    blob = base64.b64decode("".join(signed_blob(key, b"payload").decode().splitlines()[1:-1]))
    for at in range(0, len(blob), 3):
        changed = blob[:at] + bytes([blob[at] ^ 0x41]) + blob[at + 1 :]
        for one in (blob[:at], changed, blob + b"x"):
            armored = b"-----BEGIN SSH SIGNATURE-----\n" + base64.b64encode(one) + b"\n-----END SSH SIGNATURE-----\n"
            with pytest.raises(ValueError, match=r"signature|key"):
                sshsignatures.signer_of(b"payload", armored, listed, [NOW])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ada@x ssh-ed25519", "line 1: is not a line"),
        ("ada@x namespaces=git ssh-ed25519 AAAA", "line 1: "),
        ("ada@x who=1 ssh-ed25519 AAAA", "line 1: "),
        ('ada@x valid-after="soon" {}', "line 1: has the time 'soon'"),
        ('ada@x no-such-option="1" {}', "line 1: has the unknown option"),
        ("ada@x ssh-rsa {1}", "line 1: has a key of another type"),
    ],
)
def test_a_list_that_cannot_be_read_is_named_by_line(tmp_path: Path, line: str, said: str) -> None:
    public = ssh_key(tmp_path, "ada").with_suffix(".pub").read_text().strip()
    with pytest.raises(ValueError, match=said):
        sshsignatures.allowed_signers(line.format(public, public.split()[1]))
    assert sshsignatures.allowed_signers(f'ada@x cert-authority {public}\nada@x namespaces="file" {public}\n') == ()


class Signed:
    """A repository whose commits Ada signs, and the proofs that the engine makes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.repo, self.key = Repo(folder / "git"), ssh_key(folder, "ada")
        self.signers = allow(folder / "allowed-signers", ada=self.key)
        config = SourceConfig(url=str(self.repo.bare), verify_mode="ssh", allowed_signers=self.signers)
        self.source = GitSource(config, folder / "mirror")

    def commit(self, files: dict[str, str | bytes], *options: str, message: str = "change") -> str:
        return self.repo.commit(files, *ssh_options(self.key), *options, message=message)

    def proof(self, older: str = "") -> CommitProof:
        found = self.source.fetch().revision
        assert found is not None
        return self.source.proof(found, older)


def test_a_proof_holds_the_documents_that_entitle_and_every_forged_link_is_found(tmp_path: Path) -> None:
    signed = Signed(tmp_path)
    first = signed.commit(FILES)
    proof = signed.proof()
    assert proof.rules() == {RULE, "VNPULayout/split"} and proof.left_out == 0
    assert "desired/other.yaml" not in proof.files, "only what entitles is carried"
    assert commitproof.parse(commitproof.build(proof, "main")) == proof
    by_kind = {row.kind: name for name, row in proof.objects.items()}
    for kind in ("commit", "tree", "blob"):
        for change in ("missing", "changed", "other"):
            objects = dict(proof.objects)
            name = by_kind[kind]
            if change == "missing":
                del objects[name]
            elif change == "changed":
                objects[name] = git_object(kind, objects[name].read() + b"\n")
            else:
                objects[name] = git_object("blob" if kind != "blob" else "tree", objects[name].read())
            with pytest.raises(ValueError, match=kind):
                msgspec.structs.replace(proof, objects=objects).rules()
    # a document that is in no tree of the commit
    foreign = PRODUCT.replace("ours", "theirs").encode()
    name = object_name("blob", foreign)
    more = {**proof.objects, name: git_object("blob", foreign)}
    for path in ("policies/products/theirs.yaml", "docs/ours.yaml", "desired/../policies/x.yaml", "desired/layouts"):
        with pytest.raises(ValueError, match=r"names '"):
            msgspec.structs.replace(proof, files=(path,), objects=more).rules()
    second = signed.commit({"policies/products/ours.yaml": PRODUCT.replace("Ours", "Better")})
    later = signed.proof(first)
    assert later.revision == second and later.follows(first) and not proof.follows(second)


def test_what_does_not_fit_or_is_held_back_is_counted(tmp_path: Path) -> None:
    signed = Signed(tmp_path)
    rows = {f"policies/products/p{n}.yaml": PRODUCT.replace("ours", f"p{n}") + f"# {'x' * 200_000}" for n in range(5)}
    signed.commit(rows)
    proof = signed.proof()
    assert (len(proof.files), proof.left_out) == (3, 2) and len(proof.rules()) == 3
    assert len(json.dumps(commitproof.build(proof, "main"))) < 1 << 20


def run(folder: Path, act: Callable[[SignedWorld, Signed], Awaitable[None]], *, source: str = "") -> None:
    async def story(world: World) -> None:
        signed = Signed(folder / "repository")
        node = SignedWorld(folder, world)
        (node.trust / "allowed-signers").write_text(signed.signers.read_text())
        if source:
            (node.trust / "source").write_text(source)
        # the node's time is after that of every commit
        world.clock.wall = 2_000_000_000.0
        node.at = world.clock.now_ms()
        node.put_policy((RULE,))
        await faulty(world)
        await act(node, signed)

    scenario(folder, story)


def put(node: SignedWorld, proof: CommitProof) -> None:
    node.put(commitproof.build(proof, "main"))


async def waits(node: SignedWorld, said: str) -> None:
    """Nothing is reset, no epoch is used up, and the report says why."""
    await node.world.run(60)
    assert node.world.driver.resets == [] and node.world.result(3) == (0, "")
    assert said in " ".join(node.world.report.errors)


def test_an_order_by_a_document_of_the_signed_commit_is_carried_out(tmp_path: Path) -> None:
    async def act(node: SignedWorld, signed: Signed) -> None:
        node.put(node.sealed(node.orders(1, rule=RULE)))
        await waits(node, "the signed commit of the order is not there")
        signed.commit(FILES)
        put(node, signed.proof())
        await node.world.run(60)
        assert node.world.result(3) == (1, "ok")

    run(tmp_path, act)


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("unsigned", "is not signed"),
        ("other signer", "which is not on the list"),
        ("changed commit", "holds another commit"),
        ("changed document", "holds another blob"),
        ("other source", "was made for"),
        ("other folder", "is read in folder"),
    ],
)
def test_a_commit_that_is_not_what_an_allowed_person_signed_takes_no_epoch(
    tmp_path: Path, attack: str, said: str
) -> None:
    async def act(node: SignedWorld, signed: Signed) -> None:
        eve = ssh_key(tmp_path, "eve")
        match attack:
            case "unsigned":
                signed.repo.commit(FILES)
            case "other signer":
                signed.repo.commit(FILES, *ssh_options(eve))
            case "other source":
                signed.commit(FILES, message="change\n\nBelay-Source: git/other main")
            case _:
                signed.commit(FILES)
        # a forger makes the proof without asking who signed
        forger = GitSource(SourceConfig(url=str(signed.repo.bare)), tmp_path / "forger")
        revision = forger.fetch().revision
        assert revision is not None
        proof = forger.proof(revision, "")
        objects = dict(proof.objects)
        blob = next(name for name, row in objects.items() if row.kind == "blob" and b"Product" in row.read())
        match attack:
            case "changed commit":
                objects[proof.revision] = git_object("commit", objects[proof.revision].read() + b"x")
            case "changed document":
                objects[blob] = git_object("blob", PRODUCT.replace("Ours", "Hers").encode())
            case "other folder":
                proof = msgspec.structs.replace(proof, folder="examples")
        put(node, msgspec.structs.replace(proof, objects=objects))
        node.put(node.sealed(node.orders(1, rule=RULE)))
        await waits(node, said)

    run(tmp_path, act, source="git/ours main\n" if attack.startswith("other ") else "")


def test_a_rule_that_the_signed_commit_does_not_hold_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def act(node: SignedWorld, signed: Signed) -> None:
        name = signed.commit({"desired/other.yaml": FILES["desired/other.yaml"]})
        put(node, signed.proof())
        node.put(node.sealed(node.orders(1, rule=RULE)))
        await waits(node, f"commit  of the order is not there, only {name[:12]}")
        node.put(node.sealed(node.orders(2, rule=RULE, revision=name)))
        await node.world.run(60)
        assert node.world.driver.resets == []
        assert node.world.result(3) == (2, f"refused: rule '{RULE}' is in no document of commit {name[:12]}")

    run(tmp_path, act)


def test_documents_that_come_with_the_release_entitle_under_any_signed_commit(tmp_path: Path) -> None:
    rule = "Product/atlas-800t-a2#reset"
    assert rule in shipped_rules()

    async def act(node: SignedWorld, signed: Signed) -> None:
        node.put_policy((rule,))
        signed.commit({"desired/other.yaml": FILES["desired/other.yaml"]})
        put(node, signed.proof())
        node.put(node.sealed(node.orders(1, rule=rule)))
        await node.world.run(60)
        assert node.world.result(3) == (1, "ok")

    run(tmp_path, act)


def test_an_older_signed_commit_does_not_come_back_on_the_node_unless_it_is_allowed(tmp_path: Path) -> None:
    async def act(node: SignedWorld, signed: Signed) -> None:
        signed.commit(FILES)
        old = signed.proof()
        signed.repo.write({"policies/products/ours.yaml": PRODUCT.replace("Ours", "Better")})
        signed.commit({})
        new = signed.proof(old.revision)
        # made "later" by its own date, as a careful author's commits are
        put(node, new)
        node.put(node.sealed(node.orders(1, rule=RULE)))
        await node.world.run(60)
        assert node.world.result(3) == (1, "ok")
        believed = json.loads((node.world.folder / "commit-trust.json").read_text())
        assert believed["revision"] == new.revision
        believed["committed"] += 100
        (node.world.folder / "commit-trust.json").write_text(json.dumps(believed))
        await node.world.restart()
        node.world.driver.inject(3, "80C98001")
        put(node, old)
        node.put(node.sealed(node.orders(2, rule=RULE)))
        await node.world.run(60)
        assert len(node.world.driver.resets) == 1
        assert f"{old.revision[:12]} is older than {new.revision[:12]}" in " ".join(node.world.report.errors)
        (node.trust / "rewrite-to").write_text(old.revision)
        await node.world.run(60)
        assert len(node.world.driver.resets) == 2

    run(tmp_path, act)


def test_belay_verify_checks_commits_and_documents_of_exported_objects(tmp_path: Path) -> None:
    async def act(node: SignedWorld, signed: Signed) -> None:
        name = signed.commit(FILES)
        proof = signed.proof()
        put(node, proof)
        commit = revisionlog.encoded(proof.commit())
        entry = RevisionEntry(number=0, revision=name, source="s main", verified="ssh", commit=commit)
        node.put(node.sealed(revisionlog.build(RevisionLog().appended(entry), "main")))
        node.put(node.sealed(node.orders(1, rule=RULE, revision=name)))

        def verified(code: int, signers: Path = signed.signers) -> str:
            export(node, tmp_path / "out")
            done = CliRunner().invoke(
                main,
                ["verify", str(tmp_path / "out"), "--keys", str(node.trust), "--signers", str(signers), "-o", "json"],
            )
            assert done.exit_code == code, done.output
            return done.stdout

        good = json.loads(verified(0))
        assert sum("is signed by a given signer" in row["check"] for row in good) == 2
        assert any("its document is in the commit" in row["check"] for row in good)
        eve = allow(tmp_path / "eves", eve=ssh_key(tmp_path, "eve"))
        assert "a key that is not on the list" in verified(1, eve)
        body = copy.deepcopy(node.world.cluster.maps[SYSTEM, "belay-commit"])
        forged = msgspec.structs.replace(proof, files=())
        put(node, forged)
        assert f"'{RULE}' is in neither" in verified(1)
        objects: dict[str, Any] = {**proof.objects, name: git_object("commit", proof.commit() + b"x")}
        put(node, msgspec.structs.replace(proof, objects=objects))
        assert "holds another commit" in verified(1)
        node.put(body)

    run(tmp_path, act)
