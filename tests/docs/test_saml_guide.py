"""The programs of the guide on SAML tokens, run against each other as they stand."""

from __future__ import annotations

import time
from pathlib import Path

from guides import blocks, run, served
from saml import key_info, signed, unsigned
from signers import authority, issue

GUIDE = "saml.md"


def test_the_programs_of_the_guide_send_and_check_assertions(tmp_path: Path) -> None:
    serve, _ = blocks(GUIDE, "bash")
    check, vouched, attributes, send, *_ = blocks(GUIDE, "python")
    issuer = issue("CN=idp,O=Example")
    for name in ("idp.pem", "gateway.pem"):
        (tmp_path / name).write_bytes(issuer.pem)
    (tmp_path / "assertion.xml").write_bytes(signed(unsigned("2.0", time.time()), issuer))
    (tmp_path / "orders.py").write_text(check, encoding="utf-8")
    with served(tmp_path, serve) as (url, printed):
        assert run(tmp_path, "-c", send.replace("https://shop.example/orders", url)) == "acknowledged\n"
        assert printed.readline() == "alice {urn:shop}order\n"
    for program in (vouched, attributes):
        run(tmp_path, "-c", program)


def test_the_programs_of_the_guide_sign_messages_with_assertions(tmp_path: Path) -> None:
    _, serve = blocks(GUIDE, "bash")
    *_, send, check = blocks(GUIDE, "python")
    issuer, clinic = issue("CN=idp,O=Example"), issue("CN=clinic,O=Example", authority())
    for name, one in (
        ("idp", issuer),
        ("clinic", clinic),
        ("gateway", issue("CN=gateway")),
        ("authority", authority()),
    ):
        files = one.files(tmp_path)
        files.certificate.rename(tmp_path / f"{name}.pem")
        files.key.rename(tmp_path / f"{name}.key")
    made = unsigned("2.0", time.time(), method="holder-of-key", key=key_info(clinic))
    made = made.replace("https://shop.example/orders", "https://gateway.example/records")
    (tmp_path / "assertion.xml").write_bytes(signed(made, issuer))
    (tmp_path / "gateway.py").write_text(check, encoding="utf-8")
    with served(tmp_path, serve) as (url, printed):
        assert run(tmp_path, "-c", send.replace("https://gateway.example/records", url)) == "acknowledged\n"
        assert printed.readline() == "alice {urn:health}record\n"
