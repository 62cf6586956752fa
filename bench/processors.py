"""The cost of the path of envelopes for a message: without processors, with an idle one, with one that adds a header,
and with the user names, certificates and symmetric keys of WS-Security at a destination and at a source.

    python bench/processors.py [--rounds 300] [--json] [--keys]

The benchmark decodes the same envelope, and encodes its acknowledgement, in one thread without sockets: by the wire's
two functions alone, and by ``Envelopes`` as an endpoint calls it. The ways take turns, a hundred messages each; the
figures are CPU microseconds per message of the best round and of the median, and the differences: of a secured message
from one without processors, of other messages from the wire's. A message with a user name has a Timestamp too; a digest
has a new nonce in each message, which the destination remembers in a file, as a broker does. The last rows write a
message instead, with a new token for each; their difference is from writing one without.

A request to the bare listener (``bare.py``) is a unit. It takes its turn as well: every tenth round, 64 connections
send it requests for a fifth of a second. The last columns are the differences in units, best by best and median by
median.

``--keys`` measures messages that certificates sign, or a symmetric key, instead of user names. A destination checks and
decrypts the message, and signs and encrypts its acknowledgement. If the package ``xmlsec`` is installed, its rows sign
and check the same messages with that alone, and the last lines compare the two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import thread_time, time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load
from lxml import etree

import holdfast
from holdfast.core.events import Transmit
from holdfast.core.messages import Acknowledge, CreateSequenceResponse, Envelope, Fault, SequenceAcknowledgement
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.envelopes.envelopes import CONTENT_TYPES, Envelopes
from holdfast.http.exchange import Exchange, Request
from holdfast.security.header import write_timestamp
from holdfast.security.names import DS, SECURITY, WSSE, WSU
from holdfast.security.signature import ID
from holdfast.wire import decode, encode

MESSAGES = 100
UNIT_EVERY = 10
"""Rounds between two measurements of the unit."""
HERE = Path(__file__).resolve().parent
FIRST = "the wire alone"
PLAIN = "no processor"
UNIT = "a unit"


class Nothing(holdfast.Processor):
    """Does nothing."""

    def inbound(self, context: holdfast.MessageContext) -> None:
        pass

    def outbound(self, context: holdfast.MessageContext) -> None:
        pass


class Header(holdfast.Processor):
    """Adds a header block to outgoing envelopes."""

    def outbound(self, context: holdfast.MessageContext) -> None:
        context.add_header(b"<t:Tenant xmlns:t='urn:t'>acme</t:Tenant>")


class Answered(Exchange):
    """Discards its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        pass

    start = write = drain = finish = respond  # type: ignore[assignment]


def acknowledgement() -> Envelope:
    """Return the answer to nearly every message."""
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, control=Acknowledge())
    envelope.acknowledgements = (SequenceAcknowledgement("urn:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427", ((1, 7),)),)
    return envelope


def message() -> bytes:
    """Return a message as the load generator writes it."""
    script = load.reliable()("http://127.0.0.1:1/", 0)
    script.next_request()
    created = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1)
    created.control = CreateSequenceResponse("urn:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    script.check(200, encode(created))
    return script.next_request().partition(b"\r\n\r\n")[2]


class Way:
    """One way to process a message.

    Args:
        once: Processes one message.
        fresh: Returns the next message; None: the same one each time.
        base: The way that it is compared with.
    """

    def __init__(
        self, once: Callable[[bytes], object], fresh: Callable[[], bytes] | None = None, base: str = ""
    ) -> None:
        self.once, self.fresh, self.base = once, fresh, base

    def round(self) -> float:
        """Return the CPU microseconds of a message."""
        messages = [self.fresh() for _ in range(MESSAGES)]
        once = self.once
        begun = thread_time()
        for message in messages:
            once(message)
        return 1e6 * (thread_time() - begun) / MESSAGES


Files = tuple[Path, Path]


def certificate(directory: Path, name: str) -> Files:
    """Make a certificate for an RSA key of 2048 bits, and return its files."""
    files = directory / f"{name}.pem", directory / f"{name}.key"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    words += ["-addext", "basicConstraints=critical,CA:FALSE", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    return files


class Unit:
    """The bare listener, in a separate process."""

    def __enter__(self) -> Unit:
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "bare.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._child.stdout is not None
        self._url = f"http://127.0.0.1:{int(self._child.stdout.readline())}/"
        return self

    def __exit__(self, *_: object) -> None:
        self._child.communicate()  # closes its standard input, which ends it

    def round(self) -> float:
        """Return the CPU microseconds of a request."""
        before = self._nanoseconds()
        result = load.measure(self._url, load.plain(b"x" * 1100), seconds=0.2, warmup=0.0)
        return (self._nanoseconds() - before) / result.requests / 1e3

    def _nanoseconds(self) -> int:
        return int(Path(f"/proc/{self._child.pid}/schedstat").read_text().split()[0])


def user_names(directory: Path) -> dict[str, tuple[holdfast.Processor, holdfast.Processor]]:
    """Return name -> the processors of a source and a destination."""
    passwords, nonces = {"alice": "secret"}, directory / "nonces"
    validator = holdfast.UsernameTokenValidator(passwords, nonces=nonces, require_timestamp=True)
    return {
        "a password": (holdfast.UsernameToken("alice", "secret"), validator),
        "a digest": (holdfast.UsernameToken("alice", "secret", digest=True), validator),
    }


def keys(directory: Path) -> dict[str, tuple[holdfast.Processor, holdfast.Processor]]:
    """Return name -> the processors of a source and a destination, which have the same algorithms."""
    (alice, her), (shop, its) = certificate(directory, "alice"), certificate(directory, "shop")
    encrypt, suite = holdfast.Encryption(), "Basic256Sha256"
    names = holdfast.UsernameTokenValidator({"alice": "secret"})
    owners = holdfast.EndorsingCertificates(alice)
    return {
        "signed": (
            holdfast.X509(alice, her, trusted=shop, suite=suite),
            holdfast.X509(shop, its, trusted=alice, suite=suite),
        ),
        "signed, encrypted": (
            holdfast.X509(alice, her, trusted=shop, suite=suite, encrypt=encrypt),
            holdfast.X509(shop, its, trusted=alice, suite=suite, encrypt=encrypt),
        ),
        "a symmetric key": (
            holdfast.SymmetricBinding("alice", "secret", shop, suite=suite),
            holdfast.SymmetricBindingValidator(shop, its, users=names, suite=suite),
        ),
        "a derived key": (
            holdfast.SymmetricBinding("alice", "secret", shop, suite=suite, derived_keys=True),
            holdfast.SymmetricBindingValidator(shop, its, users=names, suite=suite),
        ),
        "an endorsed key": (
            holdfast.EndorsedSymmetricBinding(alice, her, shop, suite=suite),
            holdfast.SymmetricBindingValidator(shop, its, users=owners, suite=suite),
        ),
    }


def by_xmlsec(directory: Path, data: bytes, fresh: Callable[[], bytes]) -> dict[str, Way]:
    """Return the ways to sign and to check a message with xmlsec alone; none if it is not installed.

    Args:
        directory: Has the certificate and the key of the sender.
        data: The message.
        fresh: Returns the message, signed by a source.
    """
    from holdfast.security.signed_message import elements_of  # needs the package cryptography

    try:
        import xmlsec
    except ImportError:
        print("xmlsec is not installed, so nothing is compared with it", file=sys.stderr)
        return {}
    private = xmlsec.Key.from_file(str(directory / "alice.key"), xmlsec.KeyFormat.PEM)
    public = xmlsec.Key.from_file(str(directory / "alice.pem"), xmlsec.KeyFormat.CERT_PEM)
    acknowledged, rsa = encode(acknowledgement()), xmlsec.constants.TransformRsaSha1

    def sign(message: bytes) -> bytes:
        envelope = etree.fromstring(message)
        header, body = envelope
        security = etree.SubElement(header, SECURITY, nsmap={"wsse": WSSE, "wsu": WSU})
        security.extend(elements_of(write_timestamp(time(), 300.0, "t")))
        signature = xmlsec.template.create(envelope, xmlsec.constants.TransformExclC14N, rsa, ns="ds")
        parts = [*header[:-1], body, security[0]]
        context = xmlsec.SignatureContext()
        for number, part in enumerate(parts):
            part.set(ID, f"p{number}")
            context.register_id(part, "Id", WSU)
            reference = xmlsec.template.add_reference(signature, xmlsec.constants.TransformSha256, uri=f"#p{number}")
            xmlsec.template.add_transform(reference, xmlsec.constants.TransformExclC14N)
        security.append(signature)
        context.key = private
        context.sign(signature)
        return etree.tostring(envelope)

    def check(message: bytes) -> bytes:
        envelope = etree.fromstring(message)
        context = xmlsec.SignatureContext()
        for part in envelope.iter():
            if part.get(ID) is not None:
                context.register_id(part, "Id", WSU)
        context.key = public
        context.verify(envelope.find(f".//{{{DS}}}Signature"))
        return sign(acknowledged)

    return {
        "xmlsec: checked": Way(check, fresh, "signed: checked"),
        "xmlsec: written": Way(sign, lambda: data, "signed: written"),
    }


def ways(data: bytes, secured: Mapping[str, tuple[holdfast.Processor, holdfast.Processor]]) -> dict[str, Way]:
    """Return name -> a way to decode and answer a message, or to write one.

    Args:
        data: The message.
        secured: Name -> the processors of a source and a destination.
    """

    def same() -> bytes:
        return data

    def outgoing() -> Transmit:
        return Transmit("https://127.0.0.1:1/", decode(data), "message", number=1, attempt=1)

    def request(message: bytes) -> Request:
        return Request("POST", "/", {}, message, "127.0.0.1:1", secure=True)

    def wire(message: bytes) -> None:
        exchange = Answered(request(message))
        decode(message)
        answer = acknowledgement()
        exchange.respond(200, encode(answer), CONTENT_TYPES[answer.soap])

    def through(*processors: holdfast.Processor) -> Callable[[bytes], None]:
        envelopes = Envelopes("destination", Counter(), processors)

        def take(exchange: Exchange, _envelope: Envelope, refusal: Fault | None) -> None:
            assert refusal is None, refusal
            envelopes.respond(exchange, acknowledgement())

        return lambda message: envelopes.receive(Answered(request(message)), take)

    def writing(*processors: holdfast.Processor) -> Callable[[Transmit], bytes]:
        envelopes = Envelopes("source", Counter(), processors)
        return lambda sent: envelopes.write(sent)[0]

    def fresh(source: holdfast.Processor) -> Callable[[], bytes]:
        write = writing(source)
        return lambda: write(outgoing())

    return {
        FIRST: Way(wire, same),
        PLAIN: Way(through(), same, FIRST),
        "one that does nothing": Way(through(Nothing()), same, FIRST),
        "one that adds a header": Way(through(Header()), same, FIRST),
        **{f"{name}: checked": Way(through(to), fresh(by), PLAIN) for name, (by, to) in secured.items()},
        "written": Way(writing(), outgoing),
        **{f"{name}: written": Way(writing(by), outgoing, "written") for name, (by, _) in secured.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keys", action="store_true", help="measure certificates and symmetric keys")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = message()
        measured = ways(data, (keys if options.keys else user_names)(Path(directory)))
        if options.keys:
            signed = measured["signed: checked"].fresh
            assert signed is not None
            measured |= by_xmlsec(Path(directory), data, signed)
        took: dict[str, list[float]] = {name: [] for name in (*measured, UNIT)}
        with Unit() as unit:
            for number in range(options.rounds):
                if number % UNIT_EVERY == 0:
                    took[UNIT].append(unit.round())
                for name, way in measured.items():
                    took[name].append(way.round())
    table = {name: {"best": min(times), "median": median(times)} for name, times in took.items()}
    if options.json:
        print(json.dumps(table))
        return
    print(f"{'CPU us/message':<26}" + f"{'best':>9}{'above':>9}{'units':>6}{'median':>9}{'above':>9}{'units':>6}")
    for name, row in table.items():
        base = table[measured[name].base or name] if name in measured else row
        above = {key: row[key] - base[key] for key in row}
        print(
            f"{name:<26}"
            + "".join(f"{row[key]:>9.2f}{above[key]:>9.2f}{above[key] / table[UNIT][key]:>6.2f}" for key in row)
        )
    for what in ("checked", "written") if "xmlsec: written" in table else ():
        ours, theirs = table[f"signed: {what}"], table[f"xmlsec: {what}"]
        ratios = [f"{ours[key] / theirs[key]:.2f}" for key in ("best", "median")]
        print(f"signed, {what}: {ratios[0]} times what xmlsec alone takes (best), {ratios[1]} (median)")


if __name__ == "__main__":
    main()
