"""A service of orders, offered from a WSDL: what the tests of operations by name call."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast import Destination

WSDL = Path(__file__).resolve().parents[2] / "examples" / "orders.wsdl"


def in_one_document(soap: str = "1.1") -> bytes:
    """The WSDL with its schema inline, for a version of SOAP."""
    schema = (WSDL.parent / "orders.xsd").read_text(encoding="utf-8").partition("?>")[2]
    start, _, rest = WSDL.read_text(encoding="utf-8").partition("<xs:schema>")
    text = start + schema + rest.partition("</xs:schema>")[2]
    if soap == "1.2":
        text = text.replace("http://schemas.xmlsoap.org/wsdl/soap/", "http://schemas.xmlsoap.org/wsdl/soap12/")
    return text.encode()


@dataclass
class Orders:
    """The service, and what it was given."""

    store: Any = ":memory:"
    wsdl: Any = WSDL
    submitted: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        app = self.app = Destination(self.store, wsdl=self.wsdl)

        @app.operation("SubmitOrder")
        async def submit(customer: str, lines: list[dict[str, Any]], wanted: Any) -> dict[str, Any]:
            for line in lines:
                if line["quantity"] > 100:
                    raise app.fault("OrderRefused", f"Too many of {line['item']}.", item=line["item"], limit=100)
            self.submitted.append({"customer": customer, "lines": lines, "wanted": wanted})
            return {"number": len(self.submitted), "total": Decimal("12.50")}

        @app.operation("Price")
        def price(item: str, currency: str = "EUR") -> Decimal:
            return Decimal("1.25") if currency == "EUR" else Decimal("1.40")

        @app.operation("CancelOrder")
        def cancel(number: int) -> None:
            self.cancelled.append(number)
