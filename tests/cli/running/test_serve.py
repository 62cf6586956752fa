"""``holdfast serve``: finds the Destination or says what is wrong, says where it listens, ends as it is told.

Covers cli/program.py.
"""

from __future__ import annotations

import re
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from signers import authority, issue

import holdfast
from holdfast import (
    X509,
    ConfigurationError,
    Destination,
    Processor,
    SamlTokenValidator,
    SymmetricBindingValidator,
    UsernameTokenValidator,
)
from holdfast.cli.running.serve import check_shared_memory
from holdfast.store.rocksdb.store import RocksDBStore

MODULE = """
import holdfast
app = holdfast.Destination(store="inbox")
number = 3

class holder:
    app = holdfast.Destination(store="inner")

@app.on("urn:test:submit")
def submit(message):
    print("got", message.body.text, flush=True)
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    """A module with a Destination; its name is new each time, since modules stay imported."""
    name = f"orders_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def send(url: str, **options: Any) -> None:
    with holdfast.sync.Source(url, store=":memory:", **options) as source:
        source.send("<n>1</n>", action="urn:test:submit").acknowledged(60)


@pytest.mark.parametrize("attribute", ["app", "holder.app"])
def test_it_serves_what_the_current_directory_has_and_says_where(start: Any, module: str, attribute: str) -> None:
    service = start("serve", f"{module}:{attribute}", "--port", "0", "--admin", "0")
    url = service.url()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
    assert re.fullmatch(r"admin on http://127\.0\.0\.1:\d+", service.line())
    if attribute == "app":
        send(url)
        assert service.line() == "got 1"
    service.process.send_signal(signal.SIGTERM)
    result = service.end()
    assert result.code == 0
    assert "event='server.listening'" in result.err
    assert "event='destination.closed'" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("command", ["serve", "receive"])
def test_its_wsdl_names_the_public_url(start: Any, module: str, command: str, tmp_path: Path) -> None:
    given = (f"{module}:app",) if command == "serve" else ("--store", str(tmp_path / "received"))
    service = start(command, *given, "--port", "0", "--public-url", "https://api.example/soap{path}")
    url = service.url()
    text = httpx.get(f"{url}orders?wsdl", headers={"X-Forwarded-Host": "proxy.example"}).text
    assert 'location="https://api.example/soap/orders"' in text and "proxy.example" not in text


def test_it_serves_https(start: Any, module: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    service = start("serve", f"{module}:app", "--port", "0", "--tls-cert", "server.pem", "--log-json")
    url = service.url()
    assert url.startswith("https://")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    send(url, http=holdfast.SourceHTTP(ssl_context=trust))
    service.process.send_signal(signal.SIGINT)
    result = service.end()
    assert result.code == 0
    assert '"event": "server.listening"' in result.err


def test_it_serves_the_users_of_a_file_only(start: Any, module: str, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice:secret\n")
    (tmp_path / "users").chmod(0o644)
    program = tmp_path / f"{module}.py"
    program.write_text(program.read_text().replace('"got", ', '"got", message.user, '))
    service = start("serve", f"{module}:app", "--port", "0", "--users", "users")
    url = service.url()
    for processors in ([], [holdfast.UsernameToken("alice", "wrong")]):
        with pytest.raises(holdfast.PeerFault):
            send(url, processors=processors)
    send(url, processors=[holdfast.UsernameToken("alice", "secret", digest=True)])
    assert service.line() == "got alice 1"
    service.process.send_signal(signal.SIGTERM)
    result = service.end()
    assert result.code == 0
    assert "event='secret.public' file='users' remedy='Every user can read the file: chmod o= users'" in result.err
    assert "secret'" not in result.err
    assert (tmp_path / "inbox" / "security.db").exists()


def test_users_that_cannot_be_read_are_an_error(run: Any, module: str, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice\n")
    result = run("serve", f"{module}:app", "--port", "0", "--users", "users")
    assert result.code == 1
    assert "users: line 1 has no colon" in result.err


def test_commands_present_the_credentials_that_the_admin_listener_requires(
    start: Any, run: Any, module: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, identity in (("server", "127.0.0.1"), ("client", "operator@example.org")):
        authority.issue_cert(identity).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    (tmp_path / "token").write_text("5d0c1b9a7e\n")
    tls = ("--admin-tls-cert", "server.pem", "--admin-tls-client-ca", "ca.pem")
    service = start("serve", f"{module}:app", "--port", "0", "--admin", "0", *tls, "--admin-token-file", "token")
    service.url()
    admin = service.line().removeprefix("admin on ")
    assert admin.startswith("https://127.0.0.1:")
    have = {"--ca": "ca.pem", "--cert": "client.pem", "--token-file": "token"}
    given = [word for pair in have.items() for word in pair]
    result = run("sequences", "--admin", admin, *given, "--json")
    assert (result.code, result.out) == (0, '{\n  "sequences": []\n}\n')
    for left, hint in (
        ("--token-file", "--token-file"),
        ("--ca", "signed it with --ca"),
        ("--cert", "--cert and --cert-key"),
    ):
        words = [word for option, file in have.items() if option != left for word in (option, file)]
        result = run("sequences", "--admin", admin, *words)
        assert result.code == 1
        assert hint in result.err
    service.process.send_signal(signal.SIGTERM)
    assert service.end().code == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--tls-key", "key.pem"], "--tls-cert"),
        (["--tls-client-ca", "key.pem"], "--tls-cert"),
        (["--admin", "0", "--admin-tls-key", "key.pem"], "--admin-tls-cert"),
        (["--admin-token-file", "key.pem"], "need --admin"),
        (["--admin-name", "here"], "need --admin"),
    ],
)
def test_options_that_need_another_say_which(
    run: Any, module: str, tmp_path: Path, options: list[str], what: str
) -> None:
    (tmp_path / "key.pem").write_text("")
    result = run("serve", f"{module}:app", *options)
    assert result.code == 2
    assert what in result.err


@pytest.mark.parametrize("target", ["orders", "orders:", ":app"])
def test_a_target_of_another_form_is_wrong_usage(run: Any, target: str) -> None:
    result = run("serve", target)
    assert result.code == 2
    assert "MODULE:ATTRIBUTE" in result.err


def test_a_module_that_is_not_there_is_named_with_where_it_was_looked_for(run: Any, tmp_path: Path) -> None:
    result = run("serve", "no_such_module:app")
    assert result.code == 1
    assert f"the module 'no_such_module' is neither installed nor in {tmp_path}" in result.err
    assert "Traceback" not in result.err


def test_a_file_name_in_place_of_a_module_is_recognised(run: Any, module: str) -> None:
    for file, instead in (
        (f"{module}.py", f"holdfast serve {module}:app"),
        (f"./{module}.py", f"holdfast serve {module}:app"),
        ("shops/east/shop.py", "cd shops/east && holdfast serve shop:app"),
        ("shops/shop", "cd shops && holdfast serve shop:app"),
        ("my shops/shop.py", "cd 'my shops' && holdfast serve shop:app"),
    ):
        result = run("serve", f"{file}:app")
        assert result.code == 1
        assert f"Write: {instead}" in result.err
    assert module not in sys.modules


def test_a_wrong_attribute_is_answered_with_the_right_one(run: Any, module: str) -> None:
    result = run("serve", f"{module}:application")
    assert result.code == 1
    assert f"holdfast serve {module}:app" in result.err
    result = run("serve", f"{module}:number")
    assert result.code == 1
    assert "has the type int, not holdfast.Destination" in result.err


def test_a_module_without_any_destination_is_told_how_to_have_one(run: Any, tmp_path: Path) -> None:
    (tmp_path / "bare_module.py").write_text("x = 1\n")
    result = run("serve", "bare_module:x")
    assert result.code == 1
    assert "app = holdfast.Destination" in result.err


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("import a_module_that_is_not_there\n", 1, "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("x = 1\ndef f(\n", 2, "SyntaxError: '(' was never closed"),
        ("def f():\n    return 1 / 0\n\nf()\n", 4, "ZeroDivisionError: division by zero"),
    ],
)
def test_an_error_in_a_module_is_reported_with_only_its_own_lines(
    start: Any, tmp_path: Path, text: str, line: int, why: str
) -> None:
    (tmp_path / "broken_module.py").write_text(text)
    result = start("serve", "broken_module:app").end()
    assert result.code == 1
    said = result.err.splitlines()
    assert said[0] == "holdfast: the module broken_module cannot be imported"
    assert said[1].startswith(f'  File "{tmp_path}/broken_module.py", line {line}')
    assert said[-1] == why
    assert "importlib" not in result.err


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("assurance='exactly'", "'exactly' is not a delivery assurance"),
        ("handling=holdfast.HandlingPolicy(attempts=0)", "HandlingPolicy.attempts cannot be 0"),
    ],
)
def test_a_setting_that_cannot_be_is_told_with_its_file_and_line(
    start: Any, tmp_path: Path, setting: str, why: str
) -> None:
    (tmp_path / "wrong_module.py").write_text(f"import holdfast\n\napp = holdfast.Destination({setting})\n")
    result = start("serve", "wrong_module:app").end()
    assert result.code == 1
    assert f"holdfast: {tmp_path}/wrong_module.py, line 3: {why}" in result.err


def test_a_port_that_is_taken_is_a_sentence(run: Any, module: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        taken_port = taken.getsockname()[1]
        result = run("serve", f"{module}:app", "--port", str(taken_port))
    assert result.code == 1
    assert f"holdfast: cannot listen at 127.0.0.1:{taken_port}: Address already in use" in result.err
    assert "Port 0 selects any" in result.err


def test_a_full_disk_ends_it_with_a_sentence_and_loses_nothing_acknowledged(start: Any, tmp_path: Path) -> None:
    (tmp_path / "full_module.py").write_text(
        "import os, resource\nimport holdfast\n"
        "app = holdfast.Destination(store='inbox')\n"
        "if os.path.exists('full'):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
    )
    (tmp_path / "full").touch()
    service = start("serve", "full_module:app", "--port", "0")
    with holdfast.sync.Source(service.url(), store=tmp_path / "outbox") as source:
        for _ in range(20):
            source.send(f"<n>{'x' * 100_000}</n>", action="urn:a")
        result = service.end()
        acknowledged = source.progress.acknowledged
    assert result.code == 1
    sentence, remedy = result.err.splitlines()[-2:]
    assert sentence.startswith("holdfast: The store at inbox could not write: ")
    assert remedy == "  Free space or repair the disk, then start again."
    assert "Traceback" not in result.err
    assert 0 < acknowledged < 20
    (tmp_path / "full").unlink()
    again = start("serve", "full_module:app", "--port", "0")
    again.url()
    store = RocksDBStore(tmp_path / "inbox", read_only=True)
    content = store.load()
    kept = sum(end - first for (queue, _), (first, end) in content.bounds.items() if queue == "inbox")
    kept += sum(map(len, content.held.values()))  # behind a message that found no space
    store.close()
    assert kept >= acknowledged


def test_a_store_that_is_served_already_is_a_sentence(start: Any, module: str) -> None:
    first = start("serve", f"{module}:app", "--port", "0")
    first.url()
    result = start("serve", f"{module}:app", "--port", "0").end()
    assert result.code == 1
    assert "holdfast: " in result.err.splitlines()[-2]
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--admin", "nowhere"], 2, "not HOST:PORT"),
        (["--admin", "127.0.0.1:99999"], 2, "not HOST:PORT"),
        (["--port", "70000"], 2, "--port"),
        (["--public-url", "https://api.example/?wsdl"], 2, "has a query or a fragment"),
        (["--tls-cert", "missing.pem"], 2, "missing.pem"),
    ],
)
def test_options_that_cannot_be_are_wrong_usage(
    run: Any, module: str, options: list[str], code: int, text: str
) -> None:
    result = run("serve", f"{module}:app", *options)
    assert result.code == code
    assert text in result.err


def test_a_certificate_that_is_none_is_a_sentence(run: Any, module: str, tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text("not a certificate")
    result = run("serve", f"{module}:app", "--tls-cert", "server.pem")
    assert result.code == 1
    assert "server.pem has no certificate in PEM" in result.err
    result = run("serve", f"{module}:app", "--tls-key", "server.pem")
    assert result.code == 2
    assert "--tls-cert" in result.err


def test_what_the_queue_keeps_and_that_it_was_restored_can_be_said_from_the_shell(
    start: Any, run: Any, module: str
) -> None:
    refused = run("serve", f"{module}:app", "--port", "0", "--retention", "7 d")
    assert refused.code == 2
    assert '"7d readers 30d 50GB"' in refused.err
    epochs = set()
    for options in ([], [], ["--restored", "--retention", "1h"]):
        service = start("serve", f"{module}:app", "--port", "0", *options)
        service.url()
        service.process.send_signal(signal.SIGTERM)
        result = service.end()
        assert result.code == 0
        assert ("keeps='1h readers 30d'" in result.err) == bool(options)
        assert ("event='queue.new_epoch'" in result.err) == bool(options)
        store = RocksDBStore("inbox", read_only=True)
        epochs.add(store.load().queues["inbox"]["epoch"])
        store.close()
    assert len(epochs) == 2


def test_traces_that_cannot_be_sent_are_no_reason_not_to_serve(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traced.py").write_text("import holdfast\napp = holdfast.Destination(':memory:')\n")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    server = start("serve", "traced:app", "--port", "0", "--traces")
    with holdfast.sync.Source(server.url(), store=":memory:") as source:
        source.send("<n/>", action="urn:a").acknowledged(60)
    server.process.terminate()
    assert server.end().code == 0


@pytest.mark.parametrize("name", ["UsernameTokenValidator", "X509", "SamlTokenValidator", "SymmetricBindingValidator"])
def test_workers_do_not_accept_a_message_once_each(name: str, tmp_path: Path) -> None:
    """Each remembers nonces and signatures for itself if they are in memory, as the file of a broker says, too."""
    own, other = (issue(one, authority()).files(tmp_path) for one in ("CN=shop,O=Example", "CN=alice,O=Example"))

    def made(nonces: str | None) -> Processor:
        users = UsernameTokenValidator({"alice": "secret"}, nonces=nonces)
        if name == "UsernameTokenValidator":
            return users
        if name == "X509":
            return X509(*own, trusted=other.certificate, nonces=nonces)
        if name == "SamlTokenValidator":
            return SamlTokenValidator({"urn:i": other.certificate}, audience=["urn:shop"], nonces=nonces)
        return SymmetricBindingValidator(*own, users=users)

    with pytest.raises(ConfigurationError, match=f"{name} remembers in memory") as caught:
        check_shared_memory(Destination(":memory:", processors=[made(None)]))
    assert 'nonces="nonces.db"' in caught.value.remedy
    check_shared_memory(Destination(":memory:", processors=[made(str(tmp_path / "nonces.db"))]))
