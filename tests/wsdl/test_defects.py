"""Operations that the WSDL does not describe completely are named with the reason, and the others work."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from order_service import in_one_document

from holdfast.exceptions import ConfigurationError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents

DEFECTS = [
    ('<wsdl:input message="o:CancelOrder"', '<wsdl:input message="o:No"', "CancelOrder", "message o:No of its input"),
    ('<wsdl:output message="o:PriceResponse"', '<wsdl:output message="o:No"', "Price", "message o:No of its output"),
    ('message="o:OrderRefused"', 'message="o:No"', "SubmitOrder", "message o:No of its fault"),
    ('element="o:CancelOrder"', 'element="o:No"', "CancelOrder", "element o:No of the message o:CancelOrder"),
    ('element="o:CancelOrder"', 'type="o:No"', "CancelOrder", "type o:No of the message"),
    ('<wsdl:operation name="Price"', '<wsdl:operation name="CancelOrder"', "CancelOrder", "several operations"),
    ('<wsdl:operation name="Price"', '<wsdl:operation name="Cost"', "Price", "no such operation"),
]


@pytest.mark.parametrize(("old", "new", "name", "says"), DEFECTS, ids=lambda one: f"{one:.40}")
def test_an_incomplete_operation_is_named_with_the_reason(
    tmp_path: Path, old: str, new: str, name: str, says: str
) -> None:
    text = in_one_document().decode()
    assert old in text
    file = tmp_path / "a.wsdl"
    file.write_text(text.replace(old, new, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contract = Contract(Documents(file, lambda url: b""))
    assert contract.operations.keys() | contract.unusable.keys() >= {"SubmitOrder", "Price", "CancelOrder"}
    assert not contract.operations.keys() & contract.unusable.keys()
    with pytest.raises(ConfigurationError, match=f"{name}' of the WSDL is not usable.*{says}"):
        contract.operation(name)
    if "Price" in contract.operations:
        assert contract.request(contract.operation("Price"), (), {"item": "a"})
