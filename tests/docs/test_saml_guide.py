"""The programs of the guide on SAML tokens, run against each other as they stand."""

from __future__ import annotations

import time
from pathlib import Path

from guides import blocks, run, served
from saml import signed, unsigned
from signers import issue

GUIDE = "saml.md"


def test_the_programs_of_the_guide_send_and_check_assertions(tmp_path: Path) -> None:
    (serve,) = blocks(GUIDE, "bash")
    check, vouched, attributes, send = blocks(GUIDE, "python")
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
