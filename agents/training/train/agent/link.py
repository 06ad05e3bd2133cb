"""TCP between nodes: the listener of the node that runs the coordinator, and the connection of each other node to it.

Both ends send a frame at least every half second. A connection that is silent for three seconds is lost, and its node
with it, until it connects again.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from belay.agents.training.train.agent.peers import claim_message, read_claim
from belay.agents.training.train.agent.proof import Prover
from belay.agents.training.train.decide.election import Claim
from belay.agents.training.train.frames import Connection, FrameError, Message
from belay.agents.training.train.notices import say
from belay.agents.training.train.protocol import CLAIM, WHO, Away, Hello, Join, Ping, Refused

PING = 0.5
"""Seconds between pings."""
SILENT = 3.0
"""Seconds without a frame after which a connection is lost."""
AGAIN = 0.5
"""Seconds between attempts to connect."""
FAREWELL = 2.0
"""Seconds for which a coordinator that ends waits until other nodes have read its last message."""
STRANGERS = 64
"""Maximum number of connections that have not joined yet."""
VERSION = 1


@dataclass
class NodeConnection:
    """A connection of another node; ``node`` is None until it has joined."""

    line: Connection
    last_seen: float
    prover: Prover
    node: int | None = None


@dataclass
class NodeListener:
    """Accepts connections of the nodes of one job.

    Where the coordinator is elected every node listens: ``claim`` says whether this one leads, ``heard`` takes what
    other nodes say of themselves, and nodes that want to join one that does not lead are sent ``away``. ``host`` empty:
    every address of this machine. ``key``: the secret of the job; without it every connection is believed.
    """

    host: str
    port: int
    job: str
    nodes: int
    nproc: int
    node: int = 0
    key: bytes = b""
    claim: Callable[[], Claim] | None = None
    heard: Callable[[Claim, float], None] = lambda claim, now: None
    connections: list[NodeConnection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sock = _listening(self.host, self.port)
        self._pinged = 0.0
        self._said: set[str] = set()

    def descriptors(self) -> list[tuple[int, bool]]:
        """Descriptors to poll: (descriptor, also for writing)."""
        return [(self._sock.fileno(), False), *((one.line.fileno(), one.line.waiting) for one in self.connections)]

    def handle(self, ready: set[int], now: float) -> tuple[list[tuple[int, Message, bytes]], list[tuple[int, str]]]:
        """Messages (node, message, payload), including joins, and the lost nodes with the reason."""
        if self._sock.fileno() in ready:
            self._accept(now)
        came: list[tuple[int, Message, bytes]] = []
        lost: list[tuple[int, str]] = []
        for connection in list(self.connections):
            why = self._serve(connection, connection.line.fileno() in ready, now, came, lost)
            if now - connection.last_seen > SILENT:
                why = why or f"it was silent for {SILENT:g} s"
            if why:
                self._drop(connection)
                if connection.node is not None:
                    lost.append((connection.node, why))

        if now - self._pinged > PING:
            self._pinged = now
            for connection in [one for one in self.connections if one.prover.proven]:
                with contextlib.suppress(OSError, FrameError):
                    connection.line.send(Ping().message())
        return came, lost

    def _serve(
        self,
        connection: NodeConnection,
        readable: bool,
        now: float,
        came: list[tuple[int, Message, bytes]],
        lost: list[tuple[int, str]],
    ) -> str:
        """Write what waits and read what has come, into ``came`` and ``lost``; why the connection is to be dropped, or
        empty."""
        why = ""
        try:
            connection.line.flush()
            messages = connection.line.receive() if readable else []
            if messages is None:
                return "its connection was closed"
            for message, payload in messages:
                if not connection.prover.proven:
                    why = why or self._prove(connection, message)
                    continue
                connection.last_seen = now
                if connection.node is not None:
                    came.append((connection.node, message, payload))
                elif message["t"] == Join.KIND:
                    came += self._join(connection, message, lost)
                else:
                    why = self._greet(connection, message, now) or why
        except (OSError, FrameError) as error:
            return str(error)
        return why

    def _greet(self, connection: NodeConnection, message: Message, now: float) -> str:
        """Answer a node that has not joined; why it is dropped, or empty."""
        if message["t"] == Hello.KIND:
            self._refuse(connection, "it has a --secret-file, and this node has none: give all nodes the same one")
            return ""
        if message["t"] == WHO and self.claim is not None:
            self._answer(connection, message, now)
            return ""
        return "it did not join"

    @staticmethod
    def _refuse(connection: NodeConnection, text: str, field: str = "") -> None:
        connection.line.send(Refused(text[:500], field).message())

    def send(self, node: int, message: Message, payload: bytes = b"") -> None:
        """Send to a node; a message to a lost node is dropped, since the node joins again."""
        for connection in self.connections:
            if connection.node == node:
                with contextlib.suppress(OSError, FrameError):
                    connection.line.send(message, payload)

    def joined(self) -> set[int]:
        """The nodes that are connected."""
        return {one.node for one in self.connections if one.node is not None}

    def dismiss(self) -> None:
        """Close the connections of all nodes, which look for another coordinator then."""
        for connection in [one for one in self.connections if one.node is not None]:
            self._drop(connection)

    def farewell(self, message: Message, seconds: float = FAREWELL) -> None:
        """Send every node a last message, and wait until it has closed its connection. One that were closed here while
        the node still sends would be reset, and the message be lost with it."""
        end = time.monotonic() + seconds
        for connection in list(self.connections):
            if connection.node is None:
                self._drop(connection)
                continue
            with contextlib.suppress(OSError, FrameError):
                connection.line.send(message)
        while self.connections and (left := end - time.monotonic()) > 0:
            poll = select.poll()
            for connection in self.connections:
                waiting = connection.line.waiting
                poll.register(connection.line.fileno(), select.POLLIN | (select.POLLOUT if waiting else 0))
            ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            for connection in [one for one in self.connections if one.line.fileno() in ready]:
                try:
                    connection.line.flush()
                    if connection.line.receive() is None:
                        self._drop(connection)
                except (OSError, FrameError):
                    self._drop(connection)

    def close(self) -> None:
        """Close all connections and stop listening."""
        for connection in self.connections:
            connection.line.close()
        self.connections.clear()
        self._sock.close()

    def _prove(self, connection: NodeConnection, message: Message) -> str:
        """Take a message of a node that has not proven that it knows the secret; why it is refused, or empty. It is
        sent nothing of the job."""
        if (challenge := connection.prover.challenge(message)) is not None:
            connection.line.send(challenge)
            return ""
        if connection.prover.accept(message):
            return ""
        text = "a connection was refused: it did not prove that it knows the secret of this job (--secret-file)"
        if text not in self._said:
            self._said.add(text)
            say(text)
        return "it did not prove that it knows the secret"

    def _answer(self, connection: NodeConnection, message: Message, now: float) -> None:
        """Say whether this node leads, to one of the same job."""
        assert self.claim is not None
        if not self._ours(connection, message):
            return
        try:
            asked = read_claim(message, self.nodes)
        except ValueError as error:
            self._refuse(connection, str(error))
            return
        if asked.node == self.node:
            self._refuse(connection, f"both are node {self.node}: give each a --node-rank")
            return
        self.heard(asked, now)
        connection.line.send({"t": CLAIM, **claim_message(self.claim())})

    def _accept(self, now: float) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            if sum(1 for one in self.connections if one.node is None) >= STRANGERS:
                sock.close()
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.append(NodeConnection(Connection(sock), now, Prover(self.key, "coordinator")))

    def _join(
        self, connection: NodeConnection, message: Message, lost: list[tuple[int, str]]
    ) -> list[tuple[int, Message, bytes]]:
        if not self._ours(connection, message):
            return []
        if self.claim is not None and not self.claim().leads:
            connection.line.send(Away().message())
            return []
        node = message.get("node")
        if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < self.nodes or node == self.node:
            text = (
                f"node rank {node!r} is not another one of 0 to {self.nodes - 1}: each node needs its own --node-rank"
            )
            self._refuse(connection, text)
            return []
        for other in [one for one in self.connections if one.node == node]:
            # the node reconnected before its loss was detected
            self._drop(other)
            lost.append((node, "it connected again"))
        connection.node = node
        return [(node, message, b"")]

    def _ours(self, connection: NodeConnection, message: Message) -> bool:
        """Whether a node is of this job; otherwise it is sent the difference."""
        wanted = {"version": VERSION, "job": self.job, "nodes": self.nodes, "nproc": self.nproc}
        for name, value in wanted.items():
            if message.get(name) != value:
                given = repr(message.get(name))[:100]
                text = f"this job has {name} {value!r}, node {str(message.get('node'))[:20]} has {given}"
                if text not in self._said and len(self._said) < STRANGERS:
                    # a node of another job asks again until this one has ended
                    self._said.add(text)
                    say(f"a node was refused: {text}"[:300])
                self._refuse(connection, text, name)
                return False
        return True

    def _drop(self, connection: NodeConnection) -> None:
        self.connections.remove(connection)
        connection.line.close()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens at ``host``; without one at every address of this machine, of IPv4 and of IPv6. Raises
    ``OSError``."""
    if not host:
        try:
            return _bound(socket.AF_INET6, "::", port)
        except OSError as error:
            # kernels without IPv6, and those where it is switched off
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT):
                raise
            host = "0.0.0.0"
    return _bound(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":
            # a name of two families is mostly resolved to its IPv6 address first
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.listen(1024)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class CoordinatorLink:
    """A node's connection to the coordinator, renewed whenever it is lost."""

    def __init__(self, host: str, port: int, key: bytes = b"") -> None:
        self.host, self.port, self._key = host, port, key
        self._prover = Prover(key, "node")
        self._announced = True
        """Whether the owner knows of this connection."""
        self.line: Connection | None = None
        self.address = ""
        self.refused = ""
        self.lost_at: float | None = None
        self._broken: OSError | FrameError | None = None
        """Why nothing can be sent any more; what has arrived is still read."""
        self._tried = self._last_seen = self._pinged = 0.0

    def descriptors(self) -> list[tuple[int, bool]]:
        """Return the descriptors to poll: (descriptor, also for writing)."""
        return [] if self.line is None else [(self.line.fileno(), self.line.waiting)]

    def connect(self, now: float) -> bool:
        """Try to connect, at most every half second; whether a new connection stands, on which to join: both ends have
        proven that they know the secret."""
        if self.line is not None and self._prover.proven and not self._announced:
            self._announced = True
            return True
        if self.line is not None or now - self._tried < AGAIN:
            return False
        self._tried = now
        self.lost_at = self.lost_at or now
        try:
            sock = socket.create_connection((self.host, self.port), timeout=AGAIN / 2)
        except OSError:
            return False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = sock.getsockname()[0]
        self.line, self._last_seen, self._broken = Connection(sock), now, None
        self._prover = Prover(self._key, "node")
        if (hello := self._prover.hello()) is not None:
            self._announced = False
            self.send(hello)
            return False
        self.lost_at = None
        return True

    def handle(self, ready: set[int], now: float) -> list[tuple[Message, bytes]]:
        """Return the messages of the coordinator that have arrived."""
        if self.line is None:
            return []
        found: list[tuple[Message, bytes]] = []
        try:
            messages = self.line.receive() if self._broken or self.line.fileno() in ready else []
            if messages is None:
                raise self._broken or ConnectionError("closed")
            if messages:
                self._last_seen = now
            for message, payload in messages:
                if self._is_for_owner(message):
                    found.append((message, payload))

            # what had arrived is read: now a broken line counts as lost
            if self._broken and not messages:
                raise self._broken
            if now - self._last_seen > SILENT:
                raise ConnectionError(f"silent for {SILENT:g} s")
            self._flush()
            if now - self._pinged > PING and self._prover.proven and self._announced:
                self._pinged = now
                self.send(Ping().message())
        except (OSError, FrameError) as error:
            say(f"the coordinator at {self.host}:{self.port} is lost ({error}); ranks wait for one")
            self.close()
        return found

    def _is_for_owner(self, message: Message) -> bool:
        """Whether a message goes to the owner of this connection; others are of the connection itself. Raises
        ``ConnectionError`` when that is over."""
        if message["t"] == Refused.KIND:
            self.refused = str(message.get("text", ""))[:500]
            return False
        if not self._prover.proven:
            self._prove(message)
            return False
        if message["t"] == Away.KIND:
            raise ConnectionError("it does not lead any more")
        return bool(message["t"] != Ping.KIND)

    def _prove(self, message: Message) -> None:
        """Raises ``ConnectionError`` when the other end does not know the secret."""
        answer = self._prover.answer(message)
        if answer is None:
            raise ConnectionError("it does not know the secret of this job: give all nodes the same --secret-file")
        self.send(answer)
        self.lost_at = None

    def send(self, message: Message, payload: bytes = b"") -> None:
        """Send to the coordinator; without a connection the next join carries the state."""
        if self.line is not None and self._broken is None:
            try:
                self.line.send(message, payload)
            except (OSError, FrameError) as error:
                # its last message may be there, unread
                self._broken = error

    def _flush(self) -> None:
        if self.line is not None and self._broken is None:
            try:
                self.line.flush()
            except OSError as error:
                self._broken = error

    def close(self) -> None:
        """Close the connection."""
        if self.line is not None:
            self.line.close()
            self.line = None
