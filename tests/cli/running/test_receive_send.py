"""``holdfast receive`` and ``holdfast send``, with each other: files and lines, interruptions, refusals.

Covers cli/program.py, cli/running/message_files.py, cli/running/printed_answers.py, cli/running/receive.py,
cli/running/send.py and core/versions.py.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

import holdfast
from holdfast.cli.running.send import _credentials
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.testing.ports import free_ports


def orders(directory: Path, count: int) -> list[str]:
    (directory / "orders").mkdir(exist_ok=True)
    names = []
    for number in range(count):
        name = f"orders/{number:03}.xml"
        (directory / name).write_text(f"<order>{number}</order>")
        names.append(name)
    return names


# --- together ---------------------------------------------------------------------------------------------------------


def test_files_sent_become_files_received_in_order_and_both_end(start: Any, tmp_path: Path) -> None:
    receiver = start("receive", "--port", "0", "--store", "inbox", "--out", "landed", "--count", "40")
    sender = start("send", "--to", receiver.url(), "--json", *orders(tmp_path, 40))
    sent, received = sender.end(), receiver.end()
    assert (sent.code, received.code) == (0, 0), (sent, received)
    resent = json.loads(sent.out)["resent"]  # none, unless the machine is too busy for an answer in time
    assert json.loads(sent.out) == {"stored": 40, "acknowledged": 40, "resent": resent}
    assert sent.err.splitlines()[-1] == f"40/40 stored, 40 acknowledged, {resent} resent"
    assert re.fullmatch(r"40/40 received, \d+ duplicates dropped", received.err.splitlines()[-1])
    landed = {path.name: path.read_text() for path in (tmp_path / "landed").iterdir()}
    assert len(landed) == 40
    numbers = {int(re.fullmatch(r"[0-9a-f-]{36}-(\d+)\.xml", name)[1]): text for name, text in landed.items()}  # type: ignore[index]
    assert numbers == {number + 1: f"<order>{number}</order>" for number in range(40)}


def test_files_of_two_keys_wait_in_two_sequences(run_out_of_time: Any, run: Any, tmp_path: Path) -> None:
    for key in ("orders", "invoices"):
        (tmp_path / f"{key}.xml").write_text(f"<a>{key}</a>")
        url = f"http://127.0.0.1:{free_ports(1)[0]}/"
        run_out_of_time("send", "--store", key, "--to", url, "--key", key, f"{key}.xml", what="1 stored")
        (message,) = json.loads(run("outbox", "list", key, "--json").out)["messages"]
        assert message["key"].startswith(key)


def test_files_are_attached_and_become_files_beside_their_message(start: Any, tmp_path: Path) -> None:
    (tmp_path / "photo 1.png").write_bytes(b"\x89PNG")
    (tmp_path / "claim.xml").write_text(
        '<claim><x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:photo%25201.png"/></claim>'
    )
    receiver = start("receive", "--port", "0", "--store", "inbox", "--out", "landed", "--count", "1")
    sender = start("send", "--to", receiver.url(), "--attach", "photo 1.png", "claim.xml")
    assert (sender.end().code, receiver.end().code) == (0, 0)
    landed = {path.suffixes[-2:][0]: path.read_bytes() for path in (tmp_path / "landed").iterdir() if ".1" in path.name}
    assert [path.name[36:] for path in sorted((tmp_path / "landed").iterdir())] == ["-1.1.png", "-1.xml"]
    assert landed == {".1": b"\x89PNG"}


def test_a_file_that_names_a_missing_attachment_is_not_sent(start: Any, tmp_path: Path) -> None:
    (tmp_path / "claim.xml").write_text(
        '<claim><x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:photo.png"/></claim>'
    )
    sent = start("send", "--to", "http://127.0.0.1:9/", "claim.xml").end()
    assert sent.code != 0 and "<photo.png>, which is missing" in sent.err


def test_lines_of_json_are_sent_and_received(start: Any, tmp_path: Path) -> None:
    lines = [{"body": f"<n>{n}</n>", "action": f"urn:{n % 2}", "key": f"k{n % 3}"} for n in range(30)]
    lines[0]["message_id"] = "urn:first"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    receiver = start("receive", "--port", "0", "--jsonl", "got.jsonl", "--count", "30", "--assurance", "exactly-once")
    sender = start("send", "--to", receiver.url(), "--jsonl", "-", stdin=-1)
    sender.process.stdin.write(text)
    sender.process.stdin.close()
    sender.process.stdin = None
    assert sender.end().code == 0
    assert receiver.end().code == 0
    got = [json.loads(line) for line in (tmp_path / "got.jsonl").read_text().splitlines()]
    assert {(one["body"], one["action"]) for one in got} == {(one["body"], one["action"]) for one in lines}
    assert len({one["sequence"] for one in got}) == 3
    assert "urn:first" in {one["message_id"] for one in got}


def test_without_a_place_messages_stay_in_the_queue_and_it_says_so(start: Any, tmp_path: Path) -> None:
    receiver = start("receive", "--port", "0", "--count", "3")
    assert start("send", "--to", receiver.url(), *orders(tmp_path, 3)).end().code == 0
    result = receiver.end()
    assert result.code == 0
    assert "messages stay in the queue of inbox" in result.err
    listed = start("sequences", "inbox", "--json").end()
    (one,) = json.loads(listed.out)["sequences"]
    assert (one["count"], one["role"]) == (3, "destination")


@pytest.mark.crash
def test_a_receiver_killed_while_it_writes_goes_on_and_each_line_is_there_once(start: Any, tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    names = orders(tmp_path, 60)
    receiver = start("receive", "--port", port, "--jsonl", "got.jsonl")
    receiver.url()
    sender = start("send", "--to", f"http://127.0.0.1:{port}/", *names)
    got = tmp_path / "got.jsonl"
    while not got.exists() or got.read_bytes().count(b"\n") < 5:
        assert sender.process.poll() is None or got.exists()
        time.sleep(0.01)
    receiver.process.kill()
    receiver.end()
    again = start("receive", "--port", port, "--jsonl", "got.jsonl")
    again.url()
    assert sender.end().code == 0
    while got.read_bytes().count(b"\n") < 60:  # acknowledged is stored; written is soon after
        assert again.process.poll() is None
        time.sleep(0.01)
    again.process.send_signal(signal.SIGTERM)
    assert again.end().code == 0
    bodies = [json.loads(line)["body"] for line in got.read_text().splitlines()]
    assert bodies == [f"<order>{number}</order>" for number in range(60)]


# --- receive ----------------------------------------------------------------------------------------------------------


def test_a_receiver_ends_cleanly_when_interrupted(start: Any) -> None:
    receiver = start("receive", "--port", "0", "--out", "landed")
    receiver.url()
    receiver.process.send_signal(signal.SIGINT)
    result = receiver.end()
    assert result.code == 0
    assert "0 received, 0 duplicates dropped" in result.err


def test_what_cannot_be_written_is_tried_until_it_can(start: Any, tmp_path: Path) -> None:
    receiver = start("receive", "--port", "0", "--out", "landed", "--count", "1")
    url = receiver.url()
    (tmp_path / "landed").rmdir()
    assert start("send", "--to", url, *orders(tmp_path, 1)).end().code == 0
    while "event='handler.failed'" not in (line := receiver.process.stderr.readline()):
        assert line, receiver.end()
    (tmp_path / "landed").mkdir()
    result = receiver.end()
    assert result.code == 0
    assert re.search(r"1/1 received, 0 duplicates dropped, \d+ attempts to write failed", result.err)
    assert [path.read_text() for path in (tmp_path / "landed").iterdir()] == ["<order>0</order>"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--out", "a", "--jsonl", "b"], 2, "exclude each other"),
        (["--assurance", "twice"], 2, "not a delivery assurance"),
        (["--out", "file"], 1, "cannot write to file"),
        (["--jsonl", "file"], 1, "line 1 of file was not written by holdfast receive"),
        (["--store", "."], 1, "holdfast: "),
    ],
)
def test_a_receiver_that_cannot_be_says_why(run: Any, tmp_path: Path, options: list[str], code: int, text: str) -> None:
    (tmp_path / "file").write_text("something else\n")
    result = run("receive", "--port", "0", *options)
    assert result.code == code
    assert text in result.err
    assert "Traceback" not in result.err


# --- send -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [[], ["--poll"]], ids=["plain", "poll"])
def test_replies_are_printed_in_the_order_of_the_files(run: Any, served: Any, tmp_path: Path, how: list[str]) -> None:
    result = run("send", "--to", served.url, "--action", "urn:price", "--request", *how, *orders(tmp_path, 5))
    assert result.code == 0, result.err
    assert result.out.splitlines() == [f"<price>{number}</price>" for number in range(5)]


def test_a_fault_of_the_service_is_a_sentence_that_names_the_file(run: Any, served: Any, tmp_path: Path) -> None:
    result = run("send", "--to", served.url, "--action", "urn:fault", "--request", *orders(tmp_path, 1))
    assert result.code == 1
    assert "holdfast: the service answered orders/000.xml with a fault: out of stock" in result.err


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_fault_hides_no_reply_and_is_named_with_its_line(
    run: Any, served: Any, tmp_path: Path, is_one_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_one_batch:
        monkeypatch.setattr("holdfast.cli.running.message_files.TOGETHER", 1)
    actions = ["urn:fault", "urn:price", "urn:fault", "urn:price"]
    lines = [{"body": f"<order>{number}</order>", "action": action} for number, action in enumerate(actions)]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("send", "--to", served.url, "--request", "--jsonl", "orders.jsonl")
    assert result.code == 1
    assert result.out.splitlines() == ["<price>1</price>", "<price>3</price>"]
    told = [line for line in result.err.splitlines() if "with a fault" in line]
    assert told == [f"the service answered orders.jsonl, line {n} with a fault: out of stock" for n in (1, 3)]
    assert "holdfast: the service answered 2 of 4 requests with faults" in result.err
    result = run("send", "--resume", "--request")
    assert (result.code, result.out) == (0, ""), "and each is printed once"


SHOP = """import holdfast
app = holdfast.Destination(':memory:')
@app.on('urn:price')
def price(message) -> str:
    return message.body_bytes.replace(b'order', b'price')
@app.on('urn:fault')
def fault(message) -> str:
    raise holdfast.ApplicationFault('out of stock')
"""


def test_replies_that_come_after_the_command_are_printed_by_the_command_it_names(
    start: Any, run: Any, run_out_of_time: Any, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    lines = [{"body": f"<order>{n}</order>", "action": "urn:fault" if n == 1 else "urn:price"} for n in range(3)]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    url = f"http://127.0.0.1:{port}/"
    result = run_out_of_time("send", "--to", url, "--request", "--jsonl", "orders.jsonl", what="3 stored, 0 ack")
    assert "may not be stored" not in result.err
    command = re.search(r"To continue: holdfast (.*)", result.err)
    assert command is not None, result.err
    (tmp_path / "shop.py").write_text(SHOP)
    assert start("serve", "shop:app", "--port", str(port)).line()
    asked, silent = command[1].split(), [word for word in command[1].split() if word != "--request"]
    result = run(*silent)
    assert (result.code, result.out) == (0, "")
    assert f"3 replies are in the store. To print and delete: {command[0][13:]}" in result.err
    result = run(*asked)
    assert result.code == 1
    assert result.out.splitlines() == ["<price>0</price>", "<price>2</price>"]
    assert re.search(r"the service answered the request urn:uuid:\S+ with a fault: out of stock", result.err)


@pytest.mark.parametrize(
    ("options", "versions"),
    [
        (["--rm", "1.0"], "RM 1.0, WSA 2005/08, SOAP 1.2"),
        (["--addressing", "2004/08", "--soap", "1.1"], "RM 1.0, WSA 2004/08, SOAP 1.1"),
        (["--profile", "cxf"], "RM 1.0, WSA 2004/08, SOAP 1.1"),
        (["--rm", "2003/03", "--soap", "1.1"], "RM 2003/03, WSA 2003/03, SOAP 1.1"),
        (["--addressing", "2004/03"], "RM 2004/03, WSA 2004/03, SOAP 1.2"),
        (["--rm", "1.2"], "RM 1.1, WSA 2005/08, SOAP 1.2"),
        ([], "RM 1.1, WSA 2005/08, SOAP 1.2"),
    ],
)
def test_versions_can_be_pinned(run: Any, served: Any, tmp_path: Path, options: list[str], versions: str) -> None:
    assert run("send", "--to", served.url, *options, *orders(tmp_path, 1)).code == 0
    shown = json.loads(run("sequences", "--admin", served.admin, "--json").out)["sequences"]
    assert [one["versions"] for one in shown if one["role"] == "destination"] == [versions]


WSDL = """<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" targetNamespace="urn:t" xmlns:t="urn:t"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/">
  <portType name="T"><operation name="o"><input message="i"/></operation></portType>
  <binding name="B" type="t:T"><soap:binding/></binding>
  <service name="S"><port name="P" binding="t:B"><soap:address location="{url}"/></port></service>
</definitions>"""


def test_a_wsdl_says_where_to_send_and_what_to_speak(run: Any, served: Any, tmp_path: Path) -> None:
    (tmp_path / "orders.wsdl").write_text(WSDL.format(url=served.url))
    result = run("send", "--wsdl", "orders.wsdl", "--port", "P", "--rm", "1.0", "--soap", "1.1", *orders(tmp_path, 2))
    assert result.code == 0, result.err
    (one,) = json.loads(run("sequences", "served", "--json").out)["sequences"]
    assert (one["versions"], one["count"]) == ("RM 1.0, WSA 2005/08, SOAP 1.1", 3), "LastMessage has a number too"
    result = run("send", "--wsdl", "orders.wsdl", "--port", "Q", "orders/000.xml")
    assert result.code == 1
    assert "the WSDL has no SOAP port 'Q'" in result.err
    result = run("send", "--wsdl", "nowhere.wsdl", "orders/000.xml")
    assert result.code == 1
    assert "nowhere.wsdl cannot be read: No such file or directory." in result.err


def test_what_could_not_be_sent_in_time_is_safe_and_resume_sends_it(
    start: Any, run: Any, run_out_of_time: Any, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    what = "; 3 stored, 0 acknowledged; cannot connect to"
    result = run_out_of_time("send", "--to", f"http://127.0.0.1:{port}/", *orders(tmp_path, 3), what=what)
    assert result.code == 1
    said = re.search(r"holdfast: not done within ([0-9.]+) s" + re.escape(what), result.err)
    assert said is not None, result.err
    store = f"outbox-{said[1]}"
    assert f"3 unacknowledged messages are safe in {store}" in result.err
    assert f"holdfast send --resume --store {store}" in result.err
    receiver = start("receive", "--port", str(port), "--out", "landed", "--count", "3")
    receiver.url()
    result = run("send", "--resume", "--store", store)
    assert result.code == 0
    assert re.fullmatch(r"3 from before, 3 acknowledged, \d+ resent", result.err.splitlines()[-1])
    assert receiver.end().code == 0
    assert len(list((tmp_path / "landed").iterdir())) == 3
    assert run("send", "--resume", "--store", store).code == 0


def test_a_refused_sequence_is_reported_with_the_safe_data_and_a_remedy(run: Any, start: Any, tmp_path: Path) -> None:
    (tmp_path / "strict_module.py").write_text(
        "import holdfast\napp = holdfast.Destination(':memory:', policy=holdfast.DestinationPolicy(max_sequences=0))\n"
    )
    service = start("serve", "strict_module:app", "--port", "0")
    url = service.url()
    result = run("send", "--to", url, "--rm", "1.1", *orders(tmp_path, 3))
    assert result.code == 1
    assert f"holdfast: the destination {url} refused the Sequence: CreateSequenceRefused\n" in result.err
    assert 'its reason: "This destination has reached its limit of 0 open Sequences. Try again later."' in result.err
    assert "3 unacknowledged messages are safe in outbox" in result.err
    result = run("send", "--to", url, *orders(tmp_path, 1))
    assert result.code == 1
    assert "sending to" in result.err
    assert "has stopped until you decide: " in result.err
    assert 'its reason: "This destination has reached its limit of 0 open Sequences. Try again later."' in result.err
    assert "3 unacknowledged messages are safe in outbox" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sender_says_what_is_safe(start: Any, tmp_path: Path, number: signal.Signals) -> None:
    sender = start(
        "send", "--to", f"http://127.0.0.1:{free_ports(1)[0]}/", "--log-level", "debug", *orders(tmp_path, 2)
    )
    while "transmission.failed" not in (line := sender.process.stderr.readline()):
        assert line, sender.end()
    sender.process.send_signal(number)
    result = sender.end()
    assert result.code == 1
    assert "holdfast: interrupted; 2 stored, 0 acknowledged" in result.err
    assert "2 unacknowledged messages are safe in outbox" in result.err
    assert "Traceback" not in result.err


def test_a_sender_that_waits_for_standard_input_can_be_interrupted(start: Any, tmp_path: Path) -> None:
    sender = start("send", "--to", f"http://127.0.0.1:{free_ports(1)[0]}/", "-", stdin=-1)
    while not list(tmp_path.glob("outbox/*")):  # signals are taken care of before the store is opened
        assert sender.process.poll() is None
        time.sleep(0.01)
    sender.process.send_signal(signal.SIGINT)
    sender.process.wait(60)  # its standard input is still open
    result = sender.end()
    assert result.code == 1
    assert "interrupted; 0 stored" in result.err


@pytest.mark.parametrize("wrong", ['{"body": "<a>"}', '{"text": 1}', '{"body": "<a/>", "message_id": ""}', "no JSON"])
def test_messages_before_one_that_cannot_be_sent_are_stored_and_none_after_it(
    run: Any, served: Any, tmp_path: Path, wrong: str
) -> None:
    bodies = [json.dumps({"body": f"<a>{number}</a>"}) for number in range(4)]
    (tmp_path / "lines.jsonl").write_text("\n".join([*bodies[:2], wrong, *bodies[2:]]) + "\n")
    result = run("send", "--to", served.url, "--store", "o", "--jsonl", "lines.jsonl")
    assert result.code == 1
    assert "lines.jsonl, line 3" in result.err and "; 2 stored, " in result.err
    assert "Neither this message nor any after it is stored." in result.err
    waiting = json.loads(run("outbox", "list", "o", "--json").out)["messages"]
    assert len(waiting) in (0, 2)  # the destination may have acknowledged both by now
    (tmp_path / "rest.jsonl").write_text("\n".join(bodies[2:]) + "\n")
    result = run("send", "--to", served.url, "--store", "o", "--jsonl", "rest.jsonl", "--json")
    assert (result.code, json.loads(result.out)["acknowledged"]) == (0, 2 + len(waiting))


def test_a_file_that_is_no_xml_is_named_and_none_after_it_is_stored(run: Any, served: Any, tmp_path: Path) -> None:
    names = orders(tmp_path, 2)
    (tmp_path / "wrong.xml").write_text("no element")
    result = run("send", "--to", served.url, names[0], "wrong.xml", names[1])
    assert result.code == 1
    assert "wrong.xml cannot be sent" in result.err and "; 1 stored, " in result.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"body": "<a/>", "acton": "urn:a"}', "it has the unknown key 'acton'"),
        ('{"body": "<a/>", "to": "http://x/"}', "the command does not send its to"),
        ('{"body": "<a/>", "headers": "<h/>"}', "the command does not send its headers"),
        ('{"body": ""}', "its body is empty"),
        ('{"body": " \\n"}', "its body is empty"),
        ('{"action": "urn:a"}', "it has no body"),
        ('{"body": {"a": 1}}', "its body is not text but dict"),
        ('{"body": "<a/>", "key": 7}', "its key is not text but int"),
        ('["<a/>"]', "it is not an object but list"),
        ("<a/>", "it is not JSON"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"body": "<a/>", "body": "<b/>"}', "it has the key 'body' twice"),
    ],
)
def test_an_invalid_line_is_reported_with_its_file_and_the_problem(
    run: Any, served: Any, tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "lines.jsonl").write_text(f'{{"body": "<a/>"}}\n{line}\n')
    result = run("send", "--to", served.url, "--store", "o", "--jsonl", "lines.jsonl")
    assert result.code == 1
    assert f"lines.jsonl, line 2 is not a message: {said}" in result.err
    assert ("Did you mean 'action'?" in result.err) == ("acton" in line)


def test_an_empty_file_is_named(run: Any, served: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.xml").write_text("\n")
    result = run("send", "--to", served.url, "empty.xml")
    assert (result.code, "empty.xml is empty" in result.err) == (1, True)


def test_a_key_that_is_stopped_does_not_keep_the_messages_of_the_others_from_leaving(
    run: Any, served: Any, tmp_path: Path
) -> None:
    served.app.settings.table.handlers["urn:holdfast:message"] = served.app.settings.table.handlers.pop("")
    lines = [
        {"body": "<a/>", "action": "urn:nobody", "key": "stuck"},
        *({"body": f"<n>{n}</n>", "key": "other"} for n in range(5)),
    ]
    (tmp_path / "first.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("send", "--to", served.url, "--store", "o", "--jsonl", "first.jsonl")
    assert result.code == 1 and "ActionNotSupported" in result.err
    lines[0]["action"] = "urn:holdfast:message"
    (tmp_path / "second.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("send", "--to", served.url, "--store", "o", "--jsonl", "second.jsonl")
    assert result.code == 1
    assert "1 more with the key 'stuck' were not stored, beginning with second.jsonl, line 1" in result.err
    store = RocksDBStore(str(tmp_path / "o"), read_only=True)
    bounds = store.load().bounds
    store.close()
    assert bounds["outbox/stuck", 0] == (0, 1)
    assert bounds["outbox/other", 0] == (10, 10)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Name the files"),
        (["a.xml"], "--to URL"),
        (["--to", "ftp://x/", "a.xml"], "not an http or https URL"),
        (["--to", "http://x/", "missing.xml"], "no file 'missing.xml'"),
        (["--to", "http://x/", "--profile", "axis", "a.xml"], "axis"),
        (["--to", "http://x/", "--profile", "wcf", "--rm", "1.0", "a.xml"], "--profile sets the versions"),
        (["--to", "http://x/", "--header", "nonsense", "a.xml"], "not 'Name: value'"),
    ],
)
def test_wrong_usage_of_send_is_named(run: Any, tmp_path: Path, arguments: list[str], text: str) -> None:
    (tmp_path / "a.xml").write_text("<a/>")
    result = run("send", *arguments)
    assert result.code == 2
    assert text in result.err


def test_versions_that_do_not_go_together_are_a_sentence(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<a/>")
    result = run("send", "--to", "http://x/", "--rm", "1.1", "--addressing", "2004/08", "a.xml")
    assert result.code == 2
    assert "WS-RM 1.1 is defined with WS-Addressing 2005/08 only" in result.err


def test_an_outbox_that_is_not_there_cannot_be_resumed_and_is_not_made(run: Any, tmp_path: Path) -> None:
    result = run("send", "--resume", "--store", "nothing")
    assert result.code == 1
    assert "nothing to resume in nothing" in result.err
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("command", [["send", "--to", "http://x/", "a.xml"], ["receive"]])
def test_an_assurance_that_is_none_is_wrong_usage(run: Any, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "a.xml").write_text("<a/>")
    result = run(*command, "--assurance", "twice")
    assert result.code == 2
    assert "'twice' is not a delivery assurance" in result.err


def test_what_waits_in_memory_is_not_called_safe(run_out_of_time: Any, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/"
    what = "1 unacknowledged message is lost with the store in memory"
    result = run_out_of_time("send", "--to", url, "--store", ":memory:", *orders(tmp_path, 1), what=what)
    assert result.code == 1
    assert what in result.err
    assert "--resume" not in result.err


def test_what_is_logged_while_the_store_opens_has_the_form_of_the_log(start: Any, tmp_path: Path) -> None:
    for store in ("inbox", "outbox"):
        (tmp_path / store).mkdir()
        (tmp_path / store).chmod(0o755)
    receiver = start("receive", "--port", "0", "--store", "inbox", "--count", "1", "--log-json")
    url = receiver.url()
    sender = start("send", "--to", url, "--log-json", *orders(tmp_path, 1))
    for result, store in ((sender.end(), "outbox"), (receiver.end(), "inbox")):
        (line,) = [one for one in result.err.splitlines() if "store.public" in one]
        assert (result.code, json.loads(line)["store"]) == (0, str(tmp_path / store))


@pytest.mark.parametrize("command", ["broker", "receive"])
def test_the_error_that_ends_a_process_has_the_form_of_its_log(start: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "store").write_text("no directory")
    result = start(command, "--store", "store", "--log-json", *["--port", "0"] * (command == "receive")).end()
    lines = [json.loads(line) for line in result.err.splitlines()]
    assert (result.code, lines[-1]["event"], lines[-1]["level"]) == (1, "command.failed", "error")
    assert "store" in lines[-1]["error"] and lines[-1]["remedy"]


@pytest.mark.parametrize("resume", [True, False])
def test_a_store_that_does_not_open_is_not_called_empty(run: Any, tmp_path: Path, resume: bool) -> None:
    store = f"postgresql://me:secret@127.0.0.1:{free_ports(1)[0]}/shop?space=a&connect_timeout=2"
    what = ["--resume"] if resume else ["--to", "http://127.0.0.1:9/", *orders(tmp_path, 1)]
    result = run("send", "--store", store, "--timeout", "0.5", *what)
    assert result.code == 1
    assert "0 stored, 0 acknowledged: postgresql://me@127.0.0.1" in result.err
    assert "is not open yet" in result.err and "This command has stored no message" in result.err
    assert "No message is waiting" not in result.err and "secret" not in result.err
    assert ("--resume --store 'postgresql://" in result.err) == resume


def test_a_refused_message_says_what_is_safe_a_refused_request_its_fault(run: Any, start: Any, tmp_path: Path) -> None:
    (tmp_path / "picky_module.py").write_text(
        "import holdfast\napp = holdfast.Destination(':memory:')\napp.on('urn:other')(print)\n"
    )
    url = start("serve", "picky_module:app", "--port", "0").url()
    result = run("send", "--to", url, "--request", *orders(tmp_path, 1))
    assert result.code == 1
    assert "a fault: No handler here takes the action 'urn:holdfast:message'." in result.err
    result = run("send", "--to", url, *orders(tmp_path, 1))
    assert result.code == 1
    assert "ActionNotSupported" in result.err
    assert "holdfast send --resume --store outbox" in result.err
    assert "event=" not in result.err  # the sentence says it all


def test_the_outbox_is_the_librarys_own(run: Any, served: Any, tmp_path: Path) -> None:
    with holdfast.sync.Source("http://127.0.0.1:9/", store=tmp_path / "outbox") as source:
        source.send("<a/>", action="urn:a")
    result = run("send", "--resume", "--to", served.url)
    assert result.code == 1
    assert "holds messages for http://127.0.0.1:9/" in result.err


@pytest.mark.parametrize("what", [(), ("--operation", "Put")], ids=["XML", "values"])
def test_a_timeout_counts_while_the_wsdl_is_loaded(run: Any, tmp_path: Path, what: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wsdl = f"http://127.0.0.1:{silent.getsockname()[1]}/?wsdl"
        (tmp_path / "a.json").write_text("{}")
        store = ("--store", str(tmp_path / "outbox"))
        result = run("send", "--wsdl", wsdl, "--timeout", "0.5", *store, *what, str(tmp_path / "a.json"))
    assert result.code == 1
    assert f"not done within 0.5 s: the WSDL {wsdl} was not loaded, and no message was stored" in result.err


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
def test_a_timeout_that_is_no_time_is_wrong_usage(run: Any, tmp_path: Path, seconds: str) -> None:
    result = run("send", "--to", "http://127.0.0.1:9/", "--timeout", seconds, *orders(tmp_path, 1))
    assert (result.code, "--timeout" in result.err) == (2, True), result.err
    assert not (tmp_path / "outbox").exists()


def test_a_file_in_another_encoding_is_sent_as_its_declaration_says(run: Any, served: Any, tmp_path: Path) -> None:
    names = []
    for encoding in ("ISO-8859-1", "UTF-16"):
        names.append(f"{encoding}.xml")
        text = f'<?xml version="1.0" encoding="{encoding}"?>\n<a>é</a>'
        (tmp_path / names[-1]).write_bytes(text.encode(encoding))
    assert run("send", "--to", served.url, *names).code == 0
    assert run("queues", "export", "inbox", "--admin", served.admin, "--to", "out").code == 0
    bodies = [etree.fromstring(file.read_bytes()).text for file in (tmp_path / "out").iterdir()]
    assert bodies == ["é", "é"]
    (tmp_path / "wrong.xml").write_bytes(b"<a>\xff</a>")
    result = run("send", "--to", served.url, "wrong.xml")
    assert (result.code, "Save it as UTF-8." in result.err) == (1, True), result.err


def test_a_byte_order_mark_is_no_part_of_a_password(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("\ufeffswordfish\r\n")
    (token,) = _credentials("me", str(tmp_path / "password"), digest=False)["processors"]
    assert token._password == "swordfish"


def test_the_way_to_resume_names_the_options_that_the_store_does_not_keep(run_out_of_time: Any, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("swordfish")
    more = ["--username", "me", "--password-file", "password", "--header", "X-Key: swordfish"]
    more += ["--proxy", "http://me:swordfish@127.0.0.1:9"]
    what = "safe in"
    result = run_out_of_time("send", "--to", "http://127.0.0.1:9/", *more, *orders(tmp_path, 1), what=what)
    assert "holdfast send --resume --store outbox" in result.err
    assert "\n  Resume with the same --proxy, --header, --username, --password-file.\n" in result.err
    assert "swordfish" not in result.err
