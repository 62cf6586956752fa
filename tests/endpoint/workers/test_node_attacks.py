"""Attacks on the requests between nodes: real processes, and an attacker who sees and changes what they send.

Covers endpoint/workers/node_listener.py.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from crew import stored, texts
from databases import PostgreSQL
from node_processes import SECRET
from scripted_nodes import Cluster

import holdfast
from holdfast.endpoint.worker import worker_of
from holdfast.endpoint.workers.node_proof import PROOF, STAMP, NodeProof
from holdfast.endpoint.workers.relays import REQUEST
from holdfast.endpoint.workers.sequence_owner import encode_request
from holdfast.endpoint.workers.worker_client import STALE
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Request
from holdfast.http.outcome import Response, TransportError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
Start = Callable[..., Cluster]


@pytest.fixture
def cluster(tmp_path: Path, servers: Callable[[str], PostgreSQL]) -> Iterator[Start]:
    """Starts nodes with one partition for each, in their order; nothing of them outlives the test."""
    started: list[Cluster] = []

    def start(*names: str, more: str = "") -> Cluster:
        made = Cluster(tmp_path, servers("postgresql"), len(names), more)
        started.append(made)
        made.start(*names)
        made.own(dict(enumerate(names)))
        return made

    yield start
    for one in started:
        for node in one:
            node.clean()


class Attacker:
    """Sends requests to the listener of a node.

    Args:
        url: Of the listener.
        proof: What makes the proofs of its requests.
        context: Its TLS; None: without.
    """

    def __init__(self, url: str, proof: NodeProof | None = None, context: ssl.SSLContext | None = None) -> None:
        self.url, self.proof = url, proof or NodeProof(SECRET)
        self._http = HTTPClient(ssl_context=context)

    async def __aenter__(self) -> Attacker:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    async def send(self, target: str, body: bytes, headers: dict[str, str]) -> Response:
        return await self._http.fetch("POST", self.url + target, body, headers)

    async def ask(self, target: str, body: bytes, stamp: str) -> tuple[dict[str, str], Response]:
        """Send a request that this proof proves; its headers, and the sealed answer."""
        headers = self.proof.headers(stamp, "POST", target, body)
        answer = self.proof.open(stamp, await self.send(target, body, headers), self.url)
        if isinstance(answer, TransportError):
            raise answer
        return headers, answer


def message(text: str) -> bytes:
    """An unreliable message as a node passes it on."""
    envelope = (
        '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing">'
        f"<s:Header><a:Action>urn:x</a:Action><a:To>http://any/</a:To></s:Header><s:Body><n>{text}</n></s:Body>"
        "</s:Envelope>"
    )
    headers = {b"content-type": b"application/soap+xml"}
    return encode_request(Request("POST", "/", headers, envelope.encode(), "10.0.0.9:1", False))


async def test_a_recorded_or_changed_request_does_not_count(cluster: Start) -> None:
    made = cluster("a")
    (node,) = made
    await asyncio.to_thread(node.url)
    target, body = "/0/message", message("once")
    async with Attacker(node.node_url) as attacker:
        _, answer = await attacker.ask(target, body, ".attacker.1")
        assert answer.status == STALE, "a node that does not know the challenge learns it"
        challenge = answer.body.decode()
        headers, answer = await attacker.ask(target, body, f"{challenge}.attacker.2")
        assert answer.status != STALE
        for _ in range(2):  # the same octets, by whoever has recorded them
            replayed = attacker.proof.open(headers[STAMP], await attacker.send(target, body, headers), node.node_url)
            assert isinstance(replayed, Response) and replayed.status == STALE
        changed = [
            (target, body.replace(b"once", b"more"), headers),
            ("/0/heard", body, headers),
            (target, body.replace(b"10.0.0.9", b"10.0.0.1"), headers),
            (target, body, headers | {STAMP: f"{challenge}.attacker.3"}),
            (target, body, {STAMP: headers[STAMP]}),
            (target, body, headers | {PROOF: "0" * 64}),
        ]
        assert [(await attacker.send(*one)).status for one in changed] == [403] * len(changed)
    for proof in (NodeProof("a secret of another cluster"), NodeProof(SECRET, is_encrypted=True)):
        async with Attacker(node.node_url, proof) as other:
            headers = proof.headers(f"{challenge}.other.1", "POST", target, body)
            assert (await other.send(target, body, headers)).status == 403


async def test_a_header_that_no_proof_covers_changes_nothing(cluster: Start) -> None:
    made = cluster("a")
    (node,) = made
    await asyncio.to_thread(node.url)
    target, forged = "/0/message", {REQUEST: b64encode(message("forged")).decode()}
    async with Attacker(node.node_url) as attacker:
        _, answer = await attacker.ask(target, b"", ".attacker.1")
        challenge = answer.body.decode()
        _, plain = await attacker.ask(target, message("one"), f"{challenge}.attacker.2")
        stamp, body = f"{challenge}.attacker.3", message("two")
        headers = attacker.proof.headers(stamp, "POST", target, body)
        changed = attacker.proof.open(stamp, await attacker.send(target, body, headers | forged), node.node_url)
        assert isinstance(changed, Response)
        assert plain.status != STALE and (changed.status, changed.body) == (plain.status, plain.body)


@pytest.mark.nightly
async def test_a_request_to_one_node_does_not_count_at_another_nor_after_a_restart(cluster: Start) -> None:
    made = cluster("a", "b")
    a, b = made
    for node in made:
        await asyncio.to_thread(node.url)
    async with Attacker(a.node_url) as to_a, Attacker(b.node_url) as to_b:
        _, answer = await to_a.ask("/0/knows/urn:x", b"", ".attacker.1")
        stamp = f"{answer.body.decode()}.attacker.2"
        made.move(0, "b")
        while (moved := (await to_b.ask("/0/knows/urn:x", b"", stamp))[1]).status == 421:
            await asyncio.to_thread(b.errors.read_text)
        assert moved.status == STALE and moved.body != answer.body


class Certificates:
    """Of the nodes, and of an attacker, and of two clients."""

    def __init__(self, directory: Path) -> None:
        self.nodes, self.others, self.clients = trustme.CA(), trustme.CA(), trustme.CA()
        self._directory = directory
        self.node = self.write("node", self.nodes.issue_cert("127.0.0.1").private_key_and_cert_chain_pem)
        self.ca = self.write("ca", self.nodes.cert_pem)

    def write(self, name: str, content: trustme.Blob) -> Path:
        content.write_to_path(str(self._directory / f"{name}.pem"))
        return self._directory / f"{name}.pem"

    @property
    def table(self) -> str:
        """The line of [cluster]."""
        return f'tls = {{ certificate = "{self.node}", ca = "{self.ca}" }}\n'

    def context(self, own: trustme.LeafCert | None) -> ssl.SSLContext:
        """Of one who trusts the nodes, and shows a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.nodes.configure_trust(context)
        if own is not None:
            own.configure_cert(context)
        return context


async def test_with_tls_only_who_has_a_certificate_and_the_secret_is_a_node(cluster: Start, tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    made = cluster("a", "b", more=files.table)
    a = made.nodes["a"]
    assert a.node_url.startswith("https://")
    urls = [await asyncio.to_thread(node.url) for node in made]
    for url in urls:
        async with holdfast.Source(url, ":memory:") as source:
            for number in range(8):
                await source.send(f"<n>{number}</n>", action="urn:test:submit")
            await source.flush(60)
    proof = NodeProof(SECRET, is_encrypted=True)
    ours, others = files.nodes.issue_cert("127.0.0.1"), files.others.issue_cert("127.0.0.1")
    async with Attacker(a.node_url, proof, files.context(ours)) as node:
        assert (await node.ask("/0/knows/urn:x", b"", ".node.1"))[1].status == STALE
    async with Attacker(a.node_url, NodeProof(SECRET), files.context(ours)) as stranger:
        headers = stranger.proof.headers(".node.1", "POST", "/0/knows/urn:x", b"")
        assert (await stranger.send("/0/knows/urn:x", b"", headers)).status == 403
    for url, context in (
        (a.node_url.replace("https:", "http:"), None),
        (a.node_url, files.context(None)),
        (a.node_url, files.context(others)),
    ):
        async with Attacker(url, proof, context) as stranger:
            with pytest.raises(TransportError):
                await stranger.ask("/0/knows/urn:x", b"", ".node.1")
    assert [await asyncio.to_thread(node.end) for node in made] == [0, 0]
    found = [text for records in stored(made.store, 2).values() for text in texts(records)]
    assert sorted(found) == sorted([str(number) for number in range(8)] * 2)


@pytest.mark.nightly
async def test_a_node_with_tls_sends_nothing_to_a_url_without(cluster: Start, tmp_path: Path) -> None:
    made = cluster("a", "b", more=Certificates(tmp_path).table)
    a, b = made
    url = await asyncio.to_thread(a.url)
    seen: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    b.node_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    made.tell()
    async with server, Attacker(url) as peer:
        head = {"Content-Type": "application/soap+xml"}
        for number in range(6):  # of both partitions
            body = CREATE.format(number).encode()
            answer = await peer.send("", body, head)
            assert answer.status in (200, 503)
    assert seen == []


CREATE = (
    '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
    'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"><s:Header>'
    "<a:Action>http://docs.oasis-open.org/ws-rx/wsrm/200702/CreateSequence</a:Action>"
    "<a:To>http://any/</a:To><a:MessageID>urn:uuid:{}</a:MessageID>"
    "<a:ReplyTo><a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address></a:ReplyTo></s:Header>"
    "<s:Body><r:CreateSequence><r:AcksTo><a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address>"
    "</r:AcksTo></r:CreateSequence></s:Body></s:Envelope>"
)
SEND = (
    '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
    'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"><s:Header><a:Action>urn:x</a:Action><a:To>http://any/</a:To>'
    '<r:Sequence s:mustUnderstand="1"><r:Identifier>{}</r:Identifier><r:MessageNumber>1</r:MessageNumber></r:Sequence>'
    "</s:Header><s:Body><n/></s:Body></s:Envelope>"
)


@pytest.mark.nightly
async def test_the_certificate_of_a_client_counts_at_the_node_that_has_its_sequence(
    cluster: Start, tmp_path: Path
) -> None:
    """A Sequence belongs to the certificate that created it, by whichever nodes its messages come."""
    files = Certificates(tmp_path)
    clients = files.write("clients", files.clients.cert_pem)
    listen = f'[listen.tls]\ncertificate = "{files.node}"\nclient_ca = "{clients}"\n'
    made = cluster("a", "b", more=files.table + listen)
    urls = [await asyncio.to_thread(node.url) for node in made]
    head = {"Content-Type": "application/soap+xml"}
    alice = files.context(files.clients.issue_cert("alice@example.org"))
    bob = files.context(files.clients.issue_cert("bob@example.org"))
    async with Attacker(urls[0], context=alice) as one, Attacker(urls[0], context=bob) as two:
        number, owners = 0, dict[int, str]()
        while len(owners) < 2:
            body = (await one.send("", CREATE.format(f"c{number}").encode(), head)).body.decode()
            identifier = body.partition("Identifier>")[2].partition("<")[0]
            owners[worker_of(identifier) or 0] = identifier
            number += 1
        for identifier in owners.values():
            refused = await two.send("", SEND.format(identifier).encode(), head)
            assert b"UnknownSequence" in refused.body, "by the node that has it, and by the other"
            taken = await one.send("", SEND.format(identifier).encode(), head)
            assert b"SequenceAcknowledgement" in taken.body
