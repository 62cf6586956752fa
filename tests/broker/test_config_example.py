"""The example of a whole configuration: it loads, it names every key, and its defaults are the defaults."""

from __future__ import annotations

import dataclasses
import re
import secrets
from functools import cache
from pathlib import Path

import pytest
import trustme
from order_service import in_one_document
from saml import unsigned

from holdfast.broker import config as classes
from holdfast.broker.config_file import parse_config, read_config
from holdfast.broker.signature_config import MessageCredentialsConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "broker.toml"
OURS = [
    one
    for one in vars(classes).values()
    if dataclasses.is_dataclass(one) and (one.__module__ == classes.__name__ or one is MessageCredentialsConfig)
]
NAMED_BY_TABLES = {("PolicyConfig", "pattern"), ("PolicyConfig", "given")} | {
    (name, "name") for name in ("QueueConfig", "ForwarderConfig")
}


@cache
def issued() -> tuple[trustme.CA, trustme.LeafCert]:
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    return authority, authority.issue_cert("broker.example", key_type=trustme.KeyType.RSA)


def write_certificates(directory: Path, keys: tuple[str, ...], authorities: tuple[str, ...]) -> None:
    authority, leaf = issued()
    for name in keys:
        leaf.private_key_pem.write_to_path(str(directory / f"{name}.key"))
        leaf.cert_chain_pems[0].write_to_path(str(directory / f"{name}.pem"))
    for name in authorities:
        authority.cert_pem.write_to_path(str(directory / f"{name}.pem"))


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example, with the files that it names beside it."""
    write_certificates(tmp_path, ("server", "client"), ("clients", "partner-ca"))
    for name in ("admin.token", "partner.password", "proxy.password"):
        (tmp_path / name).write_text("s3cret\n")
    (tmp_path / "metrics.token").write_text("only-metrics\n")
    (tmp_path / "users.txt").write_text("ajax:s3cret\nacme-orders:s3cret\n")
    (tmp_path / "broker.toml").write_bytes(EXAMPLE.read_bytes())
    return tmp_path / "broker.toml"


def test_the_example_loads(example: Path) -> None:
    config = read_config(example)
    assert [one.name for one in config.queues] == ["orders", "urgent", "audit", "other"]
    partner, alerts = config.forwarders
    assert partner.policy.sending is not None
    assert (partner.policy.patience, partner.policy.refusals, partner.policy.sending.expires) == (600.0, 20, 86_400.0)
    assert (alerts.policy.patience, alerts.policy.refusals) == (300.0, 10)


def test_the_example_names_every_key() -> None:
    text = EXAMPLE.read_text()
    missing = [
        f"{one.__name__}.{field.name}"
        for one in OURS
        for field in dataclasses.fields(one)
        if (one.__name__, field.name) not in NAMED_BY_TABLES and re.search(rf"\b{field.name}\b", text) is None
    ]
    assert missing == []


DOCS = Path(__file__).parents[2] / "docs"
OTHERS = ("broker-configuration.md", "pipeline-file.md")
"""Pages with other files: the example, which needs files beside it, and a pipeline's."""
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    if page.name not in OTHERS
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    if "[sources." not in block  # a pipeline's
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_configuration_that_the_documentation_shows_loads(tmp_path: Path, block: str) -> None:
    (tmp_path / "users.txt").write_text("alice:s3cret\nshop-1:s3cret\n")
    (tmp_path / "warehouse.password").write_text("s3cret\n")
    (tmp_path / "cluster.secret").write_text(f"{secrets.token_hex(32)}\n")
    (tmp_path / "kafka-password").write_text("s3cret\n")
    (tmp_path / "shop.wsdl").write_bytes(in_one_document())
    (tmp_path / "assertion.xml").write_text(unsigned("2.0", 0.0))
    write_certificates(tmp_path, ("broker",), ("authority", "gateway", "idp", "warehouse"))
    config = parse_config(block.encode(), "broker.toml", tmp_path)
    assert config.queues
