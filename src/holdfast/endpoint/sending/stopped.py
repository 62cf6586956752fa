"""Why a source has stopped, in the words of its error, or of the log: what was said, what is safe, what to do.

Knows the codes that the core tells; decides nothing.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.events import Incident, Stopped, Unanswered, Unheard
from holdfast.core.faults import CREATE_SEQUENCE_REFUSED
from holdfast.core.messages import ANONYMOUS
from holdfast.core.sending.outboxes.retraction import RETRACTED
from holdfast.core.sending.reasons import UNSENDABLE
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.outboxes import forwarder_of
from holdfast.exceptions import (
    SEQUENCE_FAULTS,
    ConfigurationError,
    DeliveryError,
    HoldfastError,
    NotAcknowledged,
    PeerFault,
    SequenceLost,
    StoreDamaged,
    StoreFailed,
)
from holdfast.store import IN_MEMORY

STILL_ASKED = "The request is stored and still tried; ask for the reply again with source.reply()."
PERHAPS_ASKED = (
    "If it was sent from this store, and its reply was not taken before, it is still tried: "
    "ask for the reply again with source.reply()."
)

_REMEDY = "Put it right"
_WHO = "It does not know who sends: headers={'Authorization': …}, or --header 'Authorization: …'. Put it right"
_WHERE = "If the URL is wrong, send to the right one from another store: each serves one URL. If not, put it right"
_REMEDIES = {"HTTP 401": _WHO, "HTTP 403": _WHO, "HTTP 404": _WHERE, "HTTP 405": _WHERE, "HTTP 200": _WHERE}
"""What to look at first when something before the destination has answered in its place."""
_NO_SEQUENCE = (
    "It granted no Sequence. Check that reliable messaging is enabled at that endpoint (WCF: reliableSession; CXF: the "
    "reliableMessaging feature), or fix what the fault names"
)


def stop_error(stopped: Stopped, to: str, waiting: int, store: str, because: str) -> HoldfastError:
    """The error for whoever waits.

    Args:
        stopped: What the core tells.
        to: The destination's URL.
        waiting: Messages that are not acknowledged.
        store: Where they are.
        because: What the transport said last, to be put behind a sentence; "" for nothing.
    """
    safe, resume = _what_is_safe(waiting, store)
    about = ""
    if stopped.refused is not None:
        identifier, number = stopped.refused
        about = f" to message {number} of the Sequence {identifier}"
    if stopped.code == UNSENDABLE:
        what = f"what goes{about}" if about else "what asks it for a Sequence"
        message = f"{what} at {to} cannot be written: {stopped.reason}"
        remedy = f"{_REMEDY}, or give that one up: holdfast outbox discard" if about else _REMEDY
        return DeliveryError(message, remedy=f"{safe} {remedy}. Then: {resume}")
    said = f'the destination {to} said {stopped.code}{about}: "{stopped.reason}"'
    if stopped.code == CREATE_SEQUENCE_REFUSED:
        message = f'the destination {to} refused the sequence: {stopped.code}\n  it said: "{stopped.reason}"'
        return SEQUENCE_FAULTS[stopped.code](message, remedy=f"{safe} Put right what it names, then: {resume}")
    if stopped.first <= stopped.last:
        which = f"Of that sequence, the numbers {stopped.in_doubt}" if stopped.in_doubt else "Some of them"
        doubt = f"{safe} {which} may have arrived. To send them again in a new sequence: {resume}"
        return SequenceLost(said, remedy=doubt)
    if stopped.code in SEQUENCE_FAULTS:
        return SEQUENCE_FAULTS[stopped.code](said, remedy=f"{safe} To go on: {resume}")
    if stopped.code == "given up":
        message = f"the destination {to} gave no sign of life{because}"
        return NotAcknowledged(message, remedy=f"{safe} To try again: {resume}")
    remedy = _REMEDY
    if stopped.code.startswith("HTTP "):
        said = f"the destination {to} answered {stopped.code} and {stopped.reason}"
        remedy = _REMEDIES.get(stopped.code, _REMEDY)
    elif not about:
        remedy = _NO_SEQUENCE
    return PeerFault(said, code=stopped.code, remedy=f"{safe} {remedy}, then: {resume}")


def nothing_to_resume(store: str) -> ConfigurationError:
    """The error for who wants to resume what a store does not hold.

    Args:
        store: Where that is.
    """
    return ConfigurationError(
        f"there is nothing to resume in {store}: no source has stored messages there",
        remedy="Name the store that they were stored in, or say where new ones go.",
    )


def stored_error(error: BaseException, store: str, waiting: int) -> BaseException:
    """The error for who waits for a message that was stored before the store failed.

    Args:
        error: What is wrong with the store. If it is damaged, nothing is known to be safe, and that is said instead.
        store: Where it is.
        waiting: Stored messages that are not acknowledged.
    """
    if isinstance(error, StoreDamaged):
        return error
    them = f"The {waiting} unacknowledged messages that were stored before are" if waiting != 1 else "The message is"
    return StoreFailed(
        f"the store {store} failed: {_message(error)}\n  {them} safe there: do not send again what was stored",
        remedy="Free space or repair the disk, then start again: what is stored is sent, and arrives once.",
    )


def unstored_error(error: BaseException, store: str) -> BaseException:
    """The error for who waits for a message to be stored while the store fails; arguments as for
    :func:`stored_error`."""
    if isinstance(error, StoreDamaged):
        return error
    return StoreFailed(
        f"the store {store} failed: {_message(error)}\n  Whether this message was stored is not known",
        remedy="Free space or repair the disk, and see if it is there before you send it again: "
        f"holdfast outbox list {store}",
    )


def _message(error: BaseException) -> str:
    return error.message if isinstance(error, HoldfastError) else str(error)


def retracted_text(incident: Incident) -> str:
    """What a source reports of a destination that took back an acknowledgement; "" for any other incident."""
    if incident.name != RETRACTED:
        return ""
    detail = incident.detail or {}
    lost = f"{detail['to']} no longer acknowledges message {detail['messages']} of the Sequence {incident.identifier}"
    return f"{lost}, which it had acknowledged. {detail['remedy']}"


def unheard_text(unheard: Unheard, to: str, local: str) -> str:
    """Why nothing moves at a destination that answers, and says nothing.

    Args:
        unheard: What the core tells.
        to: The destination's URL.
        local: Where it is to send what it has to say.
    """
    times = f"{unheard.times} times with success and nothing"
    if not unheard.number:
        return f"{to} has answered the end of the Sequence {unheard.identifier} {times}"
    said = f"{to} has answered message {unheard.number} of the Sequence {unheard.identifier} {times}"
    if local != ANONYMOUS:
        return f"{said}: what it has to say is to come to {local}; can it be reached from there?"
    if unheard.wants_reply:
        return f"{said}: there is no reply to it yet"
    return f"{said}, though it is asked: it neither acknowledges nor refuses it"


def _what_is_safe(waiting: int, store: str) -> tuple[str, str]:
    messages = f"{waiting} unacknowledged message{'s are' if waiting != 1 else ' is'}"
    if store == IN_MEMORY:
        return f"{messages} in memory only, and lost when this process ends.", "source.resume()"
    return f"{messages} safe in {store}.", f"source.resume(), or: holdfast send --resume --store {store}"


def log_stopped(stopped: Stopped) -> None:
    """Write that an outbox sends nothing more until somebody decides, and how to."""
    fields: dict[str, Any] = {"outbox": stopped.key, "code": stopped.code, "reason": stopped.reason}
    if stopped.refused is not None:
        fields["sequence"], fields["message_number"] = stopped.refused
    name = "replies.stopped" if forwarder_of(stopped.key) is None else "forwarder.stopped"
    remedy = "What it has is safe. Put it right, then: holdfast outbox retry --admin URL"
    if stopped.first <= stopped.last:
        which = f"the numbers {stopped.in_doubt}" if stopped.in_doubt else "some of them"
        remedy = (
            f"What it has is safe. Of that Sequence, {which} may have arrived: look at the destination. One that has: "
            "holdfast outbox discard --admin URL. Then the others go on, twice if need be: "
            "holdfast outbox retry --admin URL"
        )
    log.error(name, **fields, remedy=remedy)


def unanswered_error(unanswered: Unanswered, to: str) -> DeliveryError:
    """For who waits for a reply that will not come."""
    return DeliveryError(
        f"{to} has the request {unanswered.message_id} and sent no reply to it",
        remedy="The service takes this action as one-way: use send(). If it should reply, look at its handler.",
    )
