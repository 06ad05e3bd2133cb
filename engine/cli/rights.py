"""`belay rights`: what an installation without admission grants by name, as manifests for an overlay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from belay import SHIPPED
from belay.engine.cli.invocation import fails_clearly

_COMPONENT: Final = ("components", "without-admission")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_NODE: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_SUPER_POD: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
#: Names of Roles and ConfigMaps of a node are longer than its own, and end at 253 letters.
_LONGEST_NODE: Final = 220


@click.command(short_help="Print the rights of an installation without admission.")
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="A node with an agent of Belay; repeat it.")
@click.option("--namespace", "namespaces", multiple=True, metavar="NS", help="A namespace of jobs; repeat it.")
@click.option("--shard", "shards", multiple=True, default=("main",), show_default=True, help="As NodePools name it.")
@click.option("--super-pod", "super_pods", multiple=True, metavar="ID", help="One whose chips ping each other.")
@fails_clearly
def rights(
    nodes: tuple[str, ...], namespaces: tuple[str, ...], shards: tuple[str, ...], super_pods: tuple[str, ...]
) -> None:
    """Print Roles, and the empty records that they name, for components/without-admission (docs/access.md).

    Nothing is asked of a cluster. Apply it again when nodes or namespaces come.

    Example: belay rights --node node-1 --node node-2 --namespace train
    """
    click.echo(rendered(nodes, namespaces, shards, super_pods), nl=False)


def rendered(
    nodes: Sequence[str], namespaces: Sequence[str], shards: Sequence[str], super_pods: Sequence[str] = ()
) -> str:
    """The manifests, in the order of names.

    Raises:
        InputError: a name that no such object can have, or a namespace that is not for jobs.
    """
    _check(nodes, namespaces, shards, super_pods)
    files = (
        ("per-shard.yaml", "<shard>", shards),
        ("per-namespace.yaml", "<namespace>", namespaces),
        ("per-node.yaml", "<node>", nodes),
        ("per-agent.yaml", "<node>", nodes),
        ("per-super-pod.yaml", "<super-pod>", super_pods),
    )
    texts = []
    for file, placeholder, names in files:
        template = _folder().joinpath(file).read_text()
        texts += [template.replace(placeholder, name) for name in sorted(set(names))]
    return "---\n".join(texts)


def _check(nodes: Sequence[str], namespaces: Sequence[str], shards: Sequence[str], super_pods: Sequence[str]) -> None:
    from belay.engine.errors import InputError
    from belay.engine.serve.admission.rules import GUARDED
    from belay.engine.wire.names import RECOVERIES

    for option, given, shape in (
        ("--node", nodes, _NODE), ("--namespace", namespaces, _LABEL), ("--shard", shards, _LABEL),
        ("--super-pod", super_pods, _SUPER_POD),
    ):  # fmt: skip
        for name in given:
            if not shape.fullmatch(name) or len(name) > _LONGEST_NODE:
                raise InputError(f"{name[:80]!r} is not the name of one", where=option)
    for name in namespaces:
        if name in GUARDED | {RECOVERIES}:
            text = (
                f"{name} belongs to Kubernetes, Belay, MindCluster or Volcano: it is not granted as a namespace of jobs"
            )
            raise InputError(text, where="--namespace")


def _folder() -> Path:
    """The component's manifests: of the source tree, else as the package ships them."""
    return SHIPPED.joinpath("deploy", *_COMPONENT)


VERBS: Final = (rights,)
