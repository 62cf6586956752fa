"""The Java stacks of the live tests: how each is set up, and what each of them cannot do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.messages import Expects

_METRO_WSDL = Path(__file__).with_name("metro") / "contract.wsdl"


def cxf(versions: holdfast.Versions, **changed: Any) -> dict[str, Any]:
    """Settings of a CXF bus: exactly once, in order, without a store, retransmission after 300 ms."""
    return {
        **{"rm": versions.rm.value, "wsa": versions.addressing.value, "soap": versions.soap.value},
        **{"ordered": True, "offer": True, "retry": False, "store": "no", "interval": 300, "beside": False},
        **{"security": "no", "user": "alice", "mtom": False, "bytes": 0, "wsdl": "no", "policy": "no"},
        **{"saml": "no", "method": "bearer", "proves": False},
        **changed,
    }


def metro(versions: holdfast.Versions, **changed: Any) -> dict[str, Any]:
    """Settings of Metro: in order, retransmission after 500 ms, AckRequested only in retransmissions.

    A call never returns if a stand-alone AckRequested is answered while its message is lost or repeated.
    """
    told = {"rm": versions.rm.value, "soap": versions.soap.value, "wsdl": _METRO_WSDL.as_uri()}
    told |= {"polls": False, "mtom": False, "bytes": 0, "policy": "no", "tls": "no"}
    return {**told, "ordered": True, "interval": 500, "asks": 600_000, **changed}


def sandesha(versions: holdfast.Versions, **changed: Any) -> dict[str, Any]:
    """Settings of Sandesha2: in order, retransmission after 500 ms, without a limit of repeats."""
    told = {"rm": versions.rm.value, "wsa": versions.addressing.value, "soap": versions.soap.value}
    return {**told, "ordered": True, "interval": 500, "polls": False, **changed}


@dataclass(frozen=True)
class Stack:
    """A stack, and where its behaviour decides how Holdfast or its client must be set up."""

    name: str
    """Of the fixture that starts it."""
    words: Callable[..., dict[str, Any]]
    """Its settings for given versions."""
    anonymous: dict[str, Any]
    """Further settings of an anonymous client, which receives replies in the HTTP responses."""
    with_slow_services: dict[str, Any]
    """Instead of these, where a request takes longer than the client's retransmission timeout."""
    in_outages: dict[str, Any] = field(default_factory=dict)
    """Besides these, where Holdfast is restarted while it waits for replies."""
    expects: Expects | None = None
    """What a broker's route says about its clients' requests, where their messages do not."""
    keeps_replies: bool = True
    """Whether its service repeats a reply that was lost in an HTTP response."""

    def client_words(
        self, versions: holdfast.Versions, *, asks: bool, slow: bool = False, outages: bool = False
    ) -> dict[str, Any]:
        """Settings of a client.

        Args:
            versions: Of the protocols.
            asks: Whether it waits for replies.
            slow: Whether these take longer than its retransmission timeout.
            outages: Whether Holdfast is restarted meanwhile.
        """
        changed = dict(self.with_slow_services if slow else self.anonymous)
        if asks and outages:
            changed |= self.in_outages
        return self.words(versions, **changed)


STACKS = {
    "metro": Stack("metro", metro, {}, {}),
    # Its anonymous requests have no ReplyTo. One that is repeated while its exchange is open can lose its reply.
    "sandesha": Stack(
        "sandesha",
        sandesha,
        {"addressed": False},
        {"addressed": True},
        in_outages={"interval": 3000},
        expects=Expects.REQUEST,
    ),
    "cxf": Stack("cxf", cxf, {"decoupled": False}, {"decoupled": False}, keeps_replies=False),
}
