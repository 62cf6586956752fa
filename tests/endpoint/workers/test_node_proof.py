"""The proof that a request, or its answer, comes from a node of the cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.endpoint.workers.node_proof import PROOF, STAMP, NodeProof
from holdfast.http.exchange import Request
from holdfast.http.outcome import Response, TransportError

OURS = NodeProof("a secret that the nodes share")
OTHER = NodeProof("another secret of other nodes")


def request(
    proof: NodeProof, method: str = "POST", target: str = "/3/message", body: bytes = b"<a/>", stamp: str = "c.s.1"
) -> Request:
    given = proof.headers(stamp, method, target, body)
    headers = {name.lower().encode(): value.encode() for name, value in given.items()}
    return Request(method, target, headers, body, None, False)


def test_the_mark_of_a_secret_is_the_same_at_every_node_and_is_not_the_secret() -> None:
    secret = "a secret that the nodes share"
    assert NodeProof(secret).mark == OURS.mark != OTHER.mark
    assert secret not in OURS.mark


def test_a_request_of_a_node_is_recognised_with_its_stamp() -> None:
    assert OURS.stamp_of(request(OURS, stamp="c.s.17")) == "c.s.17"


def test_nodes_with_and_without_tls_do_not_recognise_each_other() -> None:
    encrypted = NodeProof("a secret that the nodes share", is_encrypted=True)
    assert encrypted.mark != OURS.mark
    assert encrypted.stamp_of(request(OURS)) is None and OURS.stamp_of(request(encrypted)) is None


@pytest.mark.parametrize(
    "changed",
    [
        request(OTHER),
        replace(request(OURS), method="GET"),
        replace(request(OURS), target="/4/message"),
        replace(request(OURS), body=b"<b/>"),
        replace(request(OURS), headers={}),
        replace(request(OURS), headers={**request(OURS).headers, STAMP.lower().encode(): b"00"}),
        replace(request(OURS), headers={**request(OURS).headers, PROOF.lower().encode(): b"\xff"}),
        replace(request(OURS, body=b""), target="/3/message\0", body=b""),
    ],
)
def test_a_request_that_was_changed_or_comes_from_elsewhere_is_not(changed: Request) -> None:
    assert OURS.stamp_of(changed) is None


def test_an_answer_comes_back_as_it_was() -> None:
    answer = Response(503, {"retry-after": "3", "content-type": "text/plain"}, b"later")
    content, proof = OURS.seal("n", answer)
    assert OURS.open("n", Response(200, {PROOF.lower(): proof}, content), "http://b/") == answer


@pytest.mark.parametrize("changed", ["proof", "content", "stamp", "secret", "none"])
def test_an_answer_that_was_changed_or_comes_from_elsewhere_is_an_error(changed: str) -> None:
    content, proof = (OTHER if changed == "secret" else OURS).seal("n", Response(200, {}, b"acknowledged"))
    headers = {} if changed == "none" else {PROOF.lower(): "0" * 64 if changed == "proof" else proof}
    body = content.replace(b"ack", b"Ack") if changed == "content" else content
    found = OURS.open("m" if changed == "stamp" else "n", Response(200, headers, body), "http://b:1/3/message")
    assert isinstance(found, TransportError)
    assert "http://b:1/3/message answered 200 without the proof" in found.message
    assert "same secret" in found.remedy
