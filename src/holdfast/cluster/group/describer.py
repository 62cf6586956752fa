"""GroupDescriber: asks Kafka for the members of a consumer group, in a separate process.

librdkafka aborts its process if it loses the group's coordinator while it asks (pull request 5397 of librdkafka). And
a client that has lost a coordinator may ask it for ever, although the group has another one. Neither may end a node, so
another process asks. After failures, a new one does.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.cluster.group.members import GroupPicture
from holdfast.cluster.group.pictures import group_of, picture_of
from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.login import KafkaAway, KafkaLogin
from holdfast.store.kafka.topic import ANSWER_SECONDS

_LONGEST: Final = 20.0
"""Seconds after which a process that does not answer is ended. It takes a second or two to start, and more on a busy
machine."""
_MOST_FAILURES: Final = 3
"""Failures in a row after which a new process asks."""
_LOOK: Final = 0.01
_LISTEN: Final = 0.2
_REFUSED: Final = 1.0
"""Seconds that the other brokers have to answer when one refuses a connection."""
NOT_YET: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Kafka's numbers of reasons that end when the group has found its coordinator."""


class NotDescribed(KafkaAway):
    """Kafka did not describe the group.

    Args:
        why: The reason, as text.
        code: Kafka's number of it; None: the process did not answer.
        remedy: As that of KafkaAway.
    """

    def __init__(self, why: str, code: int | None = None, remedy: str = "") -> None:
        super().__init__(why, remedy)
        self.code = code


class GroupDescriber:
    """The group of a cluster's nodes, as its coordinator describes it.

    Args:
        location: The URL of the cluster's topic.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_at: float | None = None
        self._heard = b""
        self._failures = 0

    def ask(self) -> None:
        """Ask, without waiting. Take the answer before the next question."""
        self._asked_at = time.monotonic()
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start(self._location)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, which answer() reports
            self._process.stdin.write(b"\n")

    def answer(self) -> GroupPicture | None:
        """Return the answer to the question, None if it is not there yet.

        Raises:
            NotDescribed: Kafka refused, or the process ended or hangs.
        """
        assert self._process is not None and self._process.stdout is not None and self._asked_at is not None
        is_over = self._process.poll() is not None
        with suppress(BlockingIOError):
            while more := os.read(self._process.stdout.fileno(), 1 << 16):
                self._heard += more
        line, is_whole, rest = self._heard.partition(b"\n")
        if is_whole:
            self._heard = rest
            try:
                return self._picture(msgspec.json.decode(line))
            except NotDescribed:
                self._failures += 1
                if self._failures >= _MOST_FAILURES:
                    self.close()
                raise
        if is_over or time.monotonic() > self._asked_at + _LONGEST:
            self.close()
            raise NotDescribed("the process that asks Kafka for the members of the group has ended")
        return None

    def describe(self, until: float = math.inf) -> GroupPicture:
        """Ask, and wait for the answer.

        Args:
            until: When to give up, by the monotonic clock.

        Raises:
            NotDescribed: As for :meth:`answer`, or the time is over.
        """
        self.ask()
        while (picture := self.answer()) is None:
            if time.monotonic() > until:
                self.close()
                raise NotDescribed("the coordinator of the nodes' group does not answer")
            time.sleep(_LOOK)
        return picture

    def _picture(self, told: dict[str, Any]) -> GroupPicture:
        if "why" in told:
            raise NotDescribed(told["why"], told["code"], told["remedy"])
        self._failures = 0
        return msgspec.convert(told, GroupPicture)

    def close(self) -> None:
        """End the process. It has nothing to lose."""
        process, self._process = self._process, None
        self._heard, self._failures = b"", 0
        if process is not None:
            process.kill()
            with process:  # closes its pipes, and waits
                pass


def _start(location: str) -> subprocess.Popen[bytes]:
    # A new session, because Ctrl-C is for the command that asks. When that ends, so does the input of this process.
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cluster.group.describer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    with suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(location) + b"\n")  # not an argument: it may have a password
    return process


def main() -> None:
    """Answer each line of the input with a line: the picture of the group, or why Kafka did not describe it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a service manager signals every process; the agent ends it
    location = msgspec.json.decode(sys.stdin.buffer.readline(), type=str)
    address, heard = read_kafka_address(location), [""]
    login = KafkaLogin(address)

    def hear(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # that comes last, and says less
            heard[0] = error.str()

    admin = AdminClient(login.settings(hear))
    group = group_of(address)
    for _ in sys.stdin.buffer:
        login.renew(admin)
        asked = admin.describe_consumer_groups([group], request_timeout=ANSWER_SECONDS)[group]
        told: Any
        try:
            told = picture_of(_answer(asked, admin, login), address.topic)
            login.answered()
        except KafkaException as error:
            admin.poll(0)  # calls what hears
            away = login.away(_why(error.args[0], heard[0]))
            told = {"why": str(away), "code": error.args[0].code(), "remedy": away.remedy}
            heard[0] = ""
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()


def _answer(asked: Future[Any], admin: AdminClient, login: KafkaLogin) -> Any:
    """Wait for an answer of Kafka, but not long after it has refused a connection.

    Raises:
        KafkaException: Kafka did not answer.
    """
    until = math.inf
    while True:
        try:
            return asked.result(_LISTEN)
        except TimeoutError:
            admin.poll(0)
            login.renew(admin)
            if login.refusal is None:
                until = math.inf
            elif until == math.inf:
                until = time.monotonic() + _REFUSED
            elif time.monotonic() > until:
                raise KafkaException(KafkaError(KafkaError._AUTHENTICATION)) from None


def _why(error: KafkaError, heard: str) -> str:
    """Return a reason: of an error of the client itself, the last one that a connection had says more."""
    if heard and error.code() < 0:
        return heard
    text = error.str().strip()
    return f"{text} {error.name()}" if text.endswith(":") or not text else text


if __name__ == "__main__":
    main()
