"""Configuration files: whatever is wrong in them is said at once, with line, key and mend; and no secret ever is.

Covers broker/config.py, broker/config_checks.py, broker/security_checks.py, broker/destinations.py,
broker/signature_config.py, config/tables.py, config/unreadable.py, config/values.py and exceptions.py.
"""

from __future__ import annotations

import dataclasses
import pickle
import re
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

import pytest
import trustme
from hostile_urls import NO_URLS
from hypothesis import given
from hypothesis import strategies as st
from signers import issue

from holdfast.broker.config import BrokerConfig, ForwarderConfig
from holdfast.broker.config_file import parse_config, read_config, read_store_location
from holdfast.config.lines import KeyLines
from holdfast.config.tables import TableReading, kind_of, told_key
from holdfast.core.policy import Delivery, ForwardingPolicy, OnRefused
from holdfast.core.versions import Versions
from holdfast.endpoint.admin.token import TOKEN_VARIABLE
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes, Mistake
from holdfast.store.address import read_address
from holdfast.store.kafka.address import read_kafka_address

HERE = Path(".")


def parse(text: str, base: Path = HERE) -> BrokerConfig:
    return parse_config(text.encode(), "broker.toml", base)


def mistakes(text: str, base: Path = HERE) -> list[Mistake]:
    with pytest.raises(ConfigurationMistakes) as caught:
        parse(text, base)
    for one in caught.value.mistakes:
        assert str(one) in str(caught.value)
        assert one.remedy[0].isupper() or one.remedy[0] in "\"'"
    return list(caught.value.mistakes)


def only(text: str, base: Path = HERE) -> str:
    (one,) = mistakes(text, base)
    return str(one)


def test_an_empty_file_says_what_no_file_says() -> None:
    assert parse("") == BrokerConfig()
    assert parse("\ufeffworkers = 2").workers == 2  # a byte order mark, which some editors write


def test_a_byte_order_mark_is_no_part_of_a_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\ufeff3f9c0a7b51e84d62\r\n")
    secret = parse("admin.token_file = 'token'", tmp_path).admin.token_file
    assert secret is not None and secret.reveal() == "3f9c0a7b51e84d62"


def test_a_key_that_there_is_not_is_told_with_the_nearest_one() -> None:
    text = '[queues.orders]\n\n[forwarders.orders]\nto = "http://partner.example/"\nquue = "orders"\n'
    told = "broker.toml:5: forwarders.orders.quue: the key 'quue' does not exist here. Did you mean 'queue'?"
    assert only(text) == told


def test_workers_that_remember_no_nonces_need_no_file_for_them() -> None:
    text = "store = 'postgresql://u@h/n'\nworkers = 2\nsecurity.timestamp_alone = true"
    assert parse(text).security.timestamp_alone


def test_every_mistake_is_told_at_once_in_the_order_of_lines() -> None:
    text = """\
partitions = 0
[listen]
port = "8080"
[limits.http]
max_body = "10XB"
max_connections = -1
[queues.orders]
retention = "7 days"
[queues.dead-letters]
[[routes]]
queues = "ordrs"
[forwarders.third]
queue = "orders"
to = "http://host/"
policy.patience = "-1"
policy.sending = {window = 0, retransmission = {cap = "soon", jitter = 3}}
[policies."httx://x"]
[policies."*"]
sending.assurance = "never"
"""
    found = [(one.line, one.key) for one in mistakes(text)]
    assert found == [
        (1, "partitions"),
        (3, "listen.port"),
        (5, "limits.http.max_body"),
        (6, "limits.http.max_connections"),
        (8, "queues.orders.retention"),
        (9, "queues.dead-letters"),
        (11, "routes[1].queues"),
        (15, "forwarders.third.policy.patience"),
        (16, "forwarders.third.policy.sending.retransmission.cap"),
        (16, "forwarders.third.policy.sending.retransmission.jitter"),
        (16, "forwarders.third.policy.sending.window"),
        (17, 'policies."httx://x"'),
        (19, 'policies."*".sending.assurance'),
    ]


FORWARDER = '[queues.orders]\n[forwarders.a]\nqueue = "orders"\nto = "https://partner.example/"\n'
SIGNATURE = "security.signature = {certificate = 'own.pem', key = 'own.key', trusted = ['other.pem']}"
SYMMETRIC = "security.symmetric = {certificate = 'own.pem', key = 'own.key'}"
KEYED = "security = {username = 'u', password_env = 'HOME', symmetric = {certificate = 'own.pem'}"
ENDORSED = "security.symmetric = {certificate = 'own.pem', key = 'own.key', trusted = ['other.pem']}"
ENDORSING = "security.symmetric = {certificate = 'other.pem', own_certificate = 'own.pem', own_key = 'own.key'}"
ROUTE = "[queues.a]\n[queues.b]\n"


@pytest.mark.parametrize(
    ("text", "key", "what", "remedy"),
    [
        ("a = x", "", "the file is not valid TOML: Invalid value at column 5", "Write text in quotes"),
        ("a = 1\na = 2\n", "", "the file is not valid TOML: Cannot overwrite", "already in the file"),
        ("[a]\n[a]\n", "", "the file is not valid TOML: Cannot declare", "already in the file"),
        ("[a\n", "", "the file is not valid TOML: Expected ']'", ""),
        ("x = " + "[" * 40 + "]" * 40, "", "nested more than 32 deep", "Close"),
        ("store = 5", "store", "5 is not text", "Write it in quotes"),
        ("store = ['a']", "store", "a list is not text", "Write a single value in quotes"),
        ('store = ""', "store", "the text is empty", "write a value"),
        ("store = 'sqlite:///x'", "store", "is not the URL of a database", "Example: postgresql://user@host/database"),
        ("store = 'postgresql://u@h'", "store", "names no database", "after the host"),
        ("store = 'kafka://h:1/t'", "store", "names no directory for the cache", "an absolute path"),
        (
            "store = 'kafka://h:1/t?cache=/c&partition=1'\nworkers = 2",
            "store",
            "the partition of its number",
            "Remove partition",
        ),
        ("queues = 5", "queues", "a whole number is not a table", "[queues.NAME]"),
        ("queues.a = 5", "queues.a", "a whole number is not a table", "[queues.a]"),
        ("routes = {}", "routes", "a table is not a list of tables", "[[routes]]"),
        ("listen = true", "listen", "true or false is not a table", "[listen]"),
        ("queues = {}", "queues", "no queue is configured", "remove queues"),
        ('queues."a b" = {}', 'queues."a b"', '"a b" is not a valid name', "64 letters"),
        ("listen.port = true", "listen.port", "true is not a whole number", "without quotes"),
        ("listen.port = 65536", "listen.port", "it cannot be 65536", "at least 0 and at most 65,535"),
        ("sessions = 1025", "sessions", "it cannot be 1025", "at most 1,024"),
        ("admin.port = 8080", "admin.port", "both listeners use 127.0.0.1:8080", "listen.port"),
        ("listen.public_url = 5", "listen.public_url", "5 is not text", "Write it in quotes"),
        ("listen.public_url = 'api.example'", "listen.public_url", "this URL 'api.example' is not an http", "{path}"),
        ("listen.public_url = 'http://h/?wsdl'", "listen.public_url", "has a query or a fragment", "{path}"),
        ("listen.public_url = 'http://a:b@h/'", "listen.public_url", "contains a user, which every client", "{path}"),
        ('listen.host = "127.0.0.1:8080"', "listen.host", '"127.0.0.1:8080" is not a host', "a setting of its own"),
        ('admin.host = "http://here"', "admin.host", '"http://here" is not a host', "a machine's name"),
        ("admin.enabled = 1", "admin.enabled", "1 is not true or false", "without quotes"),
        ('default_queue = "inbx"', "default_queue", "the queue 'inbx' does not exist", "Did you mean 'inbox'?"),
        ("limits.max_queues = 1\n" + ROUTE, "queues", "2 queues are configured, but limits.max_queues is 1", "Raise"),
        ("limits.http.max_body = 999999999", "limits.http", "max_buffered is only", "raise max_buffered"),
        ('limits.max_routed_body = "0kB"', "limits.max_routed_body", 'it cannot be "0kB"', "at least 1"),
        ('sequences.reply_patience = "1 h"', "sequences.reply_patience", "is not a duration", '"500ms"'),
        ("workers = 2\nstore = ':memory:'", "workers", "several worker processes cannot share", "directory"),
        ('allow_addresses = ["http://a/?q"]', "allow_addresses[1]", "only scheme, host", "Write it as"),
        ("[namespaces]\no = ''", "namespaces.o", '"" is not a namespace', "quotes"),
        ("[namespaces]\n1 = 'urn:x'", "namespaces.1", "'1' is not a valid prefix", "word"),
        (ROUTE + "[[routes]]\nqueues = []", "routes[1].queues", "the list is empty", "add a value"),
        (ROUTE + "[[routes]]\nqueues = ['a', 'a']", "routes[1].queues[2]", '"a" is listed twice', "once"),
        (ROUTE + "[[routes]]\n", "routes[1]", "'queues' is missing", "Write queues"),
        (
            ROUTE + "[[routes]]\nqueues='a'\nexpects='reply'",
            "routes[1].expects",
            "not a valid value",
            '"one_way", "request"',
        ),
        (ROUTE + "[[routes]]\nqueues='a'\nexpects='request'", "routes[1].expects", "no forwarder", "Add a forwarder"),
        (
            ROUTE + "[[routes]]\nqueues='a'\naction='urn:*'\n[[routes]]\nqueues='b'\naction='urn:x'\nto='urn:y'",
            "routes[2]",
            "routes[1] comes first and matches",
            "before that one",
        ),
        (ROUTE + "[[routes]]\nqueues='a'\n[[routes]]\nqueues='b'\n", "routes[2]", "routes[1] comes first", "remove it"),
        (
            "default_queue='a'\n" + ROUTE + "[[routes]]\nqueues='b'",
            "default_queue",
            "no message reaches this",
            "Remove one",
        ),
        (ROUTE + "[[routes]]\nqueues='a'\naction='" + "*" * 9 + "'", "routes[1].action", "too long", "8 stars"),
        (ROUTE + "[[routes]]\nqueues='a'\nxpath='//a[1]'", "routes[1].xpath", "a position", "by its content"),
        (
            ROUTE + "[[routes]]\nqueues='a'\nxpath='//o:a'",
            "routes[1].xpath",
            "the prefix 'o' is not defined",
            "[namespaces]",
        ),
        (
            ROUTE + "[[routes]]\nqueues='a'\nheader.name='o:a'",
            "routes[1].header.name",
            "the prefix 'o' is not defined",
            "[namespaces]",
        ),
        (
            ROUTE + "[[routes]]\nqueues='a'\nheader.name='{o}a'",
            "routes[1].header.name",
            "'{o}a' is not a valid name",
            "local",
        ),
        (
            FORWARDER
            + FORWARDER.replace("[queues.orders]", "").replace("forwarders.a", "forwarders.b")
            + "timeout = 5",
            "forwarders.b.timeout",
            "the forwarder 'a' has a different timeout for the same address",
            "the same",
        ),
        (FORWARDER + "queue_ = 1", "forwarders.a.queue_", "the key 'queue_' does not exist", "'queue'"),
        (FORWARDER + "profile = 'wfc'", "forwarders.a.profile", '"wfc" is not a valid value', '"wcf-2007"'),
        (FORWARDER + "profile = 'wcf'\nrm = '1.0'", "forwarders.a.rm", "sets the versions", "Remove"),
        (FORWARDER + "rm = '1.1'\naddressing = '2004/08'", "forwarders.a.rm", "cannot be combined", "2005/08 only"),
        (FORWARDER + "offer = 'yes'", "forwarders.a.offer", '"yes" is not true or false', "Write true"),
        (FORWARDER + "timeout = 0", "forwarders.a.timeout", "it cannot be 0", "a number above 0"),
        (FORWARDER + "timeout = inf", "forwarders.a.timeout", "it cannot be inf", "a number above 0"),
        (FORWARDER + "timeout = nan", "forwarders.a.timeout", "it cannot be nan", "a number above 0"),
        (
            FORWARDER + "tls.ca = 'no.pem'",
            "forwarders.a.tls.ca",
            "no.pem cannot be read: No such file",
            "Relative paths start",
        ),
        (FORWARDER + "proxy.url = 'https://p/'", "forwarders.a.proxy.url", "is not an http URL of a proxy", "3128"),
        (FORWARDER + "proxy = {url='http://p/', username='u'}", "forwarders.a.proxy", "no password", "password_file"),
        ("security.skew = 5", "security", "'users' is missing: without it, everybody may send", "Write users"),
        (
            "security = { timestamp_alone = true, require_digest = true }",
            "security.require_digest",
            "with timestamp_alone = true they send none",
            "Remove require_digest",
        ),
        ("security.users = 'none.txt'", "security.users", "No such file", "NAME:PASSWORD"),
        ("security.life = '0s'\nsecurity.users = 'users.txt'", "security.life", 'it cannot be "0s"', "above 0"),
        (
            "store = 'postgresql://u@h/n'\nsecurity.users = 'users.txt'\nworkers = 2",
            "security.nonces",
            "several workers need one file",
            'nonces = "nonces.db"',
        ),
        (ROUTE + "[[routes]]\nqueues='a'\nuser='alice'", "routes[1].user", "[security] names none", "security.users"),
        (
            ROUTE + "[[routes]]\nqueues='a'\nuser=['eve', 'b*']\n[security]\nusers='users.txt'",
            "routes[1].user",
            "no user of security.users matches",
            "Correct the name",
        ),
        (
            ROUTE + "[[routes]]\nqueues='a'\nuser='a*'\n[[routes]]\nqueues='b'\nuser='alice'\n"
            "[security]\nusers='users.txt'",
            "routes[2]",
            "routes[1] comes first and matches",
            "before that one",
        ),
        (
            "security.signature = {certificate = 'a.pem', key = 'users.txt', trusted = 'users.txt'}",
            "security.signature.certificate",
            "a.pem cannot be read: No such file",
            "Relative paths start",
        ),
        (
            "security.signature = {certificate = 'users.txt', key = 'users.txt', trusted = 'users.txt'}",
            "security.signature",
            "no certificate in PEM",
            "it begins with -----BEGIN CERTIFICATE-----",
        ),
        (
            "security.signature = {certificate = 'users.txt', key = 'users.txt'}",
            "security.signature",
            "'trusted' is missing",
            "Write trusted",
        ),
        (
            SIGNATURE.replace("}", ", suite = 'TripleDes'}"),
            "security.signature.suite",
            '"TripleDes" is not a valid value',
            '"Basic256Sha256"',
        ),
        (
            f"security.users = 'users.txt'\n{SIGNATURE}",
            "security.signature",
            "a signature, an assertion or a Timestamp alone, not",
            "Remove one",
        ),
        (
            f"{FORWARDER}{SIGNATURE}\nsecurity.username = 'u'",
            "forwarders.a.security.username",
            "a signature, an assertion or a Timestamp alone, not",
            "Remove one",
        ),
        (
            f"{FORWARDER}{SIGNATURE}\naddress = 'http://broker:8080/'",
            "forwarders.a.address",
            "does not check the signatures",
            "[security.signature]",
        ),
        (
            "security = {users = 'users.txt', symmetric = {certificate = 'own.pem', key = 'own.key', suite = 'Basic'}}",
            "security.symmetric.suite",
            '"Basic" is not a valid',
            '"Basic256"',
        ),
        (
            "security = {users = 'users.txt', symmetric = {certificate = 'users.txt', key = 'users.txt'}}",
            "security.symmetric",
            "no certificate in PEM",
            "it begins with -----BEGIN CERTIFICATE-----",
        ),
        (SYMMETRIC, "security", "'users' is missing", "Write users"),
        (f"{SIGNATURE}\n{SYMMETRIC}", "security.symmetric", "names a user", "remove the other table"),
        (
            "security.users = 'users.txt'\n" + SYMMETRIC.replace("}", ", bind_sequences = true}"),
            "security.symmetric.bind_sequences",
            "cannot be bound to the user name",
            "conversation = true",
        ),
        (
            FORWARDER + KEYED.replace("own.pem'", "own.pem', bind_sequences = true") + "}",
            "forwarders.a.security.symmetric",
            "cannot be bound to the user name",
            "Remove bind_sequences",
        ),
        (f"{ENDORSED}\nsecurity.users = 'users.txt'", "security.users", "endorses each message", "Remove one"),
        (f"{ENDORSED}\n{SIGNATURE}", "security.signature", "a certificate endorses each", "Remove one"),
        (
            ENDORSED.replace("]}", "], conversation = true}"),
            "security.symmetric.conversation",
            "requested with a user name",
            "Remove conversation, or write users",
        ),
        (ENDORSED.replace("other.pem", "own.key"), "security.symmetric", "no certificate in PEM", "has a private key"),
        (
            "security.users = 'users.txt'\n" + SYMMETRIC.replace("}", ", signed = false}"),
            "security.symmetric.signed",
            "'trusted' is missing",
            "Write trusted",
        ),
        (
            "security.users = 'users.txt'\n" + SYMMETRIC.replace("}", ", subjects = ['CN=a']}"),
            "security.symmetric.subjects",
            "'trusted' is missing",
            "Write trusted",
        ),
        (
            f"{FORWARDER}{ENDORSING}\nsecurity.username = 'u'",
            "forwarders.a.security.username",
            "a certificate endorses each message instead",
            "Remove one",
        ),
        (
            f"{FORWARDER}{ENDORSING}\nsecurity.conversation = true",
            "forwarders.a.security.conversation",
            "is requested with a user name",
            "Remove one",
        ),
        (
            f"{FORWARDER}security = {{username = 'u', password_env = 'HOME', conversation_version = '1.3'}}",
            "forwarders.a.security.conversation_version",
            "'conversation' is not true",
            "Write conversation = true there, or remove conversation_version",
        ),
        (f"{FORWARDER}{ENDORSING}\nsecurity.digest = true", "forwarders.a.security.digest", "have none", "Remove dig"),
        (
            FORWARDER + ENDORSING.replace(", own_key = 'own.key'", ""),
            "forwarders.a.security.symmetric",
            "has no key",
            "both own_certificate and own_key",
        ),
        (
            FORWARDER + ENDORSING.replace(", own_certificate = 'own.pem'", "") + "  # own.pem",
            "forwarders.a.security.symmetric",
            "has no key",
            "both own_certificate and own_key",
        ),
        (
            FORWARDER
            + ENDORSING.replace("own_certificate = 'own.pem'", "own_certificate = 'other.pem'")
            + "  # own.pem",
            "forwarders.a.security.symmetric",
            "is not the private key of",
            "Name the key",
        ),
        (f"{FORWARDER}{ENDORSING}\naddress = 'http://b:8080/'", "forwarders.a.address", "the key of", "poll = true"),
        (f"{FORWARDER}{KEYED}}}\naddress = 'http://broker:8080/'", "forwarders.a.address", "the key of", "poll = true"),
        (f"{FORWARDER}{KEYED}, digest = true}}", "forwarders.a.security.digest", "is encrypted", "Remove digest"),
        (f"{FORWARDER}{KEYED}, timestamp = false}}", "forwarders.a.security.timestamp", "is encrypted", "Remove tim"),
        (
            f"{FORWARDER}{KEYED}, signature = {{certificate = 'own.pem', key = 'own.key', trusted = 'other.pem'}}}}",
            "forwarders.a.security.username",
            "not several of them",
            "Remove one",
        ),
        (
            FORWARDER + KEYED.replace("own.pem'", "users.txt'") + "}",
            "forwarders.a.security.symmetric",
            "no certificate in PEM",
            "it begins with -----BEGIN CERTIFICATE-----",
        ),
        (
            FORWARDER + KEYED.replace("own.pem'", "own.pem', derived_keys = true") + ", conversation = true}",
            "forwarders.a.security.symmetric.derived_keys",
            "decides this",
            "Remove derived_keys",
        ),
        (
            FORWARDER + "security.password_env = 'HOME'",
            "forwarders.a.security",
            "'username' is missing",
            "Write username",
        ),
        (FORWARDER + "security.username = 'u'", "forwarders.a.security", "the password is missing", "password_file"),
        (
            FORWARDER + "security = {username = 'u', password_env = 'HOME', conversation = true, digest = true}",
            "forwarders.a.security.digest",
            "a token is requested with the password itself",
            "Remove digest",
        ),
        (
            f"{FORWARDER}{SIGNATURE}\nsecurity.conversation = true",
            "forwarders.a.security.conversation",
            "is requested with a user name",
            "Remove one",
        ),
        (
            FORWARDER + "security = {username = '', password_env = 'HOME'}",
            "forwarders.a.security.username",
            "the text is empty",
            "write a value",
        ),
        (FORWARDER + "credentials = {}", "forwarders.a.credentials", "username is missing", "token"),
        (FORWARDER.replace("'orders'", "'ordrs'").replace('"orders"', '"ordrs"'), "forwarders.a.queue", "", "'orders'"),
        (
            FORWARDER.replace("https://partner.example", "http://localhost:8080"),
            "forwarders.a.to",
            "without end",
            "destination",
        ),
        (FORWARDER + "address = 'broker'", "forwarders.a.address", '"broker"', "http"),
        (FORWARDER + "address = 'http://b/'\npoll = true", "forwarders.a.poll", "in one way only", "Remove poll"),
        (FORWARDER + f"address = 'http://b/{'x' * 2000}'", "forwarders.a.address", "2,009 characters", "shorter"),
        (FORWARDER + f"address = 'http://b/{'x' * 2100}'", "forwarders.a.address", "2,109 characters", "shorter"),
        (
            FORWARDER + "address = 'https://partner.example/'",
            "forwarders.a.address",
            "destination's own",
            "this broker",
        ),
        ("store = 'mysql:/h/d'", "store", "lacks a slash", "mysql://"),
        (
            FORWARDER + "policy.on_refused = 'drop'",
            "forwarders.a.policy.on_refused",
            '"drop" is not a valid',
            '"wait", "dead-letter"',
        ),
        (
            FORWARDER + "policy.sending.retransmission.floor = '40s'",
            "forwarders.a.policy",
            "combined with policies: RetransmissionPolicy(floor=40) is above cap=8",
            "shortest",
        ),
        ("[policies.'*']\nsending.retransmission.cap = '100ms'", 'policies."*"', "above cap=0.1", "shortest"),
        ("[policies]\n'http://*.x/' = {}", 'policies."http://*.x/"', "is not a pattern", '"partner.example"'),
    ],
)
def test_each_mistake_names_its_key_what_is_wrong_and_the_mend(
    tmp_path: Path, text: str, key: str, what: str, remedy: str
) -> None:
    (tmp_path / "users.txt").write_text("alice:secret\n")
    if "own.pem" in text:
        own, other = issue("CN=own"), issue("CN=other")
        own.files(tmp_path).key.rename(tmp_path / "own.key")
        (tmp_path / "own.pem").write_bytes(own.pem)
        (tmp_path / "other.pem").write_bytes(other.pem)
    (one,) = mistakes(text, tmp_path)
    assert one.key == key
    assert what in one.what
    assert remedy in one.remedy


OF_A_FORWARDER = """\
[queues.orders]
[forwarders.a]
queue = "ordrs"
to = "https://partner.example/"
profile = "wcf"
rm = "1.0"
timeout = 0
tls.ca = "no.pem"
credentials = {username = "me", token_env = "NO_SUCH_TOKEN"}
proxy = {url = "http://p/", username = "u"}
address = "https://partner.example/"
policy = {refusals = -1}
"""


def test_an_unreadable_value_hides_no_other_mistake_of_its_table() -> None:
    assert [(one.line, one.key) for one in mistakes(OF_A_FORWARDER)] == [
        (3, "forwarders.a.queue"),
        (6, "forwarders.a.rm"),
        (7, "forwarders.a.timeout"),
        (8, "forwarders.a.tls.ca"),
        (9, "forwarders.a.credentials.token_env"),
        (9, "forwarders.a.credentials.token_env"),
        (10, "forwarders.a.proxy"),
        (11, "forwarders.a.address"),
        (12, "forwarders.a.policy.refusals"),
    ]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("store = 5\nstore_password_env = 'HOME'\nworkers = 2", ["store"]),
        ("store = ':memory:'\nworkers = '2'", ["workers"]),
        ("listen.port = true\nadmin.port = 8080", ["listen.port"]),
        ("admin.port = true\nadmin.token_env = 'NO_SUCH'\nadmin.token_file = 'no-file'",
         ["admin.port", "admin.token_env", "admin.token_env", "admin.token_file"]),
        ("listen = {port = 'x', tls.certificate = 'none.pem'}", ["listen.port", "listen.tls.certificate"]),
        ("default_queue = 'a'\nqueues = 5", ["queues"]),
        ("default_queue = 'b'\nlimits.max_queues = 'x'\n[queues]\na = 5",
         ["default_queue", "limits.max_queues", "queues.a"]),
        ("forwarders = 5\n" + ROUTE + "[[routes]]\nqueues = 'a'\nexpects = 'request'", ["forwarders"]),
        (ROUTE + "[[routes]]\nqueues = 'c'\nexpects = 'x'\nxpath = '//o:a'",
         ["routes[1].queues", "routes[1].expects", "routes[1].xpath"]),
        (ROUTE + "[[routes]]\nqueues = 5\n[[routes]]\nqueues = 'b'", ["routes[1].queues", "routes[2]"]),
        (ROUTE + "[[routes]]\nqueues = 'a'\naction = 5\n[[routes]]\nqueues = 'b'", ["routes[1].action"]),
        (ROUTE + "[[routes]]\nqueues = 'a'\nxpath = '//o:a[p:b]'\n[namespaces]\no = 5",
         ["routes[1].xpath", "namespaces.o"]),
        ("[namespaces]\nx = ''\n" + ROUTE + "[[routes]]\nqueues = 'a'\nxpath = '//x:a'", ["namespaces.x"]),
        ("namespaces = 5\n" + ROUTE + "[[routes]]\nqueues = 'a'\nxpath = '//x:a'", ["namespaces"]),
        (FORWARDER.replace("to =", "too =") + "tls.ca = 'no.pem'\nrm = '1.1'\naddressing = '2004/08'",
         ["forwarders.a.too", "forwarders.a.tls.ca", "forwarders.a.rm"]),
        (FORWARDER.replace("https", "http") + "tls.ca = 'no.pem'", ["forwarders.a.tls", "forwarders.a.tls.ca"]),
        (FORWARDER + "credentials = {username = 'a:b', password_fil = 'x'}",
         ["forwarders.a.credentials.password_fil", "forwarders.a.credentials.username"]),
        (FORWARDER + "credentials = {username = 5, password_env = 'NO_SUCH'}",
         ["forwarders.a.credentials.password_env", "forwarders.a.credentials.username"]),
        (FORWARDER + "tls.ca = 'no.pem'\n[forwarders.b]"
         "\nqueue = 'orders'\nto = 'https://partner.example/'\ntimeout = 5",
         ["forwarders.a.tls.ca", "forwarders.b.timeout"]),
        (FORWARDER + "profile = 'wfc'\nsoap = '1.1'", ["forwarders.a.profile", "forwarders.a.soap"]),
        (FORWARDER + "offer = 'x'\n[[routes]]\nqueues = 'orders'\nexpects = 'request'", ["forwarders.a.offer"]),
        (ROUTE + "[[routes]]\nqueues = ['c d', 5,\n 'a']\naction = ['" + "*" * 9 + "', 6]",
         ["routes[1].queues[1]", "routes[1].queues[2]", "routes[1].action[1]", "routes[1].action[2]"]),
        ("[namespaces]\no = 5\np = ''\n3 = 'urn:x'", ["namespaces.o", "namespaces.p", "namespaces.3"]),
        ("[queues.q]\n[forwarders]\na = 5\nb = {queue = 'r', to = 'http://h/'}",
         ["forwarders.a", "forwarders.b.queue"]),
    ],
)  # fmt: skip
def test_all_that_is_wrong_is_told_and_nothing_that_only_follows_from_it(text: str, keys: list[str]) -> None:
    assert sorted(one.key for one in mistakes(text)) == sorted(keys)


def test_tls_is_read_when_the_file_is(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = authority.issue_cert("127.0.0.1")
    server.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    text = "[listen.tls]\ncertificate = 'server.pem'\nkey = 'server.key'\nclient_ca = 'ca.pem'\n"
    config = parse(text, tmp_path)
    assert config.listen.tls is not None
    assert config.listen.tls.certificate == str(tmp_path / "server.pem")
    assert "ca.pem has no private key in PEM" in only(text.replace("key = 'server.key'", "key = 'ca.pem'"), tmp_path)
    assert "'certificate' is missing" in only("[listen.tls]\nclient_ca = 'ca.pem'", tmp_path)
    plain = FORWARDER.replace("https", "http") + "tls.ca = 'ca.pem'\n"
    assert "does not use TLS" in only(plain, tmp_path)
    assert parse(plain.replace("http:", "https:"), tmp_path).forwarders[0].tls is not None


def test_a_file_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \n# caf\xe9\n")
    with pytest.raises(ConfigurationMistakes) as caught:
        read_config(tmp_path / "latin.toml")
    assert [(one.line, one.remedy) for one in caught.value.mistakes] == [(2, "Save it as UTF-8.")]


# --- what it makes ----------------------------------------------------------------------------------------------------


def test_a_store_and_files_are_looked_for_where_the_file_is(tmp_path: Path) -> None:
    assert parse("store = 'data'", tmp_path).store == str(tmp_path / "data")
    assert parse("store = '/var/data'", tmp_path).store == "/var/data"
    assert parse("store = ':memory:'", tmp_path).store == ":memory:"


def test_the_nearest_word_about_a_destination_counts_setting_by_setting() -> None:
    text = """
[queues.q]
[policies."*"]
patience = "1m"
refusals = 2
sending = {window = 1, keep_alive = 10, initial_window = 1, retransmission = {cap = "1m", jitter = 0.5}}
[policies."partner.example"]
refusals = 3
[policies."https://partner.example/*"]
sending.window = 3
sending.retransmission.cap = "2m"
[policies."https://partner.example/orders"]
sending.window = 4
[policies."https://partner.example:8443/*"]
refusals = 99
[forwarders.orders]
queue = "q"
to = "https://partner.example/orders"
policy = {on_refused = "dead-letter", sending.keep_alive = "5s"}
[forwarders.bills]
queue = "q"
to = "https://partner.example/bills"
[forwarders.other]
queue = "q"
to = "https://other.example/"
policy.expires = "none"
"""
    orders, bills, other = parse(text).forwarders
    assert orders.policy.sending is not None and bills.policy.sending is not None and other.policy.sending is not None
    assert (orders.policy.refusals, orders.policy.patience) == (3, 60.0)
    assert orders.policy.on_refused is OnRefused.DEAD_LETTER
    assert (orders.policy.sending.window, orders.policy.sending.keep_alive) == (4, 5.0)
    assert (orders.policy.sending.retransmission.cap, orders.policy.sending.retransmission.jitter) == (120.0, 0.5)
    assert (bills.policy.sending.window, bills.policy.sending.keep_alive, bills.policy.refusals) == (3, 10.0, 3)
    assert (other.policy.sending.window, other.policy.refusals, other.policy.expires) == (1, 2, None)
    assert parse(text).policy_for("https://partner.example/bills") == bills.policy.sending
    assert parse(text).policy_for("http://unknown.example/") == parse(text).usual_policy() == other.policy.sending
    assert parse(FORWARDER).forwarders[0].policy == ForwardingPolicy()


def test_a_policy_may_be_for_forwarders_by_name_or_by_the_actions_of_their_queues() -> None:
    text = """
queues = {urgent = {}, bulk = {}, rest = {}}
default_queue = "rest"
[policies."*"]
sending.window = 1
[policies."https://partner.example/*"]
sending.window = 2
[policies."action:urn:orders/*"]
sending.window = 3
[policies."name:bulk-*"]
sending.window = 4
[[routes]]
action = ["urn:orders/Cancel", "urn:orders/Stop*"]
queues = ["urgent"]
[[routes]]
action = ["urn:orders/Log"]
queues = ["bulk", "rest"]
[forwarders]
urgent = {queue = "urgent", to = "https://partner.example/orders"}
bulk-1 = {queue = "bulk", to = "https://partner.example/orders"}
rest = {queue = "rest", to = "https://partner.example/orders"}
other = {queue = "rest", to = "https://other.example/orders"}
"""

    def windows(text: str) -> dict[str, int]:
        return {one.name: one.policy.sending.window for one in parse(text).forwarders if one.policy.sending}

    assert windows(text) == {"urgent": 3, "bulk-1": 4, "rest": 2, "other": 1}
    any_action = text.replace('action = ["urn:orders/Cancel", "urn:orders/Stop*"]', 'to = ["http://here/"]')
    assert windows(any_action)["urgent"] == 2
    assert windows(text.replace("action:urn:orders/*", "action:urn:orders/C*"))["urgent"] == 2, (
        "not all of its messages"
    )


def test_versions_are_what_is_said_and_all_that_goes_with_it() -> None:
    def versions(said: str) -> tuple[Versions, ...]:
        return parse(FORWARDER + said).forwarders[0].versions

    assert versions("profile = 'wcf'") == (Versions("1.0", "2005/08", "1.2"),)
    assert versions("rm = '1.2'\nsoap = '1.1'") == (Versions("1.1", "2005/08", "1.1"),)
    assert versions("addressing = '2004/08'") == (
        Versions("1.0", "2004/08", "1.2"),
        Versions("1.0", "2004/08", "1.1"),
    )
    assert versions("")[0] == Versions()


def test_words_and_numbers_become_what_the_program_uses() -> None:
    config = parse("""
sequences.assurance = "at-least-once"
sequences.inactivity_timeout = "none"
sequences.max_expires = "2d"
sequences.acknowledgement_interval = "500ms"
limits = {max_routed_body = "64kB", http.max_body = "1GB", http.max_buffered = "2GB", envelopes.max_depth = 9}
queues.a = {retention = "1d 10GB readers 2d", max_readers = 3}
""")
    assert config.sequences.assurance.delivery is Delivery.AT_LEAST_ONCE
    assert (config.sequences.inactivity_timeout, config.sequences.max_expires) == (None, 172_800.0)
    assert (config.limits.max_routed_body, config.limits.http.max_body) == (64_000, 1_000_000_000)
    assert (config.sequences.acknowledgement_interval, config.limits.envelopes.max_depth) == (0.5, 9)
    retention = config.queues[0].retention_policy
    assert (retention.age, retention.size, retention.reader_age) == (86_400.0, 10_000_000_000, 172_800.0)
    assert retention.max_readers == 3


def test_every_size_may_be_written_with_its_unit() -> None:
    config = parse("""
sequences = {buffer_bytes = "1MB", max_party_buffer_bytes = "2MB", max_buffer_bytes = "3MB"}
limits.http.max_unsent = "4MB"
policies.'*'.sending.window_bytes = "5MB"
journal.size = "6GB"
""")
    assert config.sequences.buffer_bytes == 1_000_000
    assert config.limits.http.max_unsent == 4_000_000
    assert config.policy_for("http://a/").window_bytes == 5_000_000
    assert config.journal.size == 6_000_000_000


def test_a_number_that_the_journal_refuses_is_told_with_its_key() -> None:
    one = mistakes('[journal]\nage = "0s"\nfile_size = 0\nfile_age = "1h"\n')
    assert [told.key for told in one] == ["journal.age", "journal.file_size"]
    assert 'it cannot be "0s"' in one[0].what


def every_class(cls: type[Any]) -> set[type[Any]]:
    """The classes that a configuration is made of."""
    found = {cls}
    for hint in get_type_hints(cls).values():
        parts = [hint, *getattr(hint, "__args__", ())]
        for part in parts:
            if dataclasses.is_dataclass(part) and isinstance(part, type) and part not in found:
                found |= every_class(part)
    return found


def test_every_key_that_there_is_can_be_read() -> None:
    """A field of a new type would have no kind: it would be found here and not by who first writes it."""
    for cls in every_class(BrokerConfig):
        if cls.__name__ in ("Assurance", "PolicyConfig"):  # words, and what policies are said by
            continue
        for field in dataclasses.fields(cls):
            hint = get_type_hints(cls)[field.name]
            is_table = any(dataclasses.is_dataclass(part) for part in [hint, *getattr(hint, "__args__", ())])
            assert kind_of(cls, field.name) is not None or is_table, (cls, field.name)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("none", "none readers 30d"),
        ("none readers none", "none readers none"),
        ("none 10GB", "none 10GB readers 30d"),
        ("1d", "1d readers 30d"),
    ],
)
def test_the_retention_that_is_written_is_kept(text: str, kept: str) -> None:
    assert str(parse(f"queues.a.retention = '{text}'").queues[0].retention_policy) == kept


def test_none_is_no_value_except_for_an_absent_limit() -> None:
    """A name, a place or a retention that is written as "none" is never read as one that is not written."""
    fields = 0
    for cls in every_class(BrokerConfig):
        for field in dataclasses.fields(cls):
            hint = get_type_hints(cls)[field.name]
            members = getattr(hint, "__args__", ())
            if kind_of(cls, field.name) is None or NoneType not in members or {int, float} & {*members}:
                continue
            reading = TableReading("broker.toml", KeyLines(""), HERE)
            said, _ = reading.read_table(cls, {field.name: "none"}, ())
            assert said.get(field.name) is not None or reading.mistakes, (cls, field.name)
            fields += 1
    assert fields > 20


# --- secrets ----------------------------------------------------------------------------------------------------------

SECRET = "geheimnis-7261"


@pytest.mark.parametrize(
    "text",
    [
        f"[forwarders.a]\nto = 'http://user:{SECRET}@host/'",
        f"[forwarders.a]\nto = 'http://user:{SECRET}/x@host/'",
        f"[forwarders.a]\nto = 'ftp://user:{SECRET}@host/'",
        f"[forwarders.a]\npassword = '{SECRET}'",
        f"[forwarders.a.credentials]\npassword = '{SECRET}'",
        f"[forwarders.a.credentials]\npassword_file = '{SECRET}'",
        f"[forwarders.a.credentials]\npassword_file = ['{SECRET}']",
        f"[forwarders.a.credentials]\ntoken_env = '{SECRET}'",
        f"[forwarders.a]\ncredentials = 'Bearer {SECRET}'",
        f"[forwarders.a]\nproxy = 'http://user:{SECRET}@proxy/'",
        f"[forwarders.a.proxy]\nurl = 'http://user:{SECRET}@proxy/'",
        f"[admin]\ntoken = '{SECRET}'",
        f"[security]\nusers = ['alice:{SECRET}']",
        f"[security]\nusers = {{ alice = '{SECRET}' }}",
        f"[security]\npassword = '{SECRET}'",
        f"[forwarders.a.security]\npassword = '{SECRET}'",
        f"[forwarders.a.security]\nusername = 'a'\npassword_file = '{SECRET}'",
        f"[admin]\ntoken_file = '{SECRET}'",
        f"store = 'postgresql://user:{SECRET}@host/db'",
        f"store = 'postgresql://host/db?user=a&password={SECRET}'",
        f"store_password = '{SECRET}'",
        f"store_password = '{SECRET}",
    ],
)
def test_a_secret_that_stands_in_the_file_is_refused_and_not_told(text: str) -> None:
    with pytest.raises(ConfigurationMistakes) as caught:
        parse(text)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.mistakes)


def test_nodes_with_the_same_file_have_their_own_caches_of_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "kafka://kafka:9092/orders?cache=/cache/{node}"
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "broker.toml").write_text(f"store = '{url}'\n[cluster]\nsecret_file = 'secret'\n[queues.orders]\n")
    for node in ("a", "b.example"):
        monkeypatch.setenv("HOLDFAST_NODE", node)
        for location in (
            read_config(tmp_path / "broker.toml").store_location(),
            read_store_location(tmp_path / "broker.toml"),
        ):
            assert read_kafka_address(location).cache == Path("/cache") / node


@pytest.mark.parametrize(
    ("others", "variable", "named"),
    [
        ("", None, "there is a token for metrics, but none for everything else"),
        ("", "secret", None),
        ("", "metrics", "also the one that opens everything"),
        ("", "", "the environment variable HOLDFAST_ADMIN_TOKEN"),
        ("admin.token_file = 'metrics'\n", None, "also the one that opens everything"),
        ("admin.token_file = 'again'\n", "secret", "also the one that opens everything"),
        ("admin.token_env = 'OTHER'\n", "metrics", None),
        ("admin.enabled = false\n", None, None),
    ],
)
def test_a_token_for_metrics_needs_another_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str, variable: str | None, named: str | None
) -> None:
    """The file is refused at the check exactly if the broker would not start with it."""
    for name in ("metrics", "again"):
        (tmp_path / name).write_text("metrics\n")
    monkeypatch.setenv("OTHER", "other")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, variable)
    text = f"{others}admin.metrics_token_file = 'metrics'\n"
    if named is None:
        admin = parse(text, tmp_path).admin
        assert not admin.enabled or admin.listener().metrics_token == "metrics"
        return
    with pytest.raises(ConfigurationMistakes) as caught:
        parse(text, tmp_path)
    (mistake,) = caught.value.mistakes
    assert (mistake.line, mistake.key) == (1 + bool(others), "admin.metrics_token_file")
    assert named in mistake.what


def test_secrets_come_from_files_and_variables_and_show_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text(f"{SECRET}\n")
    (tmp_path / "metrics").write_text("only-metrics\n")
    monkeypatch.setenv("ORDERS_TOKEN", SECRET)
    config = parse(
        """
store = "postgresql://me@db.example/orders"
store_password_file = "password"
admin.token_env = "ORDERS_TOKEN"
admin.metrics_token_file = "metrics"
[queues.orders]
[forwarders.a]
queue = "orders"
to = "https://partner.example/"
credentials = {username = "me", password_file = "password"}
proxy = {url = "http://proxy.example:3128", username = "me", password_env = "ORDERS_TOKEN"}
[forwarders.b]
queue = "orders"
to = "https://partner.example/b"
credentials.token_env = "ORDERS_TOKEN"
""",
        tmp_path,
    )
    assert SECRET not in repr(config)
    assert (config.admin.listener().token, config.admin.listener().metrics_token) == (SECRET, "only-metrics")
    assert config.store_location() == f"postgresql://me@db.example/orders?password_file={tmp_path}/password"
    assert read_address(config.store_location()).password() == SECRET
    (tmp_path / "password").write_text("another")
    assert read_address(config.store_location()).password() == "another"
    (tmp_path / "password").unlink()
    assert read_address(config.store_location()).password() is None
    first, second = config.forwarders
    assert first.credentials is not None and second.credentials is not None and first.proxy is not None
    assert first.credentials.authorization() == "Basic bWU6Z2VoZWltbmlzLTcyNjE="
    assert second.credentials.authorization() == f"Bearer {SECRET}"
    assert first.proxy.location() == f"http://me:{SECRET}@proxy.example:3128"
    with pytest.raises(TypeError):
        pickle.dumps(config)


# --- any file ---------------------------------------------------------------------------------------------------------

NAMES = sorted({field.name for cls in every_class(BrokerConfig) for field in dataclasses.fields(cls)} | {"quue", "a"})
VALUES = st.sampled_from(
    ["0", "-1", "1e400", "true", '""', '"x"', '"none"', '"7d"', '"http://h/"', "[]", '["a", 1]', "{}", "{a = 1}",
     "1979-05-27", "nan", "'''\nx\n'''", "9223372036854775808", '"\\u0000"', '"*"', '"a/b"']
)  # fmt: skip


@given(
    st.lists(st.tuples(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(".".join), VALUES), max_size=6),
    st.lists(
        st.tuples(st.sampled_from(["routes", "queues", "forwarders"]), st.sampled_from(NAMES), VALUES), max_size=3
    ),
)
def test_whatever_is_written_ends_in_a_configuration_or_in_mistakes_with_lines(
    pairs: list[tuple[str, str]], tables: list[tuple[str, str, str]]
) -> None:
    lines = [f"{key} = {value}" for key, value in pairs]
    for table, key, value in tables:
        lines += [f"[[{table}]]" if table == "routes" else f"[{table}.t]", f"{key} = {value}"]
    text = "\n".join(lines)
    try:
        assert isinstance(parse(text), BrokerConfig)
    except ConfigurationMistakes as error:
        for one in error.mistakes:
            assert 1 <= one.line <= max(1, text.count("\n") + 1)
            assert one.what and one.remedy


def test_a_key_is_told_as_it_is_written() -> None:
    assert told_key(("policies", "https://a/*", "sending")) == 'policies."https://a/*".sending'
    assert told_key(("routes", 0, "to", 1)) == "routes[1].to[2]"
    assert ForwarderConfig("a", "b", "http://c/").versions[0] == Versions()


EXAMPLE = Path(__file__).parents[2] / "examples" / "broker.toml"
_NUMBER = re.compile(r'^([a-z_.]+) = (?:[\d.]+|"\d+(?:ms|s|m|h|d|kB|MB|GB)")(?= *(?:#|$))', re.MULTILINE)
HOSTILE = [
    "nan", "inf", "-inf", "-1", "-0.5", "1e400", "-1e400", "-" + "9" * 400, '""', '" "', '"x"', '"nan"', '"nans"',
    '"1e400s"', '"-1s"', f'"{"9" * 400}s"', '"999999999999999999w"', "[]", "{}", "true",
]  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: value[:20])
def test_a_number_that_is_none_is_a_mistake_in_its_line(value: str) -> None:
    text = EXAMPLE.read_text()
    lines = {text.count("\n", 0, one.start()) + 1 for one in _NUMBER.finditer(text)}
    assert len(lines) > 30
    assert lines <= {one.line for one in mistakes(_NUMBER.sub(rf"\1 = {value}", text))}


def test_each_number_may_be_the_only_one_that_is_wrong() -> None:
    text = EXAMPLE.read_text()
    for one in _NUMBER.finditer(text):
        line = text.count("\n", 0, one.start()) + 1
        assert line in [it.line for it in mistakes(f"{text[: one.start()]}{one[1]} = nan{text[one.end() :]}")]


def test_whole_numbers_above_all_floats_are_mistakes() -> None:
    # Some settings may have such a number.
    assert mistakes(_NUMBER.sub(rf"\1 = {'9' * 400}", EXAMPLE.read_text()))


_URL = re.compile(r'^([a-z_.]+) = (\[?)"https?://[^"]*"', re.MULTILINE)


@pytest.mark.parametrize("url", NO_URLS)
def test_an_address_that_is_none_is_a_mistake_in_its_line(url: str) -> None:
    text = EXAMPLE.read_text().replace("# url =", "url =")
    found = list(_URL.finditer(text))
    assert {"allow_addresses", "to", "url", "address"} <= {one[1] for one in found}
    for one in found:
        if one[1] == "to" and one[2]:
            continue  # a pattern of a route
        line = text.count("\n", 0, one.start()) + 1
        new = f'{text[: one.start()]}{one[1]} = {one[2]}"{url}"{text[one.end() :]}'
        assert line in [it.line for it in mistakes(new)], one[0]


@pytest.mark.parametrize("name", ["sslcert", "sslkey", "sslrootcert", "sslcrl", "ssl_ca"])
def test_a_file_of_tls_in_the_url_of_the_store_must_be_there(tmp_path: Path, name: str) -> None:
    scheme = "mariadb" if name == "ssl_ca" else "postgresql"
    config, file = tmp_path / "broker.toml", tmp_path / "file.pem"
    config.write_text(f'store = "{scheme}://u@h/d?{name}={file}"\n[queues.q]\n')
    with pytest.raises(ConfigurationError) as caught:
        read_config(config)
    assert f"{name}={file}" in str(caught.value)
    file.write_text("")
    read_config(config)
