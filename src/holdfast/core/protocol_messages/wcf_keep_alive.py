"""Keep-alive: which sources are never silent for long while they run.

WCF's client asks for an acknowledgement after every half of its InactivityTimeout without a message, ten minutes unless
configured. It keeps nothing on disk: a client that fell silent is gone, and no process resumes its Sequence.
"""

from __future__ import annotations

from holdfast.core.messages import CreateSequence, Envelope, IncompleteSequenceBehavior
from holdfast.core.origin import Origin
from holdfast.core.versions import RM, Addressing


def is_kept_alive(envelope: Envelope, create: CreateSequence, origin: Origin) -> bool:
    """Whether a CreateSequence is that of a two-way WCF client.

    All other stacks that were recorded differ: they send a User-Agent, which WCF does not, ReplyTo under WS-Addressing
    2005/08, or Expires. A durable source may come back after a night, so a request counts only if every part of it is
    WCF's.
    """
    # A certificate or a user name outlives a process, so a named party may resume its Sequence.
    offer = create.offer
    if origin.is_named or offer is None or not create.acks_to.is_anonymous:
        return False
    if create.expires is not None or offer.expires is not None:
        return False
    if envelope.rm is RM.V1_1:
        behavior = offer.incomplete_sequence_behavior
        is_like_wcf = behavior is IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP
        if not is_like_wcf or offer.endpoint is None or not offer.endpoint.is_anonymous:
            return False
    if envelope.addressing is Addressing.V2005_08:
        # WCF leaves out an anonymous ReplyTo where it is the default, and must name it in 2004/08.
        return envelope.reply_to is None
    return envelope.reply_to is not None and envelope.reply_to.is_anonymous
