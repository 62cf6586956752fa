"""Freshness: how long a message counts, and how far two clocks may differ."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.security.header import AnySecurity, Invalid, Timestamp
from holdfast.settings import Seconds, SecondsOrZero, check_settings


@dataclass(frozen=True)
class Freshness:
    """How old a message may be, and how far two clocks may differ: ``X509(…, freshness=Freshness(life=60))``.

    It counts for each Timestamp that is written, and for each Timestamp, nonce, digest and signature that is received
    (SOAP Message Security 1.1, section 10). A nonce or a signature is remembered until it is too old.

    Args:
        life: Seconds for which a message is valid, as CXF, Metro and WCF write and accept it.
        skew: Seconds that the peer's clock may be ahead or behind, as in CXF.
    """

    life: Seconds = 300.0
    skew: SecondsOrZero = 60.0

    def __post_init__(self) -> None:
        check_settings(self)

    def check(self, timestamp: Timestamp, now: float) -> None:
        """Check that a message is neither too old nor from the future.

        Raises:
            Invalid: It is.
        """
        self.check_times(timestamp.created, timestamp.expires, now)

    def check_times(self, created: float | None, expires: float | None, now: float) -> None:
        """Check the two times of a Timestamp, None if absent (SOAP Message Security 1.1, section 10).

        Raises:
            Invalid: The message is too old or from the future.
        """
        if created is not None and created > now + self.skew:
            raise Invalid(f"created {created - now:.0f} s in the future: compare the clocks")
        if created is not None and created + self.life < now - self.skew:
            raise Invalid(f"created {now - created:.0f} s ago: compare the clocks")
        if expires is not None and expires < now - self.skew:
            raise Invalid(f"expired {now - expires:.0f} s ago: compare the clocks")
        if created is not None and expires is not None and expires < created:
            raise Invalid("it expires before it is created")

    def until(self, created: float) -> float:
        """Return when a message is too old, so that it need no longer be remembered."""
        return created + self.life + self.skew


def check_fresh(security: AnySecurity | None, freshness: Freshness, now: float) -> None:
    """Check the Timestamp of a Security header, if it has one. Raises as :meth:`Freshness.check`."""
    if security is not None and security.timestamp is not None:
        freshness.check(security.timestamp, now)
