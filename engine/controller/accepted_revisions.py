"""The log of accepted revisions, kept in the cluster: what a repository may never go behind."""

from __future__ import annotations

from collections.abc import Callable

from belay.engine import log
from belay.engine.errors import SourceError
from belay.engine.kube import CONFIGMAP, Conflict, Kube, NotFound, Object
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.seals import Seal
from belay.engine.source import Revision, SourceConfig
from belay.engine.wire import names, revisionlog
from belay.engine.wire.errors import WireError
from belay.engine.wire.policy import POLICY_ABOUT, parse_entitlements
from belay.engine.wire.revisionlog import RevisionEntry, RevisionLog
from belay.engine.wire.seals import seal_of

_TRIES = 5
_log = log.get("controller")


class AcceptedRevisions:
    """Reads and extends one shard's ``belay-revisions``. ``clock`` gives Unix seconds; ``keys`` sign the log.

    ``problem`` says why the log of the cluster cannot be trusted; empty while it can. Then nothing new is accepted
    where commits are verified, until a person has looked and deleted the ConfigMap.
    """

    def __init__(self, kube: Kube, shard: str, clock: Callable[[], float], keys: OrderKeys) -> None:
        self._kube = kube
        self._keys = keys
        self._seal: Seal | None = None
        self._shard = shard
        self._clock = clock
        self._known = RevisionLog()
        self._version = ""
        self.problem = ""

    def of(self, config: SourceConfig) -> dict[str, float]:
        """The source's verified revisions and when they came, oldest first."""
        return self._known.of(config.name)

    def before(self, revision: str, config: SourceConfig) -> str:
        """The verified revision accepted before this one; empty for the first."""
        found = list(self._known.of(config.name))
        at = found.index(revision) if revision in found else len(found)
        return found[at - 1] if at else ""

    async def load(self) -> None:
        """Read the log. Raises KubeError when the cluster does not answer."""
        name = names.revisions_config_map(self._shard)
        found = await self._kube.get(CONFIGMAP, name, names.SYSTEM)
        self._version = str(found["metadata"].get("resourceVersion") or "") if found else ""
        where = f"ConfigMap/{names.SYSTEM}/{name}"
        floor = await self._signed_number() if self._keys.signing is not None else 0
        self.problem = self._problem(found, where, floor)
        if self.problem:
            _log.error("log of accepted revisions cannot be trusted", shard=self._shard, reason=self.problem)

    def _problem(self, found: Object | None, where: str, floor: int) -> str:
        """Take over what was read, or say why not. ``floor`` is the number that signed policies name."""
        if found is None:
            # what this process knows is written again with the next revision
            return f"{where} is gone; {_named(floor)}" if floor and self._known.head is None else ""
        if self._keys.signing is not None:
            seal = seal_of(found)
            if (seal is not None or self._seal is not None or floor) and (problem := self._keys.problem(found)):
                return f"{where} {problem}"
            self._seal = seal
        try:
            log = revisionlog.parse(found)
        except WireError as error:
            return str(error)
        if not log.continues(self._known):
            return f"{where}: entries that this controller wrote are gone or changed"
        number = log.head.number if log.head is not None else log.start.number
        if number < floor:
            return f"{where} ends with entry {number}; {_named(floor)}"
        self._known = log
        return ""

    async def _signed_number(self) -> int:
        """The highest number of an accepted revision that a policy of this shard names under a good signature."""
        highest = 0
        listed = await self._kube.list(CONFIGMAP, names.SYSTEM, labels=f"{ABOUT_LABEL}={POLICY_ABOUT}")
        for body in listed.items:
            try:
                found = parse_entitlements(body)
            except WireError:
                continue
            if found is not None and found.shard == self._shard and not self._keys.problem(body):
                highest = max(highest, found.log)
        return highest

    async def record(self, revision: Revision, config: SourceConfig) -> None:
        """Append a commit that comes into force, before it does; the newest one again changes nothing.

        Raises KubeError, and SourceError LogBroken while the log cannot be trusted.
        """
        if not revision.sha or revision.sha.startswith("worktree-"):
            return
        entry = RevisionEntry(
            number=0,
            revision=revision.sha,
            source=config.name,
            verified=config.verify_mode,
            signer=revision.signer or "",
            time=int(self._clock() * 1000),
            commit=revisionlog.encoded(revision.commit),
            author=revision.author[: revisionlog.MAX_WORDS],
            subject=revision.subject[: revisionlog.MAX_WORDS],
        )
        for attempt in range(_TRIES):
            head = self._known.head
            is_newest = head is not None and (head.revision, head.source, head.verified, head.signer) == (
                entry.revision, entry.source, entry.verified, entry.signer,
            ) and bool(self._version)  # fmt: skip
            if is_newest and (self._is_signed or self.problem):
                return
            if self.problem:
                raise SourceError("LogBroken", f"the log of accepted revisions cannot be trusted: {self.problem}")
            log = self._known if is_newest else self._known.appended(entry)
            body = revisionlog.build(log, self._shard, self._version)
            self._keys.seal(body, int(self._clock() * 1000), self._seal)
            try:
                written = await (self._kube.replace if self._version else self._kube.create)(CONFIGMAP, body)
            except (Conflict, NotFound):
                if attempt == _TRIES - 1:
                    raise
                await self.load()
                continue
            self._known, self._version = log, str(written["metadata"].get("resourceVersion") or "")
            self._seal = seal_of(body)
            _log.info("revision accepted", shard=self._shard, sha=revision.sha, signer=entry.signer)
            return

    @property
    def _is_signed(self) -> bool:
        """Whether the log bears a seal of the key that signs now; True without a key."""
        key = self._keys.signing
        return key is None or (self._seal is not None and self._seal.key == key.key_id)


def _named(floor: int) -> str:
    return (
        f"a signed policy names entry {floor}, so a part of the log was taken away "
        "(to start it again, delete the ConfigMaps belay-policy-* too)"
    )
