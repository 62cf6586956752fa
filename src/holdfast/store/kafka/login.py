"""KafkaLogin: the password of the clients that one owner has, and whether Kafka accepts them. Knows no topic."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError

from holdfast.outages import Away
from holdfast.store.address import no_password
from holdfast.store.kafka.address import KafkaAddress

_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the file of the password."""
_NO_LOGIN: Final = (
    "Check the user in the URL, its password, and sasl.mechanism. Running processes follow a new password in "
    "store_password_file. After a change of store_password_env or of the URL, restart them."
)
_NO_TRUST: Final = (
    "Check ssl.ca.location in the URL: a PEM file with the authority that signed the brokers' certificates. The "
    "certificates must name the hosts in the URL, and must not have expired."
)
_REFUSALS: Final = {
    KafkaError._AUTHENTICATION: ("refused login", _NO_LOGIN),
    KafkaError.SASL_AUTHENTICATION_FAILED: ("refused login", _NO_LOGIN),
    KafkaError._SSL: ("refused certificate", _NO_TRUST),
}
"""What a client does not get over by waiting, and what to do."""
_PROOF: Final = "certificate"
"""In the text of an error of TLS that remains. Others may come from a broker that stops."""
MOST_TEXT: Final = 1000
"""Characters of a reason: a broker may send 32 KB, and the search for its address takes the square of that."""
_BROKER = re.compile(r"^.*?\S+:\d+(/\w+)?: ")
_ATTEMPT = re.compile(r" \(after \d+ms in state .*\)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why Kafka and a client do not accept each other.

    Args:
        why: The reason, which is the same for all brokers and attempts.
        remedy: What to do.
    """

    why: str
    remedy: str


class KafkaAway(Away):
    """Kafka does not answer, or cannot do something now."""


class KafkaLogin:
    """The login of an owner's clients of Kafka.

    librdkafka logs in for each new connection, with the password that its client has then. So the owner calls
    :meth:`renew` again and again, and clients that serve meanwhile keep their connections.

    Args:
        address: Where Kafka is, with its own settings for TLS and SASL.

    Attributes:
        refusal: Why Kafka accepts no new connection of a client; None: it does, as far as is known.
    """

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._password: str | None = None
        """The one that every client has."""
        self._look_at = 0.0
        self.refusal: Refusal | None = None

    def settings(self, hear: Callable[[KafkaError], None] | None = None) -> dict[str, Any]:
        """Return the settings of a new client.

        Args:
            hear: Called with errors of connections, after :meth:`hear`.

        Raises:
            KafkaAway: The file of the password is empty or unreadable, and was not read before: it may come later.
        """

        def heard(error: KafkaError) -> None:
            self.hear(error)
            if hear is not None:
                hear(error)

        return {
            "bootstrap.servers": self._address.servers,
            "client.id": "holdfast",
            # librdkafka's default of ten seconds would lengthen every outage.
            "reconnect.backoff.max.ms": 1000,
            "socket.nagle.disable": True,
            "topic.metadata.refresh.interval.ms": 30_000,
            "allow.auto.create.topics": False,  # Kafka would create a topic that is looked up, with its own defaults
            "error_cb": heard,
            "log_level": 2,
            **self._address.options,
            **self._login(),
        }

    def _login(self) -> dict[str, str]:
        if not self._address.password_file:
            return {}
        password = self._address.password() or self._password
        if password is None:
            trouble = no_password(self._address.password_file)
            raise KafkaAway(trouble.what, trouble.remedy)
        self._password = self._password or password
        return {"sasl.password": password}

    def renew(self, *clients: Any) -> None:
        """Give clients the password that its file has now, at most once a second. Do not call it in their callbacks.

        Args:
            clients: All clients that were made with :meth:`settings` and are not closed; None has no effect.
        """
        now = time.monotonic()
        if not self._address.password_file or now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        password = self._address.password()
        # A file that is being written may be empty for a moment.
        if not password or password == self._password:
            return
        user = self._address.options.get("sasl.username", "")
        for client in clients:
            if client is not None:
                client.set_sasl_credentials(user, password)
        self._password, self.refusal = password, None

    def hear(self, error: KafkaError) -> bool:
        """Remember a refusal until :meth:`answered`: later attempts often tell only that they got no answer.

        Returns:
            Whether the error is a refusal.
        """
        found = _REFUSALS.get(error.code())
        text = error.str()[:MOST_TEXT]
        is_refusal = found is not None and (error.code() != KafkaError._SSL or _PROOF in text)
        if found is not None and is_refusal:
            kind, remedy = found
            self.refusal = Refusal(f"{kind}: {_ATTEMPT.sub('', _BROKER.sub('', text, count=1))}", remedy)
        return is_refusal

    def answered(self) -> None:
        """Kafka has answered what the owner needs."""
        self.refusal = None

    def away(self, why: str, remedy: str = "") -> KafkaAway:
        """Return the error for a Kafka that does not serve: with the refusal, if there is one, instead of a reason."""
        return KafkaAway(why, remedy) if self.refusal is None else KafkaAway(self.refusal.why, self.refusal.remedy)
