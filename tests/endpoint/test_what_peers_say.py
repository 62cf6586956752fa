"""Nothing that a peer says reaches the store and fails there: whole envelopes, from bytes to a real store and back."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_side import Side, element

from examples import examples
from holdfast.core.versions import ALL_VERSIONS, RM, TRIED_VERSIONS, Versions
from holdfast.wire import actions

# --- what a peer may say ---------------------------------------------------------------------------------------------

NUMBERS = [0, 1, 2, 3, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**63]
numbers = st.one_of(
    st.integers(1, 6).map(str),
    st.sampled_from(NUMBERS).map(str),
    st.sampled_from(["-1", "", "1e400", "NaN", "inf", "0x1", "9" * 65, "9" * 5000, " 1 ", "01", "\u0661"]),
)
durations = st.one_of(
    st.sampled_from(["PT0S", "PT1H", "P1D", "PT0.000001S", "P999999999Y", "PT999999999999H", "P999999999Y999999999M"]),
    st.sampled_from(["-PT1S", "P", "PT1E400S", "PT" + "9" * 400 + "S", "never", ""]),
)
characters = st.characters(codec="utf-8", exclude_categories=("Cs",))
texts = st.one_of(
    st.text(characters, max_size=20),
    st.sampled_from(
        ["urn:x", "", " ", "\x00", "\x1f", "\x7f", "\ufffe", "\uffff", "\U0010ffff", "a" * 2048, "a" * 2049]
    ),
    st.sampled_from(["handler", "spark", "inbox", "to/x", "plain/urn:d1", "replies", "\xff" * 9, "anonymous", "none"]),
)
addresses = st.one_of(st.sampled_from(["{anonymous}", "http://allowed.example/a", "urn:none"]), texts)
identifiers = st.one_of(st.sampled_from(["{known}"] * 5 + ["{outbound}"] * 3 + ["{offered}"] * 2), texts)


def said(draw: st.DrawFn, name: str, values: st.SearchStrategy[str], *, often: int = 4) -> str:
    """The element with some value; seldom none of it, or two."""
    times = draw(st.sampled_from([1] * often + [0, 2]))
    return "".join([element(name, escape(draw(values))) for _ in range(times)])


def endpoint(draw: st.DrawFn, name: str) -> str:
    parameters = "<a:ReferenceParameters><p/></a:ReferenceParameters>" if draw(st.booleans()) else ""
    return element(name, said(draw, "a:Address", addresses, often=20) + parameters)


def control(draw: st.DrawFn, local: str) -> str:
    if local == "CreateSequence":
        offer = element(
            "r:Offer",
            said(draw, "r:Identifier", identifiers, often=20)
            + (endpoint(draw, "r:Endpoint") if draw(st.booleans()) else "")
            + said(draw, "r:Expires", durations),
            times=draw(st.integers(0, 1)),
        )
        content = endpoint(draw, "r:AcksTo") + said(draw, "r:Expires", durations, often=1) + offer
    elif local == "CreateSequenceResponse":
        accept = element("r:Accept", endpoint(draw, "r:AcksTo"), times=draw(st.integers(0, 1)))
        content = said(draw, "r:Identifier", identifiers, often=20) + said(draw, "r:Expires", durations) + accept
    else:
        content = said(draw, "r:Identifier", identifiers, often=20) + said(draw, "r:LastMsgNumber", numbers)
    return element(f"r:{local}", content)


FAULTS = ["UnknownSequence", "SequenceTerminated", "SequenceClosed", "MessageNumberRollover", "InvalidAcknowledgement"]


def fault(draw: st.DrawFn) -> str:
    code = draw(st.one_of(st.sampled_from(FAULTS), st.sampled_from(["CreateSequenceRefused", "x" * 3000, "Ä"])))
    detail = said(draw, "r:Identifier", identifiers) + said(draw, "r:MaxMessageNumber", numbers)
    return (
        f"<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>r:{code}</s:Value></s:Subcode></s:Code>"
        f"<s:Reason><s:Text>{escape(draw(texts))}</s:Text></s:Reason><s:Detail>{detail}</s:Detail></s:Fault>"
    )


def headers(draw: st.DrawFn) -> str:
    parts = []
    if draw(st.sampled_from([True, True, False])):
        number = said(draw, "r:MessageNumber", numbers, often=20)
        last = "<r:LastMessage/>" if draw(st.integers(0, 5)) == 0 else ""
        parts.append(element("r:Sequence", said(draw, "r:Identifier", identifiers, often=20) + number + last))
    if draw(st.integers(0, 3)) == 0:
        ranges = "".join(
            f'<r:AcknowledgementRange Lower="{escape(draw(numbers))}" Upper="{escape(draw(numbers))}"/>'
            for _ in range(draw(st.integers(0, 3)))
        )
        said_of_it = (ranges or "<r:None/>") + said(draw, "r:Nack", numbers, often=1)
        remaining = said(draw, "n:BufferRemaining", numbers)
        parts.append(
            element("r:SequenceAcknowledgement", said(draw, "r:Identifier", identifiers) + said_of_it + remaining)
        )
    if draw(st.integers(0, 4)) == 0:
        parts.append(element("r:AckRequested", said(draw, "r:Identifier", identifiers)))
    if draw(st.integers(0, 9)) == 0:
        parts.append(element("r:SequenceTerminate", said(draw, "r:Identifier", identifiers)))
    parts += [said(draw, name, texts) for name in ("a:To", "a:MessageID", "a:RelatesTo") if draw(st.booleans())]
    if draw(st.booleans()):
        parts.append(endpoint(draw, "a:ReplyTo"))
    if draw(st.integers(0, 3)) == 0:
        parts.append(element("h", escape(draw(texts))))
    return "".join(parts)


CONTROLS = [type_.__name__ for type_ in {**actions[RM.V1_0], **actions[RM.V1_1]}]


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, str, bool]:
    """Header and Body of a message, and whether it comes as an answer; ``{known}`` and such are filled in later."""
    kind = draw(st.sampled_from(["application", "application", "control", "fault"]))
    header = headers(draw)
    if kind == "application":
        action, body = draw(st.one_of(st.just("urn:a"), texts)), f"<b>{escape(draw(texts))}</b>"
    elif kind == "control":
        local = draw(st.sampled_from(CONTROLS))
        is_empty = local in ("Acknowledge", "RequestAcknowledgement", "LastMessage")
        action, body = f"{{{local}}}", "" if is_empty else control(draw, local)
    else:
        action, body = "{rm}/fault", fault(draw)
    return element("a:Action", escape(action) if kind == "application" else action) + header, body, draw(st.booleans())


# --- what becomes of it ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(said=st.lists(messages(), min_size=1, max_size=6), versions=st.sampled_from(ALL_VERSIONS))
def test_whatever_a_peer_says_is_refused_or_stored_and_read_back(
    said: list[tuple[str, str, bool]], versions: Versions
) -> None:
    with TemporaryDirectory() as directory:
        side = Side(Path(directory) / "store", versions)
        for header, body, is_answer in said:
            side.hear(side.envelope(header, body), is_answer)
        side.reopen()
        for header, body, is_answer in said:
            side.hear(side.envelope(header, body), is_answer)
        side.store.close()


LIMITS = (0, 2**32, 2**63, 2**64, 10**63)
"""The numbers of the default suite: those at the limit of a type or beyond it."""


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "number", [pytest.param(one, marks=[] if one in LIMITS else pytest.mark.nightly) for one in NUMBERS]
)
@pytest.mark.parametrize("is_answer", [False, True])
def test_a_number_of_any_size_in_any_place_does_no_harm(number: int, is_answer: bool, tmp_path: Path) -> None:
    for versions in (ALL_VERSIONS[0], TRIED_VERSIONS[0], ALL_VERSIONS[-1]):
        side = Side(tmp_path / f"{versions}".replace("/", "-"), versions)
        identifier = element("r:Identifier", "{known}")
        outbound = element("r:Identifier", "{outbound}")
        a_range = f'<r:AcknowledgementRange Lower="1" Upper="{number}"/>'
        places = [
            (element("r:Sequence", identifier + element("r:MessageNumber", str(number))), "urn:a", "<b/>"),
            (element("r:SequenceAcknowledgement", outbound + a_range), "{rm}/SequenceAcknowledgement", ""),
            (
                element("r:SequenceAcknowledgement", outbound + element("r:Nack", str(number))),
                "{rm}/SequenceAcknowledgement",
                "",
            ),
            (
                element(
                    "r:SequenceAcknowledgement",
                    outbound
                    + '<r:AcknowledgementRange Lower="1" Upper="1"/>'
                    + element("n:BufferRemaining", str(number)),
                ),
                "{rm}/SequenceAcknowledgement",
                "",
            ),
            *(
                ("", f"{{rm}}/{local}", element(f"r:{local}", identifier + element("r:LastMsgNumber", str(number))))
                for local in ("CloseSequence", "TerminateSequence")
            ),
            (
                "",
                "{rm}/fault",
                "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>r:MessageNumberRollover</s:Value>"
                "</s:Subcode></s:Code><s:Reason><s:Text>x</s:Text></s:Reason><s:Detail>"
                f"{outbound}<r:MaxMessageNumber>{number}</r:MaxMessageNumber></s:Detail></s:Fault>",
            ),
        ]
        for header, action, body in places:
            side.hear(side.envelope(element("a:Action", action) + header, body), is_answer)
            side.reopen()
        side.store.close()
