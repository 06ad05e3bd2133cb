"""Notifications by e-mail: one message, sent by SMTP. Blocking; the server calls it in a thread.

Sources: RFC 5321 (SMTP), RFC 5322 (messages), RFC 3834 (Auto-Submitted), RFC 3207 (STARTTLS).
"""

from __future__ import annotations

import smtplib
import socket
import ssl
from email.message import EmailMessage
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final

from belay.engine.errors import BelayError, bounded
from belay.engine.serve.notify.messages import Message
from belay.engine.serve.notify.shapes import rest

if TYPE_CHECKING:
    from belay.engine.documents import MailServer

SECONDS: Final = 15.0


class MailRefused(BelayError):
    """The mail server did not take a message."""

    code = "NotSent"


def mail(server: MailServer, message: Message) -> EmailMessage:
    """The message as text. Its Message-ID is the same whenever it is tried again, so that it is shown once."""
    made = EmailMessage()
    made["Subject"] = bounded(_line(message.title), 200)
    made["From"] = server.sender
    made["To"] = ", ".join(server.to)
    made["Date"] = formatdate(message.time / 1000)
    made["Message-ID"] = f"<{message.key}.belay@{server.sender.partition('@')[2]}>"
    made["Auto-Submitted"] = "auto-generated"
    parts = ["\n".join((item.lines[0], *(f"  {line}" for line in item.lines[1:]))) for item in message.items]
    parts += [text for text in (rest(message, len(message.items)),) if text]
    parts.append(f"Sent by Belay, rule {message.rule}.")
    made.set_content("\n\n".join(parts) + "\n")
    return made


def send(server: MailServer, address: str, password: str, message: Message, context: ssl.SSLContext) -> None:
    """Send it to the server at an IP address that was checked.

    Raises:
        MailRefused: the server does not answer or does not take it; no part of the password is in the text.
    """
    try:
        with _Connection(server, address, context) as smtp:
            smtp.ehlo()
            if server.security == "starttls":
                smtp.starttls(context=context)
                smtp.ehlo()
            if server.username is not None:
                smtp.login(server.username, password)
            smtp.send_message(mail(server, message))
    except (smtplib.SMTPException, OSError, ValueError, UnicodeError) as error:
        raise MailRefused(bounded(f"{server.host}:{server.port}: {_why(error)}", 300)) from None


class _Connection(smtplib.SMTP):
    """A connection to the address that was checked; certificates are compared with the server's name."""

    def __init__(self, server: MailServer, address: str, context: ssl.SSLContext) -> None:
        self._to, self._tls = address, context if server.security == "tls" else None
        self._named = server.host
        super().__init__(server.host, server.port, timeout=SECONDS)

    def _get_socket(self, host: str, port: int, timeout: float) -> Any:
        found = socket.create_connection((self._to, port), timeout)
        return self._tls.wrap_socket(found, server_hostname=self._named) if self._tls is not None else found


def _why(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"it refuses the username or password (code {error.smtp_code})"
    if isinstance(error, smtplib.SMTPResponseException):
        said = error.smtp_error
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        return f"it answers {error.smtp_code} {_line(text)}"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return f"it refuses {len(error.recipients)} of the recipients"
    return f"{type(error).__name__}: {_line(str(error))}"


def _line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
