"""`belay new`: a document from a few words, checked, planned and committed like every other act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from belay.engine.cli.acts.policies import add as add_policy
from belay.engine.cli.acts.verbs import act, act_options, pairs
from belay.engine.cli.invocation import WholeNumber, fails_clearly

if TYPE_CHECKING:
    from belay.engine.documents import Desired


@click.group(short_help="Add a pool, queue, layout, policy or job, as a commit.")
def new() -> None:
    """Add a document to the repository from a few words; `--dry-run` prints it. Names come first, then what it says."""


@new.command(short_help="A pool of nodes.")
@click.argument("name")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Nodes with this label; may be repeated.")
@click.option("--product", metavar="PRODUCT", help="What the servers are: a name in policies/products.")
@act_options
@fails_clearly
def pool(name: str, labels: tuple[str, ...], product: str | None, **options: Any) -> None:
    """Add a NodePool. Example: belay new pool training --product atlas-800t-a2"""
    from belay.engine.cli.acts import drafts

    named = pairs(labels, "--label")
    act(options, lambda files: drafts.pool(files, name, named, product, _products(_desired(files))))


@new.command(short_help="A queue.")
@click.argument("name")
@click.option("--weight", type=WholeNumber(1, 1_000_000), default=1, show_default=True, help="Its share.")
@click.option("--capability", "amounts", multiple=True, metavar="RESOURCE=N", help="Its limit; may be repeated.")
@act_options
@fails_clearly
def queue(name: str, weight: int, amounts: tuple[str, ...], **options: Any) -> None:
    """Add a Queue. Example: belay new queue research --capability huawei.com/Ascend910=64"""
    from belay.engine.cli.acts import drafts

    named = pairs(amounts, "--capability")
    act(options, lambda files: drafts.queue(files, name, named, weight))


@new.command(short_help="How chips are cut into vNPUs.")
@click.argument("name")
@click.option("--pool", "where", required=True, metavar="POOL", help="Whose nodes.")
@click.option("--mode", type=click.Choice(("static", "dynamic", "soft")), default="static", show_default=True)
@click.option("--cut", "cuts", multiple=True, metavar="CHIPS=TEMPLATE,...",
              help="Chips that are cut alike, such as 0-3=vir04,vir04; may be repeated.")  # fmt: skip
@act_options
@fails_clearly
def layout(name: str, where: str, mode: str, cuts: tuple[str, ...], **options: Any) -> None:
    """Add a VNPULayout. Example: belay new layout small --pool inference --cut 0-3=vir02,vir02,vir02,vir02"""
    from belay.engine.cli.acts import drafts

    chips = {key: [one for one in text.split(",") if one] for key, text in pairs(cuts, "--cut").items()}
    act(options, lambda files: drafts.layout(files, name, where, mode, chips))


@new.command(short_help="A job of whole chips, or on parts of chips.")
@click.argument("name")
@click.option("--chips", type=WholeNumber(1, 64), help="Chips of a pod.")
@click.option("--template", metavar="TEMPLATE", help="In place of --chips: one vNPU of this size for each pod.")
@click.option("--pods", type=WholeNumber(1, 100_000), default=1, show_default=True, help="Pods; they start together.")
@click.option("--kind", type=click.Choice(("AscendJob", "Deployment", "Job")), default="AscendJob", show_default=True)
@click.option("--product", metavar="PRODUCT", help="For which servers. Default: the one that all pools name.")
@click.option("--image", help="The container's image.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--queue", help="Default: that of the namespace, or default.")
@click.option("--priority", metavar="CLASS", help="Its PriorityClass.")
@act_options
@fails_clearly
def job(name: str, kind: str, product: str | None, chips: int | None, template: str | None, **options: Any) -> None:
    """Add a job. Example: belay new job pretrain --chips 8 --pods 4 --image registry.example.org/train:1"""
    from belay.engine.cli.acts import drafts
    from belay.engine.cli.acts.edits import RepositoryEdit
    from belay.engine.cli.acts.priorities import check_priority_class
    from belay.engine.errors import InputError

    if (chips is None) == (template is None):
        raise InputError("a pod asks for whole chips or for one vNPU", where=name, hint="Give --chips or --template")
    more = {key: options.pop(key) for key in ("pods", "image", "namespace", "queue", "priority")}

    def change(files: Mapping[str, bytes]) -> RepositoryEdit:
        if more["priority"]:
            check_priority_class(more["priority"], files, options["cluster"], options["kubeconfig"])
        desired = _desired(files)
        named = [one.document.spec.product for one in desired.pools if one.document.spec.product]
        chosen = drafts.product_of(product, _products(desired), [str(one) for one in named])
        resource = drafts.resource_of(template, chosen, desired.families) if template else ""
        return drafts.job(files, name, kind, chosen, chips=chips or 1, resource=resource, **more)

    act(options, change)


def _desired(files: Mapping[str, bytes]) -> Desired:
    from belay.engine.load import load

    return load(files).desired


def _products(desired: Desired) -> dict[str, Any]:
    """Server models by name; policies that run on several are none."""
    return {name: one.document for name, one in desired.products.items() if one.document.spec.node_labels}


new.add_command(add_policy, "policy")

VERBS = (new,)
