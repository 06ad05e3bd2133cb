"""What entitles an order, and the seal by which an agent knows the engine's hand.

The chain: a person signs a commit; the engine derives a policy and orders from it, and seals both with its own key;
the agent holds the public keys, pinned outside what the cluster's API can change.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Seal(msgspec.Struct, frozen=True, rename="camel"):
    """A signature of the engine: by which key (its identifier), when (Unix ms), and the signature in base64.

    ``signed_at`` only grows for one object, so an older state that is put back is noticed.
    """

    key: str = ""
    signed_at: int = 0
    signature: str = ""


class Warrant(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What entitles one order.

    ``rule`` is the rule that decided, with its ``file`` and ``line`` in Git as of ``revision``; ``codes`` are the fault
    codes, ``report`` the report that showed them (namespace/name@resourceVersion) and ``report_digest`` the SHA-256 of
    its content when the order was given; ``plan`` is the digest of the plan; ``epoch`` that of a destructive order.
    """

    rule: str = ""
    file: str = ""
    line: int = 0
    revision: str = ""
    codes: tuple[str, ...] = ()
    report: str = ""
    report_digest: str = ""
    plan: str = ""
    epoch: int = 0


class Entitlements(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a pool's policy entitles to: the ``rules`` that may order resets and partitions of its chips.

    ``policy_digest`` is that of the pool's fault rules; ``revision`` the commit that they were first derived from, and
    ``signer`` who signed it (empty where commits are not verified). ``shard`` is the shard whose commit it is;
    ``log`` the number of the newest accepted revision when the policy was derived, 0 where that log is not signed.
    """

    pool: str
    policy_digest: str
    revision: str = ""
    signer: str = ""
    rules: tuple[str, ...] = ()
    shard: str = "main"
    log: int = 0


BUILT_IN_RULES: Final = ("actions.tolerate", "layout", "reset:unknown product, whole node")
"""Rules of resets and partitions that no document names: under a job, of a layout that is declared no more, and where
no Product says which chips reset together."""


def reset_warrant(chip: str) -> str:
    """Name of the warrant of a chip's reset; ``chip`` is its device name."""
    return f"{chip}/reset"


def isolation_warrant(chip: str) -> str:
    """Name of the warrant of a chip's isolation."""
    return f"{chip}/isolate"


def layout_warrant(chip: str) -> str:
    """Name of the warrant of a chip's partition."""
    return f"{chip}/layout"
