"""The password and the refusals of clients of Kafka, without Kafka. Covers store/kafka/login.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from holdfast.exceptions import StoreAway
from holdfast.store import open_store
from holdfast.store.kafka import login as room
from holdfast.store.kafka.address import KafkaAddress, read_kafka_address
from holdfast.store.kafka.login import KafkaAway, KafkaLogin
from holdfast.store.kafka.topic import KafkaLog

SCRAM = "security.protocol=SASL_PLAINTEXT&sasl.mechanism=SCRAM-SHA-512"
NO_LOGIN = (
    "sasl_ssl://kafka1:9093/bootstrap: SASL authentication error: Authentication failed during authentication due to "
    "invalid credentials with SASL mechanism SCRAM-SHA-512 (after 31ms in state AUTH_REQ, 4 identical error(s) "
    "suppressed)"
)
EXPIRED = "ssl://kafka2:9093/2: SSL handshake failed: certificate verify failed: expired (after 3ms in state SSL)"
COORDINATOR = NO_LOGIN.replace("sasl_ssl://kafka1:9093/bootstrap: ", "GroupCoordinator: [::1]:9093: ")
REFUSED = [
    (KafkaError._AUTHENTICATION, COORDINATOR),
    (KafkaError._AUTHENTICATION, NO_LOGIN),
    (KafkaError.SASL_AUTHENTICATION_FAILED, NO_LOGIN),
]
UNTRUSTED = (KafkaError._SSL, EXPIRED)
PASSING = [(KafkaError._SSL, "ssl://a:1/1: Disconnected"), (KafkaError._TRANSPORT, "a:1: Connection refused")]


class Client:
    """What a client of Kafka is for its login."""

    def __init__(self) -> None:
        self.passwords: list[tuple[str, str]] = []

    def set_sasl_credentials(self, user: str, password: str) -> None:
        self.passwords.append((user, password))


@pytest.fixture
def address(tmp_path: Path) -> KafkaAddress:
    (tmp_path / "password").write_text("First\n")
    return read_kafka_address(
        f"kafka://me@127.0.0.1:1/orders?cache={tmp_path}/cache&{SCRAM}&password_file={tmp_path}/password"
    )


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_LOOK_SECONDS", 0.0)


def test_clients_get_what_the_file_has_now_once(address: KafkaAddress, tmp_path: Path, at_once: None) -> None:
    login, clients = KafkaLogin(address), [Client(), Client()]
    assert login.settings()["sasl.password"] == "First"
    for text in ("First\n", "", "Second\n", "Second\n"):
        (tmp_path / "password").write_text(text)
        login.renew(None, *clients)
    (tmp_path / "password").unlink()
    login.renew(*clients)
    assert [one.passwords for one in clients] == [[("me", "Second")]] * 2
    assert login.settings()["sasl.password"] == "Second", "a new client, while the file is missing"
    assert "Second" not in repr(address) + str(vars(login)["_address"])


def test_a_client_that_is_made_later_does_not_keep_the_others_from_the_new_password(
    address: KafkaAddress, tmp_path: Path, at_once: None
) -> None:
    login, client = KafkaLogin(address), Client()
    login.settings()
    (tmp_path / "password").write_text("Second")
    assert login.settings()["sasl.password"] == "Second"
    login.renew(client)
    assert client.passwords == [("me", "Second")]


def test_the_file_is_read_once_a_second(address: KafkaAddress, tmp_path: Path) -> None:
    login, client = KafkaLogin(address), Client()
    login.settings()
    login.renew(client)
    (tmp_path / "password").write_text("Second")
    login.renew(client)
    assert client.passwords == []


@pytest.mark.parametrize("content", ["", "\n", None])
def test_a_missing_password_is_waited_for(address: KafkaAddress, tmp_path: Path, content: str | None) -> None:
    """A secret may be mounted, or a file written again, while a process starts."""
    (tmp_path / "password").unlink()
    if content is not None:
        (tmp_path / "password").write_text(content)
    log = KafkaLog(address)
    log.check()
    for call in (partial(log.open, creates=False), log.bounds):
        with pytest.raises(KafkaAway, match="is empty or cannot be read") as caught:
            call()
        assert "Write the password into it" in caught.value.remedy
    (tmp_path / "password").write_text("Second")
    assert log._settings()["sasl.password"] == "Second"


def test_a_store_without_its_password_is_away(address: KafkaAddress, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("")
    location = f"kafka://me@a:1/orders?cache={tmp_path / 'cache'}&patience=7&password_file={tmp_path / 'password'}"
    with pytest.raises(StoreAway, match="is empty or cannot be read") as caught:
        open_store(location)
    assert caught.value.patience == 7


def test_without_a_file_the_password_of_the_url_stays() -> None:
    login, client = KafkaLogin(read_kafka_address("kafka://me:First@a:1/orders?cache=/c")), Client()
    assert login.settings()["sasl.password"] == "First"
    login.renew(client)
    assert client.passwords == []


@pytest.mark.parametrize(("code", "text"), [*REFUSED, UNTRUSTED])
def test_a_refusal_is_the_reason_until_kafka_answers(address: KafkaAddress, code: int, text: str) -> None:
    login = KafkaLogin(address)
    assert login.hear(KafkaError(code, text))
    for other, why in PASSING:
        assert not login.hear(KafkaError(other, why))
    away = login.away("Local: Timed out")
    kind, remedy = ("certificate", "expired") if code == KafkaError._SSL else ("login", "its password")
    assert str(away).startswith(f"refused {kind}: S") and remedy in away.remedy
    assert away.remedy.endswith(".")
    assert "after" not in str(away) and "909" not in str(away), "the reason is the same for each attempt"
    login.answered()
    assert (str(login.away("Timed out")), login.away("").remedy) == ("Timed out", "")


def test_a_new_password_ends_the_refusal_of_the_old_one(address: KafkaAddress, tmp_path: Path) -> None:
    login = KafkaLogin(address)
    login.settings()
    login.hear(KafkaError(KafkaError._AUTHENTICATION, NO_LOGIN))
    (tmp_path / "password").write_text("Second")
    login.renew()
    assert login.refusal is None


@pytest.mark.parametrize("text", ["x" * 40_000, "x:" * 20_000, f"sasl_ssl://b:1/1: {'y' * 40_000}"])
def test_the_reason_of_a_refusal_is_bounded(address: KafkaAddress, text: str) -> None:
    login = KafkaLogin(address)
    assert login.hear(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, text))
    assert login.refusal is not None and len(login.refusal.why) < room.MOST_TEXT + 20


def test_all_clients_of_a_log_follow_the_file(address: KafkaAddress, tmp_path: Path, at_once: None) -> None:
    log, clients = KafkaLog(address), [Client(), Client(), Client()]
    log._client, log._producer, log._consumer = clients  # type: ignore[assignment]
    (tmp_path / "password").write_text("Second")
    with log._asking():
        pass
    assert [one.passwords for one in clients] == [[("me", "Second")]] * 3


def test_a_log_says_why_kafka_refuses_it_whatever_the_request_got(address: KafkaAddress) -> None:
    log = KafkaLog(address)
    hear = log._settings()["error_cb"]
    hear(KafkaError(KafkaError._AUTHENTICATION, NO_LOGIN))
    hear(KafkaError(KafkaError._ALL_BROKERS_DOWN, "3/3 brokers are down"))
    for error in (TimeoutError(), KafkaException(KafkaError(KafkaError._TIMED_OUT))):
        with pytest.raises(KafkaAway, match="refused login") as caught, log._asking():
            raise error
        assert "its password" in log.away(caught.value).remedy
    assert "refused login" in str(log.no_answer("no answer for 3 s"))


@pytest.mark.parametrize("kind", [AdminClient, Producer, Consumer])
def test_each_kind_of_client_takes_another_password(address: KafkaAddress, kind: Any, tmp_path: Path) -> None:
    login = KafkaLogin(address)
    client = kind({**login.settings(), **({"group.id": "g"} if kind is Consumer else {})})
    (tmp_path / "password").write_text("Second")
    login.renew(client)
