"""Spools: what reads the large messages of an endpoint, while they come over its HTTP connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.core.origin import secret_in
from holdfast.core.records import ContentWriter
from holdfast.endpoint.envelopes.head_spool import HeadSpool
from holdfast.endpoint.envelopes.http_media import is_package
from holdfast.endpoint.envelopes.package_spool import MOST_DROPPED, PackageSpool
from holdfast.http.exchange import Spooling
from holdfast.http.outcome import AnswerSpooling
from holdfast.wire import Limits


class Spools:
    """What spools the large messages of an endpoint, for its HTTP connections."""

    has_given: Callable[[str], bool | None] = staticmethod(lambda _secret: False)
    """Whether this endpoint has given a peer the address with that secret; None: this process does not know it yet."""

    @property
    def limits(self) -> Limits:
        """The limits of one envelope, which may change."""
        raise NotImplementedError

    @property
    def _makes_requests(self) -> bool:
        """Whether the endpoint sends requests, so that replies may come."""
        raise NotImplementedError

    def _is_for_replies(self, target: str) -> bool | None:
        """Whether a request came to an address that only peers of this endpoint's own requests know; None: as for
        :attr:`has_given`."""
        secret = secret_in(target)
        return bool(secret) and self._makes_requests and self.has_given(secret)

    def spooling(self, create: Callable[[], ContentWriter]) -> Spooling:
        """Return what spools the large messages with attachments among requests. It keeps the headers of others that
        come to an address for replies.
        """
        return self.spooling_by(lambda _first: create())

    def spooling_by(self, choose: Callable[[bytes], ContentWriter]) -> Spooling:
        """Return the same, where the first bytes of a message decide where it goes."""

        def spooling(target: str, headers: Mapping[bytes, bytes]) -> PackageSpool | HeadSpool | None:
            spool = self._spool(headers.get(b"content-type", b"").decode("latin-1"), choose)
            is_for_replies = self._is_for_replies(target)
            # A message to another address is no reply: it is refused before it is read.
            if is_for_replies is False:
                return spool
            kept = spool or HeadSpool(self.limits)
            kept.drops_up_to, kept.is_unsure = MOST_DROPPED, is_for_replies is None
            return kept

        return spooling

    def spooling_answers(self, create: Callable[[], ContentWriter]) -> AnswerSpooling:
        """Return the same as :meth:`spooling` for answers to requests of this endpoint."""
        return lambda headers: self._spool(headers.get("content-type", ""), lambda _first: create())

    def spooling_replies_in_answers(self, create: Callable[[], ContentWriter]) -> AnswerSpooling:
        """Return the same as :meth:`spooling_answers`, and keep the headers of a reply that is too large."""
        spooling = self.spooling_answers(create)
        return lambda headers: spooling(headers) or HeadSpool(self.limits)

    def _spool(self, media: str, choose: Callable[[bytes], ContentWriter]) -> PackageSpool | None:
        return PackageSpool(media, choose, self.limits) if is_package(media) else None
