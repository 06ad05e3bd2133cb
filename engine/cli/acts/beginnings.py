"""`belay init`: a state repository with pools, from the nodes of a cluster or from products that are named."""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belay.engine.cli.acts.clone import unknown_author
from belay.engine.cli.invocation import fails_clearly
from belay.engine.errors import BelayError, InputError
from belay.engine.model.labels import HUAWEI_PREFIX
from belay.engine.model.wording import counted

if TYPE_CHECKING:
    from belay.engine.documents import Product

_COUNTED: Final = re.compile(r"(?:(\d{1,9})x)?([a-z0-9-]+)")
_README: Final = """# State of the cluster

What is declared in desired/ and policies/ is what the cluster becomes: `git push` is how it changes.

    belay validate .                  # before a commit: every finding at file:line:col
    belay plan --desired . --cluster live
    belay new job train --chips 8     # a document from a few words; belay --help lists the other acts
"""


@click.command(short_help="Begin a state repository, with pools of the nodes.")
@click.argument("directory", metavar="DIR")
@click.option("--nodes", metavar="NxPRODUCT,...", help="Servers without a cluster, such as 4x800t-a2,2x300i-pro.")
@click.option("--cluster", metavar="FILE|live", help="Whose nodes make the pools.  [default: live]")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@fails_clearly
def init(directory: str, nodes: str | None, cluster: str | None, kubeconfig: str | None) -> None:
    """Begin a state repository in DIR: one pool for each product of the nodes, committed; nothing is pushed.

    Examples: belay init state; belay init state --nodes 4x800t-a2,2x300i-duo
    """
    from belay.engine.cli import output as show
    from belay.engine.load import load

    if nodes is not None and (cluster is not None or kubeconfig is not None):
        where = "--cluster" if cluster is not None else "--kubeconfig"
        raise InputError("--nodes names servers without a cluster", where=where, hint="Leave one of both out")
    folder = Path(directory)
    if not directory:
        raise InputError("no folder is named", where="DIR", hint="Name one that does not exist yet")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("this is not an empty directory", where=directory, hint="Name one that does not exist yet")
    products = {name: one.document for name, one in load({}).desired.products.items() if one.document.spec.node_labels}
    if nodes is not None:
        found = named_products(nodes, products)
        unknown: list[str] = []
    else:
        from belay.engine.cli.inputs import cluster_items

        found, unknown = products_of(cluster_items(cluster or "live", None, kubeconfig)[0], products)
    files = repository(found, products)
    _commit(folder, files)
    for name, count in sorted(found.items()):
        click.echo(f"pool {pool_name(name)}: {counted(count, 'node')} of {name} ({products[name].spec.title})")
    for node in unknown[:10]:
        click.echo(
            show.plain(
                f"node {node}: no product follows from its labels; docs/kubernetes.md says how a pool names one"
            ),
            err=True,
        )
    click.echo(show.plain(f"committed in {directory}; next: git remote add origin URL, git push -u origin main"))


def named_products(text: str, products: Mapping[str, Product]) -> Counter[str]:
    """How many servers of each product; ``atlas-`` may be left out.

    Raises:
        InputError: a word names no product.
    """
    found: Counter[str] = Counter()
    # products without labels of nodes are ways to ask for a server's chips, not servers
    products = {name: product for name, product in products.items() if product.spec.node_labels}
    for word in filter(None, text.split(",")):
        match = _COUNTED.fullmatch(word.strip())
        name = match[2] if match else word
        name = name if name in products else f"atlas-{name}"
        if match is None or name not in products:
            known = sorted(one.removeprefix("atlas-") for one in products)
            near = difflib.get_close_matches(name.removeprefix("atlas-"), known, 1) if match else []
            meant = f"did you mean {match[1] or 1}x{near[0]}? " if match and near else ""
            hint = f"{meant}Write NxPRODUCT; known: {', '.join(known)}"
            raise InputError("this names no servers", where=f"--nodes {word[:60]}", hint=hint[:1].upper() + hint[1:])
        if not (count := int(match[1] or 1)):
            raise InputError("0 servers make no pool", where=f"--nodes {word[:60]}", hint="Leave the product out")
        found[name] += count
    if not found:
        raise InputError("no servers are named", where="--nodes", hint="Write NxPRODUCT, such as 4x800t-a2")
    return found


def products_of(items: Sequence[Mapping[str, Any]], products: Mapping[str, Product]) -> tuple[Counter[str], list[str]]:
    """How many nodes are of each product, by their labels; and the NPU nodes whose labels name none.

    Raises:
        InputError: the cluster has no node with NPUs.
    """
    found: Counter[str] = Counter()
    unknown: list[str] = []
    for item in items:
        if item.get("kind") != "Node":
            continue
        labels = (item.get("metadata") or {}).get("labels") or {}
        fitting = [name for name, product in products.items() if _fits(labels, product)]
        if fitting:
            found[fitting[0]] += 1
        elif _has_npus(item):
            unknown.append(str(item["metadata"]["name"]))
    if not found:
        raise InputError("no node of the cluster has labels of a product with NPUs", where="--cluster",
                         hint="Name the servers: --nodes 4x800t-a2")  # fmt: skip
    return found, unknown


def repository(found: Mapping[str, int], products: Mapping[str, Product]) -> dict[str, bytes]:
    """The files of the repository."""
    from belay.engine.cli.acts.adoption import as_text

    files = {"README.md": _README.encode()}
    for name in found:
        labels = dict(products[name].spec.node_labels[0])
        body = {
            "apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": pool_name(name)},
            "spec": {"selector": {"matchLabels": labels}, "product": name},
        }  # fmt: skip
        files[f"desired/pools/{pool_name(name)}.yaml"] = as_text(body).encode()
    return files


def pool_name(product: str) -> str:
    """The product's name without the family's."""
    return product.removeprefix("atlas-")


def _fits(labels: Mapping[str, str], product: Product) -> bool:
    return any(all(labels.get(key) == value for key, value in row.items()) for row in product.spec.node_labels)


def _has_npus(node: Mapping[str, Any]) -> bool:
    offered = (node.get("status") or {}).get("allocatable") or {}
    return any(str(name).startswith(HUAWEI_PREFIX) for name in offered)


def _commit(folder: Path, files: Mapping[str, bytes]) -> None:
    _check_author(folder)
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    for words in (("init", "--quiet"), ("symbolic-ref", "HEAD", "refs/heads/main"), ("add", "--all"),
                  ("commit", "--quiet", "--message", "Begin with the pools of the nodes")):  # fmt: skip
        done = _git(folder, *words)
        if done.returncode:
            said = " ".join(done.stderr.split())[:300]
            raise BelayError(f"git {words[0]} failed: {said}", where=str(folder),
                             hint="The files are written: mend it and commit them")  # fmt: skip


def _check_author(folder: Path) -> None:
    """Raises InputError if Git does not know who commits; a repository is made for the answer, since settings can
    depend on where it lies, and goes again."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    known = False
    try:
        known = not _git(folder, "init", "--quiet").returncode and all(
            not _git(folder, "var", person).returncode for person in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")
        )
    finally:
        if not known:
            shutil.rmtree(folder / ".git", ignore_errors=True)
            for one in missing:
                one.rmdir()
    if not known:
        raise unknown_author(str(folder))


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise BelayError("the git command is not on PATH", hint="Install git") from error


VERBS = (init,)
