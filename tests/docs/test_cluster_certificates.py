"""The commands of the guide on clusters that make the certificates of its nodes."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from guides import blocks

from holdfast.broker.cluster_config import NodeTLS
from holdfast.exceptions import ConfigurationError


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the guide makes its certificates with openssl")
def test_the_certificates_of_the_guide_serve_a_node_and_no_other_host(tmp_path: Path) -> None:
    for command in [text for text in blocks("cluster.md", "bash") if "openssl req" in text]:
        subprocess.run(["/bin/sh", "-ec", command], cwd=tmp_path, check=True, capture_output=True)
    tls = NodeTLS(str(tmp_path / "node.pem"), str(tmp_path / "nodes-ca.pem"), str(tmp_path / "node.key"))
    assert tls.valid_until("node1.example") - time.time() > 800 * 86_400
    with pytest.raises(ConfigurationError, match=r"node2\.example"):
        tls.valid_until("node2.example")
