"""Why a source has stopped, in the words of its error, or of the log: what was said, what is safe, what to do.

Knows the codes that the core tells; decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from shlex import quote
from typing import Any

from holdfast.core.events import Incident, Stopped, Unanswered, Unheard
from holdfast.core.faults import (
    CREATE_SEQUENCE_REFUSED,
    HTTP_REFUSES_CREDENTIALS,
    REFUSES_CREDENTIALS,
    UNKNOWN_SEQUENCE,
)
from holdfast.core.messages import ANONYMOUS, MC_ANONYMOUS
from holdfast.core.sending.outboxes.earlier_address import earlier_address
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.peer_answers import numbers_text
from holdfast.core.sending.reasons import NOT_ACCEPTED, NOT_POLLED, UNSENDABLE
from holdfast.endpoint.envelopes.message import too_large_error
from holdfast.endpoint.logs import NOT_VALID, log
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
    counted,
    message_of,
    repair_of,
)
from holdfast.store import IN_MEMORY

STILL_ASKED = "The request is stored and Holdfast keeps retrying; ask for the reply again with source.reply()."
PERHAPS_ASKED = (
    "If it was sent from this store and its reply was not collected before, Holdfast keeps retrying; ask for the "
    "reply again with source.reply()."
)

_REMEDY = "Fix the cause"
_WHO = "It requires authentication: headers={'Authorization': …}, or --header 'Authorization: …'. Set it"
_WRONG = (
    "It refused the credentials in the HTTP header of this source: check the user name and password or the token in "
    "headers={'Authorization': …}, or --header 'Authorization: …', and whether its account is locked"
)
TO_CREDENTIALS = "to the credentials in the HTTP headers"
"""End of the reason of HTTP 401 or 403, if the request had any."""
_WHERE = (
    "If the URL is wrong, send the messages again to the right one, from another store: stored messages keep their "
    "URL. Otherwise, fix the cause"
)
_CREDENTIALS = (
    "The destination requires other credentials. Check those of this source: its user name and password (in Python, or "
    "--username and --password-file), its certificate or its assertion. Check the policy in the destination's WSDL "
    "and both clocks, or fix the cause that its log names"
)
_REMEDIES = {
    **dict.fromkeys(REFUSES_CREDENTIALS, _CREDENTIALS),
    **{"HTTP 401": _WHO, "HTTP 403": _WHO, "HTTP 404": _WHERE, "HTTP 405": _WHERE, "HTTP 200": _WHERE},
}
"""First remedy, by the code of the fault, or by the HTTP status of another program that answered."""
_NO_SEQUENCE = (
    "It granted no Sequence. Check that reliable messaging is enabled at that endpoint (WCF: reliableSession; CXF: "
    "the reliableMessaging feature), or fix the cause that the fault names"
)
_NOT_POLLED = (
    "Enable MakeConnection there (Metro: the policy assertion MCSupported; Sandesha2: EnableMakeConnection). Or send "
    "from another store without polls: omit poll of SourceHTTP, or --poll. To try it again"
)

_OTHER_OWNER = (
    "Another owner's Sequence is unknown there, too: this source is another owner if it has a new user name, or a new "
    "certificate that the destination trusts itself and not by its issuer."
)
_NOT_ACCEPTED = (
    "Read the destination's log for the reason of its fault: it may not accept your certificate or your password. Or "
    "correct what this source demands of answers. Then"
)


def stop_error(stopped: Stopped, to: str, waiting: int, store: str, because: str, own: str = "") -> HoldfastError:
    """Return the error for waiting callers.

    Args:
        to: The destination's URL.
        waiting: Number of unacknowledged messages.
        because: The transport's last problem, as the end of a sentence; "" without one.
        own: Why peers refuse the credentials of this source, as sentences; "" if it does not know.
    """
    safe, resume = _what_is_safe(waiting, store)
    about = ""
    if stopped.code in REFUSES_CREDENTIALS and "--resume" in resume:
        resume += ", with those options"
    if stopped.refused is not None and store != IN_MEMORY:
        resume = f"{resume}\n  {how_to_discard(store)}"
    if stopped.refused is not None:
        identifier, number = stopped.refused
        about = f"message {number} of the Sequence {identifier}"
    if stopped.code == UNSENDABLE:
        what = about or "the request for a Sequence"
        message = f"{what} to {to} cannot be written: {stopped.reason}"
        return DeliveryError(message, remedy=f"{safe} {_REMEDY}, then: {resume}")
    said = f'the destination {to} answered {about or "the request"} with {stopped.code}: "{stopped.reason}"'
    if stopped.code == CREATE_SEQUENCE_REFUSED:
        message = f'the destination {to} refused the Sequence: {stopped.code}\n  its reason: "{stopped.reason}"'
        return SEQUENCE_FAULTS[stopped.code](message, remedy=f"{safe} Fix the cause that it names, then: {resume}")
    if stopped.first <= stopped.last:
        which = f"Of that Sequence, the numbers {stopped.in_doubt}" if stopped.in_doubt else "Some of them"
        owner = f"{_OTHER_OWNER} " if stopped.code == UNKNOWN_SEQUENCE else ""
        doubt = f"{safe} {owner}{which} may have arrived. To send them again in a new Sequence: {resume}"
        return SequenceLost(said, remedy=doubt)
    if stopped.code in SEQUENCE_FAULTS:
        return SEQUENCE_FAULTS[stopped.code](said, remedy=f"{safe} To continue: {resume}")
    if stopped.code == "given up":
        message = f"the destination {to} did not answer{because}"
        return NotAcknowledged(message, remedy=f"{safe} To retry: {resume}")
    if stopped.code == NOT_POLLED:
        message = f"the destination {to} does not answer polls (WS-MakeConnection): {stopped.reason}"
        return DeliveryError(message, remedy=f"{safe} {_NOT_POLLED}: {resume}")
    if stopped.code == NOT_ACCEPTED:
        message = f"the destination {to} grants no Sequence in an answer that can be accepted\n  {stopped.reason}"
        return DeliveryError(message, remedy=f"{safe} {_NOT_ACCEPTED}: {resume}")
    is_http = stopped.code.startswith("HTTP ")
    if is_http:
        said = f"the destination {to} answered with {stopped.code} and {stopped.reason}"
    remedy = _REMEDIES.get(stopped.code, _REMEDY if about or is_http else _NO_SEQUENCE)
    if stopped.code in HTTP_REFUSES_CREDENTIALS and stopped.reason.endswith(TO_CREDENTIALS):
        remedy = _WRONG
    if own and stopped.code in REFUSES_CREDENTIALS:
        remedy = f"{own} {NOT_VALID}"
    return PeerFault(said, code=stopped.code, remedy=f"{safe} {remedy}, then: {resume}")


def nothing_to_resume(store: str) -> ConfigurationError:
    return ConfigurationError(
        f"there is nothing to resume in {store}: no source has stored messages there",
        remedy="Name the store with the messages, or give the destination for new ones.",
    )


def elsewhere(store: str, known: list[str], to: str, waiting: int) -> ConfigurationError:
    """Return the error for opening the store of one destination for another one.

    Args:
        waiting: Number of its unacknowledged messages.
    """
    place, wrong = quote(store), " and ".join(known)
    if not waiting:
        return ConfigurationError(
            f"the store {store} has a Sequence with {wrong} that has not ended, so it does not serve {to}",
            remedy=f"Use another store for {to}. Or end the Sequence first: holdfast send --resume --store {place}",
        )
    return ConfigurationError(
        f"the store {store} holds messages for {wrong}, not for {to}: {waiting:,} unacknowledged, which are safe there",
        remedy=f"Send to {to} from another store: each store serves one destination at a time. If {wrong} is wrong, "
        f"stored messages cannot get another address: send them again from another store, and discard them here: "
        f"holdfast outbox discard {place} MESSAGE. To list them: holdfast outbox list {place}",
    )


def stored_error(error: BaseException, store: str, waiting: int) -> BaseException:
    """Return the error for callers that wait for messages stored before the store failed.

    Args:
        error: The store's error. If the store is damaged, it is returned unchanged, because no message is known to be
            safe.
        waiting: Number of stored messages without an acknowledgement.
    """
    if isinstance(error, StoreDamaged):
        return error
    them = f"The {waiting} unacknowledged messages that were stored before are" if waiting != 1 else "The message is"
    return StoreFailed(
        f"the store {store} failed: {message_of(error)}\n  {them} safe there: do not send stored messages again",
        remedy=f"{repair_of(error)} Then stored messages are sent, and arrive once.",
    )


def unstored_error(error: BaseException, store: str) -> BaseException:
    """Return the error for callers that wait for a message to be stored while the store fails; arguments as for
    :func:`stored_error`."""
    if isinstance(error, StoreDamaged):
        return error
    return StoreFailed(
        f"the store {store} failed: {message_of(error)}\n  This message may or may not be stored",
        remedy=f"{repair_of(error)} Check whether it is stored before you send it again: holdfast outbox list "
        f"{quote(store)}",
    )


def outdated_text(found: Incident) -> str:
    """Return the report about a store that is an older copy, from the incident that found it."""
    detail = found.detail or {}
    return (
        f"{detail['to']} acknowledges message {detail['acknowledged']} of the Sequence {found.identifier}, which ends "
        f"with message {detail['known']} in this store. {detail['remedy']}"
    )


def retracted_text(outboxes: Collection[Outbox]) -> str:
    """Return the report about a destination that retracted acknowledgements.

    Args:
        outboxes: Those with retracted messages, all of one destination. The first hundred are named.
    """
    named = list(islice(outboxes, MOST_NAMED))
    lost = [
        f"{numbers_text(ranges)} of the Sequence {identifier}"
        for outbox in named
        for identifier, ranges in outbox.lifecycle.retracted.ranges.items()
    ]
    others = sum(outbox.lifecycle.retracted.others for outbox in named)
    keys = len(outboxes) - len(named)
    more = [counted(others, "other message")] if others else []
    if keys:
        more.append(f"messages of {counted(keys, 'other key')}")
    if more:
        lost.append(f"and {' and '.join(more)}, which the log names (acknowledgement.retracted)")
    return (
        f"{named[0].to} no longer acknowledges messages that it had acknowledged, and the source has deleted them: "
        + "; ".join(lost)
    )


MOST_NAMED = 100
"""Maximum number of keys in one report about retracted messages."""
MOST_KEYS = 10
"""Maximum number of keys in one line of the log."""
_NO_ADDRESS = {ANONYMOUS: "none", MC_ANONYMOUS: "polls"}
_ACCEPTS_NOTHING = "it accepts nothing now, because its operator suspended the Sequence or it has no room"
_LISTEN_THERE = "start the source once at that address until they are acknowledged"


def log_earlier_addresses(outboxes: Iterable[Outbox], local: str) -> str:
    """Log to which addresses of earlier runs the answers of open Sequences go.

    Args:
        local: The present address.

    Returns:
        The problem; "" if no message waits for such an answer.
    """
    problem = ""
    found: dict[str, list[Outbox]] = {}
    for outbox in outboxes:
        if address := earlier_address(outbox):
            found.setdefault(address, []).append(outbox)
    for address, some in found.items():
        in_doubt = sum(outbox.records.in_doubt() for outbox in some)
        log.warning(
            "address.changed",
            earlier=address,
            present=_NO_ADDRESS.get(local, local),
            sequences=len(some),
            keys=[outbox.key for outbox in some[:MOST_KEYS]],
            in_doubt=in_doubt,
            remedy="The destination sends acknowledgements and replies of these Sequences to the earlier address. "
            f"If messages remain unacknowledged, {_LISTEN_THERE}.",
        )
        if in_doubt:
            what = f"the acknowledgements and replies of {counted(in_doubt, 'message', 'messages')} go to {address}"
            problem = f"{what}, the address of this source in an earlier run. If messages remain, {_LISTEN_THERE}"
    return problem


def unheard_text(unheard: Unheard, to: str, local: str, earlier: str) -> str:
    """Return why a destination that responds makes no progress.

    Args:
        to: The destination's URL.
        local: The address for its acknowledgements; :data:`MC_ANONYMOUS` if they are polled.
        earlier: The address of an earlier run that it was given instead; "" if none.
    """
    times = f"{unheard.times} times with success but no content"
    if not unheard.number:
        return f"{to} has answered the end of the Sequence {unheard.identifier} {times}"
    said = f"{to} has answered message {unheard.number} of the Sequence {unheard.identifier} {times}"
    if earlier:
        what = "the reply to it, if it has the request," if unheard.wants_reply else "its acknowledgements"
        where = f"{earlier}, the address of this source in an earlier run"
        return f"{said}: it sends {what} to {where}. If messages remain, {_LISTEN_THERE}"
    if local == MC_ANONYMOUS:
        what = "reply" if unheard.wants_reply else "acknowledgement"
        return f"{said}, and no poll has brought the {what} yet"
    if local != ANONYMOUS:
        return f"{said}: it must send its acknowledgements to {local}; check that it can reach that address"
    if unheard.wants_reply:
        waits = "it has neither acknowledged the message nor sent the reply yet"
        return f"{said}: {waits}. Either its handler still runs or waits for others to end, or {_ACCEPTS_NOTHING}"
    return f"{said}, although it was asked: it neither acknowledges nor rejects the message. Perhaps {_ACCEPTS_NOTHING}"


def _what_is_safe(waiting: int, store: str) -> tuple[str, str]:
    messages = counted(waiting, "unacknowledged message is", "unacknowledged messages are")
    if store == IN_MEMORY:
        return f"{messages} in memory only, and lost when this process ends.", "source.resume()"
    return f"{messages} safe in {store}.", how_to_resume(store)


def how_to_resume(store: str) -> str:
    """Return how a user resumes a stopped source of a store, in Python and at the command line."""
    return f"source.resume(), or: holdfast send --resume --store {quote(store)}"


def how_to_discard(store: str) -> str:
    """Return how a user discards a message of a stopped source, so that the others can proceed."""
    place = quote(store)
    return (
        f"Or discard the message: holdfast outbox discard {place} MESSAGE. To list them: holdfast outbox list {place}"
    )


def log_stopped(stopped: Stopped) -> None:
    """Log that an outbox sends nothing until an operator decides, and what to do."""
    fields: dict[str, Any] = {"outbox": stopped.key, "code": stopped.code, "reason": stopped.reason}
    if stopped.refused is not None:
        fields["sequence"], fields["message_number"] = stopped.refused
    name = "replies.stopped" if forwarder_of(stopped.key) is None else "forwarder.stopped"
    remedy = "Its messages are safe. Fix the cause, then: holdfast outbox retry --admin URL"
    if stopped.refused is not None:
        remedy += ". Or discard that message: holdfast outbox discard --admin URL MESSAGE"
    if stopped.first <= stopped.last:
        which = f"the numbers {stopped.in_doubt}" if stopped.in_doubt else "some of them"
        remedy = (
            f"Its messages are safe. Of that Sequence, {which} may have arrived: check at the destination. For "
            "each one that has: holdfast outbox discard --admin URL. Then continue with the others, twice if "
            "necessary: holdfast outbox retry --admin URL"
        )
    log.error(name, **fields, remedy=remedy)


def unanswered_error(unanswered: Unanswered, to: str) -> DeliveryError:
    """Return the error for callers that wait for a reply that will not arrive."""
    if unanswered.too_large:
        return too_large_error(to, unanswered.message_id, unanswered.too_large)
    return DeliveryError(
        f"{to} has the request {unanswered.message_id} but sent no reply to it",
        remedy="The service treats this action as one-way: use send(). If it should reply, check its handler.",
    )
