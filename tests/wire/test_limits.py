"""What a message may cost: work and memory that grow with its bytes and no faster, and bounds that every path keeps.

Covers wire/decoding/kept.py.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import wire
from holdfast.core.messages import EndpointReference, Envelope
from holdfast.exceptions import ConfigurationError, EnvelopeError, LimitExceeded
from holdfast.wire import Limits, text, tree
from holdfast.wire.decoding import fast, forms

S12 = "http://www.w3.org/2003/05/soap-envelope"
WSA = "http://www.w3.org/2005/08/addressing"
RM = "http://docs.oasis-open.org/ws-rx/wsrm/200702"


def message(
    body: str = "<x xmlns='urn:x'/>", header: str = "", *, declared: str = "", on_body: str = "", action: str = "urn:a"
) -> bytes:
    return (
        f'<s:Envelope xmlns:s="{S12}" xmlns:a="{WSA}" xmlns:r="{RM}"{declared}><s:Header><a:Action>{action}</a:Action>'
        f"{header}</s:Header><s:Body{on_body}>{body}</s:Body></s:Envelope>"
    ).encode()


def prefixes(count: int) -> str:
    return "".join(f' xmlns:n{i}="urn:n{i}"' for i in range(count))


def uses(count: int) -> str:
    return "".join(f"n{i}:x " for i in range(count))


def elements(count: int) -> str:
    return "".join(f'<c xmlns:m{i}="urn:{i}"/>' for i in range(count))


def keys(count: int) -> str:
    return "".join(f" k{i}='v='" for i in range(count))


# --- no faster than its bytes ----------------------------------------------------------------------------------------

SHAPES: dict[str, Callable[[int], bytes]] = {
    # Each takes a size and gives a message of some fifty to two hundred bytes for each unit of it.
    "declarations outside, elements that use none": lambda n: message("<c/>" * 12 * n, declared=prefixes(n)),
    "declarations outside, the last element uses all": lambda n: message(
        "<c/>" * 12 * n + f"<c>{uses(n)}</c>", declared=prefixes(n)
    ),
    "declarations outside, each element uses one": lambda n: message(
        "".join(f"<n{i}:c/>" for i in range(n)) * 8, declared=prefixes(n)
    ),
    "declarations on the Body": lambda n: message("<c/>" * 12 * n, on_body=prefixes(n)),
    "declarations outside, one element of many words": lambda n: message(
        f"<c>{'a:b x:y https://z ' * 5 * n}</c>", declared=prefixes(n)
    ),
    "declarations outside, one long word": lambda n: message(f"<c>{'abcdefgh' * 10 * n}</c>", declared=prefixes(n)),
    "declarations outside, words in other letters": lambda n: message(
        f"<c>{'éa:b ñ' * 10 * n}</c>", declared=prefixes(n)
    ),
    "declarations outside, header blocks": lambda n: message(
        header=("<h>" + "<c/>" * n + "</h>") * 20, declared=prefixes(n)
    ),
    "declarations in a header block": lambda n: message(header="<h>" + elements(4 * n) + "</h>"),
    "declarations outside, reference parameters": lambda n: message(
        "<r:CreateSequence><r:AcksTo><a:Address>urn:x</a:Address><a:ReferenceParameters>"
        + "<p/>" * 8 * n
        + "</a:ReferenceParameters></r:AcksTo></r:CreateSequence>",
        declared=prefixes(n),
        action=f"{RM}/CreateSequence",
    ),
    "declarations outside, a fault's details": lambda n: message(
        "<s:Fault><s:Code><s:Value>s:Sender</s:Value></s:Code><s:Reason><s:Text>t</s:Text></s:Reason><s:Detail>"
        + "<d/>" * 8 * n
        + "</s:Detail></s:Fault>",
        declared=prefixes(n),
    ),
    "elements, each with a declaration": lambda n: message("<c>" + elements(4 * n) + "</c>"),
    "one element of many attributes": lambda n: message(f"<c{keys(10 * n)}/>"),
    "a long namespace, used by attributes": lambda n: message(
        f"<c xmlns:q='urn:{'x' * 900}'>" + "<d q:k=''/>" * 8 * n + "</c>"
    ),
    "a comment": lambda n: message(f"<c/><!--{'x' * 90 * n}-->"),
    "a long attribute": lambda n: message(f"<c k='{'x' * 90 * n}'/>"),
    "text": lambda n: message(f"<c>{'x' * 90 * n}</c>"),
    "elements adjacent elements": lambda n: message("<c/>" * 25 * n),
}


ROOMY = Limits(max_reference_parameters=1024 * 1024)


def cost(data: bytes) -> tuple[int, int]:
    """What decoding costs: calls made, Python's and those of it into C, and bytes held at the worst."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(count)
    try:
        wire.decode(data, limits=ROOMY)
    finally:
        sys.setprofile(None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return calls, peak


@pytest.mark.parametrize("shape", SHAPES)
def test_work_and_memory_grow_no_faster_than_the_bytes_received(shape: str) -> None:
    small, large = SHAPES[shape](40), SHAPES[shape](480)
    cost(small)  # what is made once, such as patterns, is made now
    (few, little), (many, much) = cost(small), cost(large)
    growth = len(large) / len(small)
    assert many <= 1.5 * growth * few + 200
    assert much <= 1.5 * growth * little + 200_000
    assert many <= 4 * len(large)
    assert much <= 100 * len(large) + 200_000


@pytest.mark.parametrize("shape", SHAPES)
def test_stored_parts_are_no_larger_than_the_input_plus_declarations(shape: str) -> None:
    data = SHAPES[shape](480)
    read = wire.decode(data, limits=ROOMY)
    assert len(read.body) + sum(map(len, read.headers)) <= len(data) + wire.DEFAULT.max_inserted_bytes


def test_a_large_document_is_parsed_in_pieces_and_none_of_it_again_and_again() -> None:
    given: list[int] = []

    class Parser:
        CurrentByteIndex = 0

        def Parse(self, data: bytes, final: bool) -> None:
            given.append(len(data))
            assert final <= (sum(given) == size)

    size = 40 * tree.PIECE
    tree.feed(Parser(), b"x" * size)  # type: ignore[arg-type]
    # It never gets on, as with one long tag: so it looks at all it has with each piece, twice as much each time.
    assert sum(given) == size
    assert len(given) < 10
    Parser.CurrentByteIndex = property(lambda _self: sum(given))  # type: ignore[assignment]
    given.clear()
    tree.feed(Parser(), b"x" * size)  # type: ignore[arg-type]
    assert given == [tree.PIECE] * 40  # so that other threads get their turn


# --- bounds ----------------------------------------------------------------------------------------------------------

LONG = "urn:" + "x" * 45
URIS = {
    "Action": message(action=LONG),
    "To": message(header=f"<a:To>{LONG}</a:To>"),
    "MessageID": message(header=f"<a:MessageID>{LONG}</a:MessageID>"),
    "RelatesTo": message(header=f"<a:RelatesTo>{LONG}</a:RelatesTo>"),
    "the address of ReplyTo": message(header=f"<a:ReplyTo><a:Address>{LONG}</a:Address></a:ReplyTo>"),
    "the address of FaultTo": message(header=f"<a:FaultTo><a:Address>{LONG}</a:Address></a:FaultTo>"),
    "the address of From": message(header=f"<a:From><a:Address>{LONG}</a:Address></a:From>"),
    "Sequence's Identifier": message(
        header=f"<r:Sequence><r:Identifier>{LONG}</r:Identifier><r:MessageNumber>1</r:MessageNumber></r:Sequence>"
    ),
    "SequenceAcknowledgement's Identifier": message(
        header=f"<r:SequenceAcknowledgement><r:Identifier>{LONG}</r:Identifier><r:None/></r:SequenceAcknowledgement>"
    ),
    "AckRequested's Identifier": message(
        header=f"<r:AckRequested><r:Identifier>{LONG}</r:Identifier></r:AckRequested>"
    ),
    **{
        f"{name}'s Identifier": message(f"<r:{name}><r:Identifier>{LONG}</r:Identifier></r:{name}>")
        for name in (
            "CloseSequence",
            "CloseSequenceResponse",
            "TerminateSequence",
            "TerminateSequenceResponse",
            "CreateSequenceResponse",
        )
    },
    "the address of Accept's AcksTo": message(
        "<r:CreateSequenceResponse><r:Identifier>urn:i</r:Identifier><r:Accept><r:AcksTo>"
        f"<a:Address>{LONG}</a:Address></r:AcksTo></r:Accept></r:CreateSequenceResponse>"
    ),
    **{
        name: message(
            f"<r:CreateSequence><r:AcksTo><a:Address>{acks_to}</a:Address></r:AcksTo><r:Offer><r:Identifier>{offered}"
            f"</r:Identifier><r:Endpoint><a:Address>{endpoint}</a:Address></r:Endpoint></r:Offer></r:CreateSequence>"
        )
        for name, acks_to, offered, endpoint in (
            ("the address of AcksTo", LONG, "urn:o", "urn:e"),
            ("Offer's Identifier", "urn:a", LONG, "urn:e"),
            ("the address of the Offer's Endpoint", "urn:a", "urn:o", LONG),
        )
    },
    "the name of a header block": message(header=f"<h{'x' * 48} xmlns='urn:h' s:mustUnderstand='1'/>"),
    "the fault's code": message(
        f"<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>r:{LONG[4:]}{LONG[4:]}</s:Value></s:Subcode>"
        "</s:Code></s:Fault>"
    ),
    "the fault's Identifier": message(
        "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>r:UnknownSequence</s:Value></s:Subcode>"
        f"</s:Code><s:Detail><r:Identifier>{LONG}</r:Identifier></s:Detail></s:Fault>"
    ),
}


@pytest.mark.parametrize("name", URIS)
def test_no_uri_that_may_be_kept_is_longer_than_the_limit(name: str) -> None:
    wire.decode(URIS[name])
    with pytest.raises(LimitExceeded) as caught:
        wire.decode(URIS[name], limits=Limits(max_uri=48))
    assert caught.value.message == f"{name} is longer than 48 characters"
    assert caught.value.soap == "1.2"


@pytest.mark.parametrize(
    "data",
    [
        f"<{'x' * 10_000}/>".encode(),
        message().replace(b"s:Header>", b"s:Head%b>" % (b"x" * 10_000)),
        message("<r:CloseSequence><r:Identifier>urn:i</r:Identifier></r:CloseSequence><" + "x" * 10_000 + "/>"),
        message(action=f"urn:{'x' * 10_000}"),
        message(header=f"<r:Sequence><r:Identifier>i</r:Identifier><r:MessageNumber>{'9' * 10_000}</r:MessageNumber>"),
        message(header=f"<h{'x' * 10_000} xmlns='urn:h' s:mustUnderstand='1'/>"),
    ],
    ids=["root", "part of the Envelope", "in addition to an RM message", "action", "number", "block"],
)
def test_an_error_stays_short_however_long_the_input_is(data: bytes) -> None:
    with pytest.raises(EnvelopeError) as caught:
        wire.decode(data)
    assert len(caught.value.message) < 400


def test_an_endpoint_with_many_bytes_of_reference_parameters_is_refused() -> None:
    reference = f"<a:Address>urn:x</a:Address><a:ReferenceParameters>{'<p>1</p>' * 10}</a:ReferenceParameters>"
    for data in (
        message(header=f"<a:ReplyTo>{reference}</a:ReplyTo>"),
        message(f"<r:CreateSequence><r:AcksTo>{reference}</r:AcksTo></r:CreateSequence>"),
    ):
        wire.decode(data, limits=Limits(max_reference_parameters=80, max_uri=100))
        with pytest.raises(LimitExceeded, match="reference parameters of"):
            wire.decode(data, limits=Limits(max_reference_parameters=79, max_uri=100))


REFUSED: dict[str, tuple[bytes, dict[str, int]]] = {
    "attributes": (message("<c k='' l='' m=''/>".replace("''", '""') + " " * 20), {"max_attributes": 2}),
    "attributes that are declarations": (message("<c xmlns:p='u' xmlns:q='u' m='>'/>"), {"max_attributes": 2}),
    "the name of a namespace": (message(f"<c xmlns='urn:{'x' * 60}'/>"), {"max_namespace": 60}),
    "the name of a namespace on the Envelope": (message(declared=f" xmlns:q='urn:{'x' * 60}'"), {"max_namespace": 60}),
    "namespaces in scope": (message(declared=prefixes(14)), {"max_declarations": 16}),
    "namespaces in scope of a block": (message(header=f"<h{prefixes(14)}/>"), {"max_declarations": 16}),
    "declarations inserted": (message("<r:c/><r:d/>"), {"max_inserted_bytes": 100}),
    "declarations inserted into blocks": (message(header="<r:b/><r:b/>"), {"max_inserted_bytes": 100}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_each_limit_is_kept_whichever_path_a_message_takes(what: str) -> None:
    data, limits = REFUSED[what]
    forms._forms.clear()
    for _ in range(2):  # the first teaches the hot paths
        wire.decode(data)
    with pytest.raises(LimitExceeded):
        wire.decode(data, limits=Limits(**limits))


@pytest.mark.parametrize("limit", ["max_bytes", "max_uri", "max_attributes", "max_inserted_bytes"])
def test_a_limit_below_one_is_a_mistake_in_the_configuration(limit: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{limit} cannot be 0"):
        Limits(**{limit: 0})
    with pytest.raises(ConfigurationError, match="max_declarations cannot be 15"):
        Limits(max_declarations=15)


@given(
    st.integers(1, 12),
    st.lists(
        st.one_of(
            st.integers(0, 14).map(lambda n: f"<e{keys(n)}/>"),
            st.sampled_from(["x" * 70, "a=b c='d' " * 9, "<e>", "</e>", "<e k='>' l=''>", "é"]),
        ),
        max_size=9,
    ),
)
def test_attributes_are_counted_as_the_parser_counts_them(most: int, pieces: list[str]) -> None:
    data = "".join(pieces).encode()
    widest = max((piece.count(" k") + piece.count(" l") for piece in pieces if piece.startswith("<")), default=0)
    assert tree.has_many_attributes(data, most) == (widest > most)


def test_honest_messages_meet_no_limit() -> None:
    many = message(
        "<multi>" + "".join(f'<r:row a:k{i}="v"/>' for i in range(9_000)) + "</multi>",
        f"<a:ReplyTo><a:Address>http://peer.example/{'x' * 1_900}</a:Address><a:ReferenceParameters>"
        f"<t xmlns='urn:t'>{'t' * 8_000}</t></a:ReferenceParameters></a:ReplyTo>",
        declared=prefixes(200),
    )
    read = wire.decode(many)
    assert isinstance(read.reply_to, EndpointReference)
    # What SOAP's encoding puts adjacent elements in a Body, each with three prefixes of the Envelope's.
    encoded = '<n1:r id="i1" n2:root="0" k="n3:string">text</n1:r>' * 5_000
    assert wire.decode(message(encoded, declared=prefixes(4))).body.startswith(b'<n1:r xmlns:n1="urn:n1"')


# --- what a slice needs ----------------------------------------------------------------------------------------------

words = st.text(st.sampled_from(["a", "b", "é", "ñ", ":", " ", ".", "-", "1", "_", "/", "\u00a0"]), max_size=20)


@given(words, st.dictionaries(st.sampled_from(["", "a", "b", "é", "aé", "éa", "a.b", "a-1", "_"]), st.just("urn:u")))
def test_a_slice_needs_the_same_declarations_however_they_are_looked_for(content: str, scope: dict[str, str]) -> None:
    raw = content.encode()
    each = [one.written for one in text.declarations(scope) if one.needed_by(raw)]
    together = list(text.needed_from(text.Scope({}, text.Scope(scope)), raw, [0], len(raw)))
    assert together == ([(0, each)] if each else [])


@given(st.lists(words, min_size=1, max_size=5), st.dictionaries(st.sampled_from(["", "a", "b"]), st.just("urn:u")))
def test_each_of_several_slices_needs_what_it_uses_itself(contents: list[str], scope: dict[str, str]) -> None:
    slices = [f"<{content}".encode() for content in contents]
    tops = [sum(map(len, slices[:index])) for index in range(len(slices))]
    each = {
        top: [one.written for one in text.declarations(scope) if one.needed_by(raw)]
        for top, raw in zip(tops, slices, strict=True)
    }
    together = dict(text.needed_from(text.Scope(scope), b"".join(slices), tops, sum(map(len, slices))))
    assert together == {top: needed for top, needed in each.items() if needed}


def test_a_scope_sees_the_nearest_declaration() -> None:
    inner = text.Scope({"": ""}, text.Scope({"p": "urn:2"}, text.Scope({"p": "urn:1", "": "urn:d"})))
    assert (inner.get("p"), inner.get(""), inner.get("q")) == ("urn:2", "", "")
    assert inner.count == 4


@pytest.mark.parametrize("filling", ["", "<n15:y/>"])
def test_types_named_in_attributes_and_text_mean_the_same_when_a_body_stands_alone(filling: str) -> None:
    body = f"<n1:a xsi:type='n2:T'><b>n3:value</b>{filling}</n1:a>"
    data = message(body, declared=prefixes(30) + ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"')
    element = wire.parse_element(wire.decode(data).body)
    expected = {f"n{i}": f"urn:n{i}" for i in ((1, 2, 3, 15) if filling else (1, 2, 3))}
    assert {prefix: uri for prefix, uri in element.nsmap.items() if prefix != "xsi"} == expected
    assert element.tag == "{urn:n1}a"


def test_a_body_that_needs_too_many_declarations_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="adjacent elements"):
        wire.decode(message("<n1:c/>" * 100_000, declared=prefixes(2)))


def test_refusing_is_all_that_a_limit_does() -> None:
    for data, limits in REFUSED.values():
        with pytest.raises(EnvelopeError) as caught:
            wire.decode(data, limits=Limits(**limits))
        assert caught.value.message


def test_blocks_beyond_the_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    add = fast.add_foreign

    def note(envelope: Envelope, block: bytes, shape: Any) -> None:
        read.append(block)
        add(envelope, block, shape)

    monkeypatch.setattr(fast, "add_foreign", note)
    blocks = b"<h:h>1</h:h>" * 4000
    start = b'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:h="urn:h"><s:Header>'
    with pytest.raises(LimitExceeded):
        wire.decode(start + blocks + b"</s:Header><s:Body/></s:Envelope>")
    assert 0 < len(read) <= wire.DEFAULT.max_headers
