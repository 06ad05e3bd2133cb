"""Verbs for Belay's own keys: those that sign orders, and those that seal what passes through Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from belay.engine.cli.invocation import fails_clearly, output_option, seconds

if TYPE_CHECKING:
    from belay.engine.cli.key_sets import KeyRow, OrderKeySet
    from belay.engine.cli.key_stores import KeyStore

_SETS = click.Choice(["orders", "batch"])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _place_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--dir", "directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
                     help="Files below DIR: order-keys/, order-trust/, batch-keys/."),
        click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster."),
    ):  # fmt: skip
        command = option(command)
    return command


def _policy_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--source", default="", metavar="TEXT",
                     help="REPOSITORY BRANCH [FOLDER]: what signed commits must be made for."),
        click.option("--allowed-signers", metavar="FILE", type=_FILE,
                     help="Agents check commits' SSH signatures themselves, by this list (ssh-keygen(1))."),
        click.option("--signers", metavar="FILE", type=_FILE,
                     help="Names, a line each, whose commits count, as the engine reports them."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(short_help="Make, rotate and list the keys of orders and batches.")
def keys() -> None:
    """Make, rotate and list Belay's own keys (docs/signed.md).

    orders: Ed25519 keys by which the engine signs orders and policies; agents pin the public parts. batch: keys that
    seal what controllers and workers pass through Redis. They lie in files (--dir) or in the Secrets that the manifests
    mount (belay-order-keys and belay-batch-keys in belay-system, belay-order-trust in belay-nodes).
    """


@keys.command(short_help="Make a first key.")
@click.argument("what", type=_SETS)
@_place_options
@click.option("--apply", is_flag=True, help="Create the Secret in the cluster.")
@click.option(
    "--yaml", "as_yaml", is_flag=True, help="Print the Secret with the private key, for `kubectl apply -f -`."
)
@_policy_options
@fails_clearly
def create(
    what: str, directory: Path | None, kubeconfig: str | None, apply: bool, as_yaml: bool, **policy: Any
) -> None:
    """Make a first key: files (--dir), a Secret in the cluster (--apply), or a Secret as text (--yaml).

    Agents refuse unsigned orders as soon as they hold keys: in a cluster, `belay keys pin` gives them the public part
    once the engine has signed everything.

    Example: belay keys create orders --dir keys
    """
    from belay.engine.cli import key_sets, key_stores
    from belay.engine.errors import InputError

    if not (directory or apply or as_yaml) or (apply and directory):
        raise InputError("say where the key goes", hint="Give --dir DIR, --apply or --yaml")
    if what == "batch":
        part, files = key_stores.BATCH, {key_sets.BATCH_FILE: key_sets.new_batch_keys()}
        trust: dict[str, bytes] = {}
    else:
        made = key_sets.created(time.time(), _policy(**policy))
        part, files, trust = key_stores.ENGINE, made.engine, made.trust
    store = _store(directory, kubeconfig) if directory or apply else None
    if store is not None:
        _say(f"written: {store.write(part, files, new=True)}")
        if directory and trust:
            _say(f"written: {store.write(key_stores.TRUST, trust, new=True)} (for agents, once orders are signed)")
    if as_yaml:
        key_stores.print_secret(part, files)
    if what == "orders" and not directory:
        _say("next: wait for condition OrdersSigned=True (`belay status`), then `belay keys pin --apply`")


@keys.command(short_help="Give agents the public keys of orders.")
@_place_options
@click.option("--apply", is_flag=True, help="Write Secret belay-order-trust.")
@_policy_options
@fails_clearly
def pin(directory: Path | None, kubeconfig: str | None, apply: bool, **policy: Any) -> None:
    """Give agents the public keys that the engine signs with. From then on they refuse unsigned orders, so this waits
    until the engine has signed all orders in force (with --apply; with --dir you see to that).

    Example: belay keys pin --apply
    """
    from belay.engine.cli import key_sets, key_stores
    from belay.engine.errors import InputError

    if bool(directory) == apply:
        raise InputError("say where the keys are", hint="Give --dir DIR or --apply")
    store = _store(directory, kubeconfig)
    held = _order_keys(store)
    unsigned = key_sets.objects_signed_by(_config_maps("live", kubeconfig), "") if apply else []
    key_sets.pinned(held, _policy(**policy), unsigned)
    _say(f"written: {store.write(key_stores.TRUST, held.trust)}")


@keys.command(short_help="Take the next step of a rotation; run it three times.")
@click.argument("what", type=_SETS)
@_place_options
@click.option("--apply", is_flag=True, help="Change the Secrets in the cluster.")
@click.option("--cluster", metavar="FILE|live", default=None,
              help="Where to look for what the old key signed. Default: live with --apply.")  # fmt: skip
@click.option("--spread", metavar="DURATION", default="10m", show_default=True,
              help="Until a changed Secret or file counts as read everywhere.")  # fmt: skip
@click.option(
    "--leaked", is_flag=True, help="Distrust the old keys at once. Agents refuse orders until all have the new."
)
@fails_clearly
def rotate(
    what: str,
    directory: Path | None,
    kubeconfig: str | None,
    apply: bool,
    cluster: str | None,
    spread: str,
    leaked: bool,
) -> None:
    """Take the next step of a rotation. Run it three times: the new key is distributed; the new key signs; the old key
    is retired. Too early a step is refused, with the time from which it may be taken; the last one also while orders or
    policies stand that the old key signed.

    Example: belay keys rotate orders --apply
    """
    from belay.engine.cli import key_sets, key_stores
    from belay.engine.errors import InputError

    if bool(directory) == apply:
        raise InputError("say where the keys are", hint="Give --dir DIR or --apply")
    store, wait, now = _store(directory, kubeconfig), seconds(spread, "--spread") or 0.0, time.time()
    if what == "batch":
        files = store.read(key_stores.BATCH) or {}
        if leaked:
            files[key_sets.BATCH_FILE], said = key_sets.new_batch_keys(), "a new key seals; no other is accepted"
        else:
            files[key_sets.BATCH_FILE], said = key_sets.rotated_batch(files.get(key_sets.BATCH_FILE, b""), now, wait)
        store.write(key_stores.BATCH, files)
        _say(said)
        return
    held = _order_keys(store)
    pinned = store.read(key_stores.TRUST) is not None
    where = cluster or ("live" if apply else None)
    stage = held.rotation
    if leaked:
        said = key_sets.replaced(held, now)
    else:
        retiring = where is not None and stage is not None and stage.step == "signing"
        standing = (
            key_sets.objects_signed_by(_config_maps(where, kubeconfig), stage.old)
            if retiring and where and stage
            else None
        )
        said = key_sets.rotated(held, now, standing, wait)
    store.write(key_stores.ENGINE, held.engine)
    if pinned:
        store.write(key_stores.TRUST, held.trust)
    _say(said)
    if not pinned:
        _say("agents hold no keys: orders are carried out unsigned (`belay keys pin`)")
    if directory:
        _say(f"copy {directory}/{key_stores.ENGINE} to the engine and {directory}/{key_stores.TRUST} to every agent")


@keys.command(name="list", short_help="Keys, their roles, and where a rotation stands.")
@_place_options
@output_option()
@fails_clearly
def list_keys(directory: Path | None, kubeconfig: str | None, output: str) -> None:
    """The keys of orders and batches with their roles (signs, next, trusted, accepted) and places. No private part.

    Example: belay keys list
    """
    from belay.engine.cli import output as show

    rows = _rows(_store(directory, kubeconfig))
    if output in ("json", "yaml"):
        show.document([{"use": row.use, "key": row.key, "role": row.role, "where": row.where} for row in rows], output)
        return
    show.table(("use", "key", "role", "where"), [[row.use, row.key, row.role, row.where] for row in rows])
    if not rows:
        click.echo("no keys: orders are unsigned, messages are not sealed (`belay keys create`)", err=True)


@keys.command(short_help="The public parts of the keys of orders, and the rotation.")
@_place_options
@click.option("--yaml", "as_yaml", is_flag=True, help="As Secret belay-order-trust, for `kubectl apply -f -`.")
@fails_clearly
def show(directory: Path | None, kubeconfig: str | None, as_yaml: bool) -> None:
    """The public keys that agents should hold (PEM), and where a rotation stands. No private part.

    Example: belay keys show --dir keys
    """
    from belay.engine.cli import key_sets, key_stores
    from belay.engine.model.times import rfc3339

    held = _order_keys(_store(directory, kubeconfig))
    if as_yaml:
        key_sets.pinned(held, {}, [])
        key_stores.print_secret(key_stores.TRUST, held.trust)
        return
    for row in key_sets.order_rows(held):
        click.echo(f"# {row.key} {row.role} ({row.where})\n{row.public}", nl=False)
    if (stage := held.rotation) is not None:
        click.echo(f"# rotation from {stage.old} to {stage.new}: {stage.step} since {rfc3339(stage.at)}")


def _store(directory: Path | None, kubeconfig: str | None) -> KeyStore:
    from belay.engine.cli.key_stores import ClusterSecrets, KeyDirectory

    return KeyDirectory(directory) if directory else ClusterSecrets(kubeconfig)


def _policy(signers: Path | None, allowed_signers: Path | None, source: str) -> dict[str, bytes]:
    from belay.engine.cli.key_sets import policy_files
    from belay.engine.cli.key_stores import read_list

    texts = [read_list(path) if path else None for path in (signers, allowed_signers)]
    return policy_files(texts[0], texts[1], source)


def _order_keys(store: KeyStore) -> OrderKeySet:
    from belay.engine.cli import key_sets, key_stores
    from belay.engine.errors import InputError

    engine = store.read(key_stores.ENGINE)
    if engine is None:
        raise InputError("there are no keys of orders", hint="`belay keys create orders` makes them")
    return key_sets.OrderKeySet(engine, store.read(key_stores.TRUST) or {})


def _rows(store: KeyStore) -> list[KeyRow]:
    from belay.engine.cli import key_sets, key_stores

    engine, trust, batch = (store.read(part) for part in key_stores.PARTS)
    rows = key_sets.order_rows(key_sets.OrderKeySet(engine or {}, trust or {})) if engine or trust else []
    return rows + (key_sets.batch_rows(batch.get(key_sets.BATCH_FILE, b"")) if batch else [])


def _config_maps(cluster: str, kubeconfig: str | None) -> list[dict[str, Any]]:
    if cluster != "live":
        from belay.engine.replay.cluster_file import read_cluster

        return read_cluster(cluster)
    from belay.engine.kube import CONFIGMAP, Kube
    from belay.engine.observe.live import with_kube
    from belay.engine.wire.names import NODES, SYSTEM

    async def read(kube: Kube) -> list[dict[str, Any]]:
        found = []
        for space in (SYSTEM, NODES):
            found += (await kube.list(CONFIGMAP, space)).items
        return found

    return with_kube(kubeconfig, read)


def _say(text: str) -> None:
    click.echo(text, err=True)


VERBS = (keys,)
