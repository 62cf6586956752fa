"""The programs and commands of the guide on certificates, run against each other as they stand."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from guides import blocks, run, served

GUIDE = "certificates.md"


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the guide makes its certificates with openssl")
def test_the_programs_of_the_guide_send_and_check_signed_messages(tmp_path: Path) -> None:
    make, serve, authority, issue = blocks(GUIDE, "bash")
    send, check, encrypt, two_certificates, named, issuers, *_ = blocks(GUIDE, "python")
    subprocess.run(["sh", "-ec", make], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "orders.py").write_text(check, encoding="utf-8")
    with served(tmp_path, serve) as (url, printed):
        assert run(tmp_path, "-c", send.replace("https://shop.example/orders", url)) == "acknowledged\n"
        assert printed.readline() == "CN=alice,O=Example {urn:shop}order\n"
    encrypted = "encrypt=holdfast.Encryption()"
    (tmp_path / "orders.py").write_text(check.replace("nonces=", f"{encrypted}, nonces="), encoding="utf-8")
    with served(tmp_path, serve) as (url, printed):
        text = send.replace("https://shop.example/orders", url).replace('"outbox"', '"encrypted"')
        text = text.replace('trusted="shop.pem"', f'trusted="shop.pem", {encrypted}')
        assert encrypted in text
        assert run(tmp_path, "-c", text) == "acknowledged\n"
        assert printed.readline() == "CN=alice,O=Example {urn:shop}order\n"
    subprocess.run(["sh", "-ec", authority], cwd=tmp_path, check=True, capture_output=True)
    run(tmp_path, "-c", encrypt)
    subprocess.run(["sh", "-ec", _with_another_key(make)], cwd=tmp_path, check=True, capture_output=True)
    run(tmp_path, "-c", two_certificates)
    run(tmp_path, "-c", named)
    run(tmp_path, "-c", issuers)
    subprocess.run(["sh", "-ec", issue], cwd=tmp_path, check=True, capture_output=True)
    partner = 'trusted="authority.pem", subjects=["CN=bob,O=Example"]'
    (tmp_path / "orders.py").write_text(check.replace('trusted="alice.pem"', partner), encoding="utf-8")
    with served(tmp_path, serve) as (url, printed):
        text = send.replace("https://shop.example/orders", url).replace("alice.", "bob.")
        text = text.replace('"outbox"', '"of-bob"')
        assert run(tmp_path, "-c", text) == "acknowledged\n"
        assert printed.readline() == "CN=bob,O=Example {urn:shop}order\n"


def _with_another_key(make: str) -> str:
    """The commands for the certificates, but for encryption."""
    for name in ("shop", "alice"):
        make = make.replace(f"{name}.", f"{name}-encryption.")
    return make
