"""The examples do what they say, run as their readers would run them."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from waiting import until

import holdfast
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse, Envelope, Sequence
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy, Relayed
from holdfast.wire import action_of, decode, encode, http_headers

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With the package, the examples and a ``holdfast`` command."""
    commands = tmp_path / "bin"
    commands.mkdir()
    script = commands / "holdfast"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast.cli.main "$@"\n')
    script.chmod(0o755)
    return os.environ | {
        "PYTHONPATH": f"{ROOT / 'src'}:{EXAMPLES}",
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def orders_url(tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """orders.py, served."""
    process = subprocess.Popen(
        ["holdfast", "serve", "orders:app", "--port", "0"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    yield process.stdout.readline().split()[-1]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 0


def run(example: str, *arguments: str, cwd: Path, env: dict[str, str]) -> str:
    command = ["sh" if example.endswith(".sh") else sys.executable, str(EXAMPLES / example), *arguments]
    return subprocess.run(command, cwd=cwd, env=env, check=True, capture_output=True, text=True, timeout=280).stdout


def example(name: str) -> ModuleType:
    """The example as a module."""
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def ordered(directory: Path) -> list[str]:
    database = sqlite3.connect(directory / "orders.db")
    rows = [what for (what,) in database.execute("SELECT what FROM orders ORDER BY rowid")]
    database.close()
    return rows


def test_send_and_orders(tmp_path: Path, environment: dict[str, str], orders_url: str) -> None:
    for _ in range(2):
        said = run("send.py", orders_url, cwd=tmp_path, env=environment).splitlines()
        assert said[0].startswith("stored here: urn:uuid:")
        assert said[1:] == ["stored there", "a box costs 12"]
    assert ordered(tmp_path) == ["12 boxes", "12 boxes"]


async def test_checked(tmp_path: Path, environment: dict[str, str]) -> None:
    """Every attempt carries both headers over a network that loses a third; and who lacks them is told so."""
    environment["DIGEST_KEY"] = "right"
    serving = await asyncio.create_subprocess_exec(
        "holdfast", "serve", "checked:app", "--port", "0", cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert serving.stdout is not None
    url = (await serving.stdout.readline()).split()[-1].decode()
    relayed: list[Relayed] = []
    async with LossyProxy(url, Faults(lose_request=0.2, lose_response=0.2), seed=4, on_relayed=relayed.append) as proxy:
        said = await asyncio.to_thread(run, "checked.py", proxy.url, cwd=tmp_path, env=environment)
    assert said == "stored there: 10\n"
    ordered = [(await asyncio.wait_for(serving.stdout.readline(), 60)).decode().strip() for _ in range(10)]
    assert ordered == [f"acme orders {number}" for number in range(10)]
    assert proxy.counts.requests_lost and proxy.counts.responses_lost
    for one in relayed:
        assert one.request.count(b"<d:Digest ") == one.request.count(b"<t:Tenant ") == 1
        assert not one.response or b"<d:Digest " in one.response or not one.response.strip()

    checked = example("checked")

    class Deaf(checked.Digest):  # type: ignore[name-defined,misc]
        def inbound(self, context: holdfast.MessageContext) -> None:
            pass

    refusals = {"is missing": [], "does not match this message": [Deaf(b"wrong")], "unknown tenant": [Deaf(b"right")]}
    for why, processors in refusals.items():
        async with holdfast.Source(url, ":memory:", processors=processors) as source:
            sent = await source.send("<order/>", action="urn:orders/Submit")
            with pytest.raises(holdfast.HoldfastError, match=why):
                await sent.acknowledged(timeout=60)
    async with holdfast.Source(url, ":memory:", processors=[checked.Digest(b"wrong")]) as source:
        await source.send("<order/>", action="urn:orders/Submit")
        await until(lambda: "is not accepted: The Digest does not match this message" in source.progress.problem)
    serving.send_signal(signal.SIGTERM)
    rest, _ = await serving.communicate()
    assert (rest, serving.returncode) == (b"", 0)


def test_send_blocking(tmp_path: Path, environment: dict[str, str], orders_url: str) -> None:
    assert run("send_blocking.py", orders_url, cwd=tmp_path, env=environment) == "3 orders are stored there\n"


def test_shell(tmp_path: Path, environment: dict[str, str]) -> None:
    said = run("shell.sh", str(tmp_path / "work"), cwd=tmp_path, env=environment)
    assert "1-20" in said
    assert f"20 orders landed in {tmp_path / 'work' / 'landed'}" in said
    assert len(list((tmp_path / "work" / "landed").iterdir())) == 20


async def test_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mounted = example("mounted")
    transport = httpx.ASGITransport(mounted.api)
    versions = (SOAP.V1_2, Addressing.V2005_08, RM.V1_1)
    async with mounted.api.router.lifespan_context(mounted.api), httpx.AsyncClient(transport=transport) as client:

        async def say(envelope: Envelope) -> Envelope:
            headers = http_headers(envelope.soap, action_of(envelope))
            return decode((await client.post("http://host/rm/", content=encode(envelope), headers=headers)).content)

        create = Envelope(*versions, to="http://host/rm/", message_id="urn:1", control=CreateSequence(ANONYMOUS_EPR))
        created = (await say(create)).control
        assert isinstance(created, CreateSequenceResponse)
        order = Envelope(*versions, "urn:orders/Submit", "http://host/rm/", body=b"<order>1 box</order>")
        order.sequence = Sequence(created.identifier, 1)
        assert (await say(order)).acknowledgements[0].ranges == ((1, 1),)
        assert mounted.app.running.dispatcher is not None
        await mounted.app.running.engine.settled()
        while not mounted.app.running.dispatcher.handling.succeeded:
            await mounted.app.running.engine.settled()
            await client.get("http://host/")
        assert (await client.get("http://host/")).json() == {"received": ["1 box"]}


def test_the_page_on_processors_shows_what_the_example_runs() -> None:
    def classes(program: str) -> dict[str, str]:
        shown = {}
        for node in ast.parse(program).body:
            if isinstance(node, ast.ClassDef):
                if ast.get_docstring(node) is not None:
                    del node.body[0]
                shown[node.name] = ast.unparse(node)
        return shown

    page = (ROOT / "docs" / "how-to" / "processors.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    shown = {name: text for program in programs for name, text in classes(program).items()}
    assert shown == classes((EXAMPLES / "checked.py").read_text(encoding="utf-8"))


def test_the_broker_of_the_departures_has_the_queues_that_the_program_names() -> None:
    command = [sys.executable, "-m", "holdfast", "broker", "check", str(EXAMPLES / "departures.toml")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    program = (EXAMPLES / "departures.py").read_text(encoding="utf-8")
    for queue in ("departures", "alerts"):
        assert f"queue       {queue}," in told and f'.option("queue", "{queue}")' in program
    assert "else departures" in told and "forwarder   alerts, alerts to " in told


def test_every_example_is_listed_and_run_here() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    for name in files:
        assert f"({name})" in readme
        assert f"test_{name.partition('.')[0]}" in tests or f"_and_{name.partition('.')[0]}" in tests


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.parametrize("database", ["postgresql", pytest.param("mariadb", marks=pytest.mark.nightly)], indirect=True)
async def test_transactions_keep_orders_rows_and_confirmations_together(tmp_path, environment, database):
    """Both processes are killed between two orders, and started again."""
    table_of = f"orders_{database.kind}"
    database.sql(f"CREATE DATABASE {table_of}")
    shop = database.url().replace("/holdfast", f"/{table_of}", 1)
    confirmed: list[str] = []
    customer = holdfast.Destination(":memory:")

    @customer.on("urn:shop/Confirmed")
    async def note(message: holdfast.Message) -> None:
        confirmed.append(str(message.body.text))

    service = Service(customer, Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    (port,) = free_ports(1)
    environment = environment | {"SHOP": shop, "CUSTOMER": service.url}

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    sending = [sys.executable, str(EXAMPLES / "transactions.py")]
    serving = [sys.executable, "-m", "holdfast.cli.main", "serve", "transactions:app", "--port", str(port)]
    async with holdfast.Source(f"http://127.0.0.1:{port}/", ":memory:") as source:
        for n in range(2):
            running = [await asyncio.to_thread(start, *one) for one in (sending, serving)]
            await source.send(f"<order xmlns='urn:shop'>{n}</order>", action="urn:shop/Order")
            await until(lambda n=n: len(confirmed) > n)
            for process in running:
                process.kill()
                process.communicate()
        running = [await asyncio.to_thread(start, *one) for one in (sending, serving)]
        await source.flush(60)
    for process in running:
        process.kill()
        process.communicate()
    await service.close(1.0)
    assert confirmed == ["0", "1"]
    assert database.sql("SELECT what FROM orders ORDER BY what", database=table_of).split() == ["0", "1"]
