"""Values instead of XML: the operations, types and declared faults of a service's WSDL, with zeep as the engine.

This room owns the loading of WSDL and XSD documents within limits, the conversion of values to bodies and back, and the
validation of bodies against the schema. It knows no Sequence, store, socket server or Source: bytes and values in,
bytes and values out. The extra ``wsdl`` installs zeep, which only ``holdfast.zeep`` and the modules of this room
import; no other module imports them until an operation is called or offered by name. Open
:mod:`holdfast.wsdl.contract` first.
"""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.exceptions import ConfigurationError


def require_zeep() -> None:
    """Check that zeep is installed.

    Raises:
        ConfigurationError: it is not.
    """
    if find_spec("zeep") is None:
        raise ConfigurationError(
            "Operations of a WSDL need the package zeep, which is not installed.",
            remedy="pip install 'holdfast[wsdl]'",
        )
