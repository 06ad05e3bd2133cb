"""Sends one message to one receiver: its secrets are read, its address is checked, its answer is judged."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import aiohttp

from belay.engine.errors import BelayError, InputError, bounded
from belay.engine.model.notices import ReceiverType
from belay.engine.serve.notify import mail, shapes
from belay.engine.serve.notify.addresses import AllowedHosts, CheckedResolver, HostNotAllowed, shown
from belay.engine.serve.notify.messages import Message

if TYPE_CHECKING:
    from belay.engine.documents import Receiver, SecretValue

SECONDS: Final = 15.0
MOST_ANSWER: Final = 16 * 1024
MOST_SECRET: Final = 4096
_RETRY_CODES: Final = (429, 503)


class NotSent(BelayError):
    """A receiver did not take a message; ``retry_after`` is the milliseconds for which it wants to be left alone."""

    code = "NotSent"

    def __init__(self, message: str, *, retry_after: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class Delivery(Protocol):
    """What sends messages."""

    async def send(self, receiver: Receiver, message: Message) -> None:
        """Send; raises NotSent, whose text names no secret."""


class NetworkDelivery:
    """Sends over the network. ``secrets`` is the folder of Secret belay-notify, ``hosts`` the setting."""

    def __init__(self, secrets: Path, hosts: str, environ: Mapping[str, str] | None = None) -> None:
        self._secrets, self._allowed = secrets, AllowedHosts(hosts)
        self._environ = os.environ if environ is None else environ
        self._context = ssl.create_default_context()

    async def send(self, receiver: Receiver, message: Message) -> None:
        """Send; raises NotSent."""
        try:
            async with asyncio.timeout(2 * SECONDS):
                if receiver.type is ReceiverType.EMAIL:
                    await self._mail(receiver, message)
                else:
                    await self._post(receiver, message)
        except NotSent:
            raise
        except TimeoutError:
            raise NotSent("it does not answer in time") from None
        except InputError as error:
            raise NotSent(error.message, hint=error.hint) from None

    async def _mail(self, receiver: Receiver, message: Message) -> None:
        server = receiver.email
        assert server is not None
        if server.security == "none" and not self._allowed.names(server.host, server.port):
            raise HostNotAllowed(
                f"{server.host} would get messages without TLS",
                hint=f"Set security: starttls, or name {server.host}:{server.port} in BELAY_NOTIFY_HOSTS.",
            )
        password = self._secret(server.password) if server.password is not None else ""
        try:
            address = await self._allowed.address_of(server.host, server.port)
            await asyncio.to_thread(mail.send, server, address, password, message, self._context)
        except (mail.MailRefused, OSError) as error:
            raise NotSent(bounded(str(error), 300)) from None

    async def _post(self, receiver: Receiver, message: Message) -> None:
        url = self._secret(receiver.url) if receiver.url is not None else receiver.address or ""
        self._allowed.check_url(url)
        key = self._secret(receiver.signing_key) if receiver.signing_key is not None else ""
        token = self._secret(receiver.token) if receiver.token is not None else ""
        asked = shapes.request(receiver.type, url, message, key=key, token=token)
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "belay", **asked.headers}
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        connector = aiohttp.TCPConnector(resolver=CheckedResolver(self._allowed), ssl=self._context, force_close=True)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False) as session,
                session.post(asked.url, data=asked.body, headers=headers, allow_redirects=False) as response,
            ):
                answer = await response.content.read(MOST_ANSWER)
                status, wait = response.status, _retry_after(response.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # the text of such an error may hold the whole address, and so the token in it
            raise NotSent(f"{shown(url)} {_failure(error)}") from None
        if why := shapes.refusal(receiver.type, status, answer):
            raise NotSent(
                self._without_secrets(why, url, key, token), retry_after=wait if status in _RETRY_CODES else 0
            )

    def _secret(self, value: SecretValue) -> str:
        """The text that a policy names. Raises NotSent, which names where it should be."""
        if value.env is not None:
            found = self._environ.get(value.env, "")
            if not found:
                raise NotSent(f"variable {value.env} of belay server is empty")
            return found
        try:
            with open(self._secrets / str(value.secret), encoding="utf-8") as file:
                found = file.read(MOST_SECRET + 1).strip()
        except (OSError, UnicodeError) as error:
            raise NotSent(
                f"Secret belay-notify has no usable key {value.secret} ({type(error).__name__})",
                hint="Add the key; it arrives in the server's pod within a minute or two.",
            ) from None
        if not found or len(found) > MOST_SECRET:
            raise NotSent(f"key {value.secret} of Secret belay-notify is empty or longer than {MOST_SECRET} characters")
        return found

    @staticmethod
    def _without_secrets(text: str, *secrets: str) -> str:
        for secret in secrets:
            if secret:
                text = text.replace(secret, "…")
        return text


def _failure(error: Exception) -> str:
    """What a connection failed by, in words of our own."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, HostNotAllowed):
        return f"cannot be reached ({cause.message})"
    match error:
        case TimeoutError():
            return f"does not answer within {SECONDS:.0f} s"
        case aiohttp.ClientConnectorCertificateError():
            why = getattr(error.certificate_error, "verify_message", "") or "its name is another"
            return f"has a certificate that is not trusted: {why}"
        case aiohttp.ClientConnectorSSLError():
            return f"cannot be reached: TLS fails ({getattr(error.os_error, 'reason', None) or 'without a reason'})"
        case aiohttp.ClientConnectorDNSError():
            return "cannot be reached: there is no address of this name"
        case aiohttp.ClientConnectorError() if error.os_error.errno:
            return f"cannot be reached: {os.strerror(error.os_error.errno)}"
        case aiohttp.ClientConnectorError():
            return "cannot be reached"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            return "closed the connection without an answer"
        case _:
            return f"cannot be reached ({type(error).__name__})"


def _retry_after(text: str) -> int:
    return min(int(text), 3600) * 1000 if text.isascii() and text.isdecimal() and len(text) < 7 else 0
