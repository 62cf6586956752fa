"""The commands of the guide on clusters that make the certificates of its nodes."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from guides import blocks

from holdfast.broker.cluster_config import NodeTLS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the guide makes its certificates with openssl")
def test_the_certificates_of_the_guide_serve_a_node_and_no_other_host(tmp_path: Path) -> None:
    for command in [text for text in blocks("cluster.md", "bash") if "openssl req" in text]:
        subprocess.run(["/bin/sh", "-ec", command], cwd=tmp_path, check=True, capture_output=True)
    tls = NodeTLS(str(tmp_path / "node.pem"), str(tmp_path / "nodes-ca.pem"), str(tmp_path / "node.key"))
    client, server = shake_hands(tls, "node1.example")
    assert client.getpeercert() and server.getpeercert()
    with pytest.raises(ssl.SSLCertVerificationError, match=r"node2\.example"):
        shake_hands(tls, "node2.example")


def shake_hands(tls: NodeTLS, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A node asks another one, in memory."""
    asked, served = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.asking().wrap_bio(served, asked, server_hostname=host)
    server = tls.accepting().wrap_bio(asked, served, server_side=True)
    for one in (client, server) * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            one.do_handshake()
    return client, server
