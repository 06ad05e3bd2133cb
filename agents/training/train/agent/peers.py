"""Questions to other nodes about who leads: short connections that never block the loop of the node agent."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import threading
from dataclasses import dataclass

from belay.agents.training.train.agent.proof import Prover
from belay.agents.training.train.decide.election import Claim
from belay.agents.training.train.frames import Connection, FrameError, Message
from belay.agents.training.train.protocol import CLAIM, WHO, Refused

ASK = 0.5
"""Seconds between questions to the same node; more with more than a thousand nodes."""
ANSWER = 1.0
"""Seconds to wait for an answer."""


def claim_message(claim: Claim) -> Message:
    """A claim as fields of a message."""
    return {"node": claim.node, "term": claim.term, "leader": claim.leader, "joined": claim.joined}


def read_claim(message: Message, nodes: int) -> Claim:
    """The claim in a message. Raises ``ValueError`` when it cannot be one of a job of ``nodes`` nodes."""
    found = [message.get(name) for name in ("node", "term", "leader", "joined")]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        raise ValueError(f"a claim holds {str(found)[:100]} instead of four whole numbers")
    node, term, leader, joined = (int(str(one)) for one in found)
    if not (0 <= node < nodes and -1 <= leader < nodes and 0 <= term < 1 << 53 and 0 <= joined <= nodes):
        raise ValueError(f"a claim of node {node}, leader {leader}, term {term} does not fit a job of {nodes} nodes")
    return Claim(node, term, leader, joined)


@dataclass
class _Question:
    line: Connection
    asked: float
    prover: Prover
    text: Message
    """What is asked, once both ends have proven that they know the secret."""


class Peers:
    """The other nodes. ``addresses``: node → host and port; ``own``: the fields by which a job is recognised; ``key``:
    its secret."""

    def __init__(self, addresses: dict[int, tuple[str, int]], own: Message, key: bytes = b"") -> None:
        self.addresses, self._own, self.key = addresses, own, key
        self._nodes = len(addresses)
        self._resolved: dict[str, list[tuple[int, str]]] = {}
        """Host → families and addresses, of which the first one is used."""
        self._resolving: set[str] = set()
        self._open: dict[int, _Question] = {}
        self._asked: dict[int, float] = {}
        self.refused = ""
        """Why a node did not answer: it has another version or number of processes, or the rank of this one."""
        self.others: dict[int, str] = {}
        """Node → what one of another job said in its place: mostly one that has not ended yet."""

    def ask(self, nodes: list[int], claim: Claim, now: float) -> None:
        """Ask these nodes, unless they were asked a moment ago."""
        pause = max(ASK, self._nodes / 1000)
        for node in nodes:
            if node not in self._open and now - self._asked.get(node, -pause) >= pause:
                self._asked[node] = now
                self._ask(node, claim, now)

    def address(self, node: int) -> tuple[str, int] | None:
        """The address of a node as numbers; None until its name is known."""
        host, port = self.addresses[node]
        found = self._resolve(host)
        return None if found is None else (found[1], port)

    def descriptors(self) -> list[tuple[int, bool]]:
        """Descriptors to poll: (descriptor, also for writing)."""
        return [(one.line.fileno(), one.line.waiting) for one in self._open.values()]

    def handle(self, ready: set[int], now: float) -> list[Claim]:
        """Return the answers of other nodes that have arrived."""
        found: list[Claim] = []
        for node, question in list(self._open.items()):
            answered, over = False, now - question.asked > ANSWER
            if question.line.fileno() in ready:
                try:
                    question.line.flush()
                    messages = question.line.receive()
                    for message, _ in messages or []:
                        if not question.prover.proven and message["t"] != Refused.KIND:
                            over = not self._proven(question, message)
                            continue
                        over = answered = True
                        found += self._answer(node, message)
                    over = over or messages is None
                except (OSError, FrameError, ValueError):
                    over = True

            if over:
                del self._open[node]
                question.line.close()
                if not answered:
                    self._turn(self.addresses[node][0])
        return found

    def _answer(self, node: int, message: Message) -> list[Claim]:
        """The claim in an answer; why there is none is kept. Raises ``ValueError`` when it cannot be read."""
        host, port = self.addresses[node]
        if message["t"] == CLAIM:
            claim = read_claim(message, self._nodes)
            self.others.pop(node, None)
            return [claim]
        if message["t"] == Refused.KIND:
            text = f"node {node} at {host}:{port}: {str(message.get('text', ''))[:500]}"
            if message.get("field") == "job":
                self.others[node] = text
            else:
                self.refused = text
        return []

    def close(self) -> None:
        """Drop open questions."""
        for question in self._open.values():
            question.line.close()
        self._open.clear()

    def _ask(self, node: int, claim: Claim, now: float) -> None:
        host, port = self.addresses[node]
        resolved = self._resolve(host)
        if resolved is None:
            return
        try:
            sock = socket.socket(resolved[0], socket.SOCK_STREAM)
        except OSError:
            # no descriptor is free, or this machine lacks the family: again with the next question
            self._turn(host)
            return
        sock.setblocking(False)
        if sock.connect_ex((resolved[1], port)) not in (0, errno.EINPROGRESS):
            if not self._turn(host):
                # the name may belong to another address now
                self._resolved.pop(host, None)
            sock.close()
            return
        line, prover = Connection(sock), Prover(self.key, "node")
        text: Message = {"t": WHO, **self._own, **claim_message(claim)}
        try:
            line.send(prover.hello() or text)
        except (OSError, FrameError):
            self._turn(host)
            line.close()
            return
        self._open[node] = _Question(line, now, prover, text)

    @staticmethod
    def _proven(question: _Question, message: Message) -> bool:
        """Whether the other end knows the secret; then it is asked."""
        proof = question.prover.answer(message)
        if proof is None:
            return False
        question.line.send(proof)
        question.line.send(question.text)
        return True

    def _turn(self, host: str) -> bool:
        """Use the next address of a host; False if it has no other one."""
        found = self._resolved.get(host, [])
        if len(found) > 1:
            found.append(found.pop(0))
        return len(found) > 1

    def _resolve(self, host: str) -> tuple[int, str] | None:
        """Family and address of a host; a name is looked up in a thread, since that can take seconds."""
        if host not in self._resolved:
            with contextlib.suppress(ValueError):
                version = ipaddress.ip_address(host).version
                self._resolved[host] = [(socket.AF_INET6 if version == 6 else socket.AF_INET, host)]
        if host not in self._resolved and host not in self._resolving:
            self._resolving.add(host)
            threading.Thread(target=self._look_up, args=(host,), name="belay-resolve", daemon=True).start()
        found = self._resolved.get(host)
        return found[0] if found else None

    def _look_up(self, host: str) -> None:
        try:
            known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            self._resolved[host] = list(dict.fromkeys((int(family), str(address[0])) for family, *_, address in known))
        except (OSError, UnicodeError):
            # tried again with the next question
            pass
        finally:
            self._resolving.discard(host)
