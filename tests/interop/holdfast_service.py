"""The interoperability contract served by Holdfast, for ``holdfast serve holdfast_service:app``.

Its store and its log are named by the environment, so that each test has its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from lxml import etree
from process_security import processors_told

import holdfast

NAMESPACE = "urn:holdfast:interop"

app = holdfast.Destination(
    store=os.environ["INTEROP_STORE"],
    assurance="exactly-once in-order",
    http=holdfast.DestinationHTTP(allow_addresses=["http://127.0.0.1"]),
    processors=processors_told(Path(os.environ["INTEROP_LOG"] + "-nonces")),
)


def _record(operation: str, message: holdfast.Message) -> tuple[str, int, str]:
    key, number, body = (message.body.findtext(f"{{{NAMESPACE}}}{name}") for name in ("key", "number", "body"))
    with open(os.environ["INTEROP_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"operation": operation, "key": key, "number": int(number)}) + "\n")
    return key, int(number), body


@app.on(f"{NAMESPACE}/notify")
def notify(message: holdfast.Message) -> None:
    _record("notify", message)


@app.on(f"{NAMESPACE}/echo")
def echo(message: holdfast.Message) -> str:
    response = etree.Element(f"{{{NAMESPACE}}}echoResponse")
    for name, value in zip(("key", "number", "body"), _record("echo", message), strict=True):
        etree.SubElement(response, f"{{{NAMESPACE}}}{name}").text = str(value)
    return etree.tostring(response, encoding="unicode")
