"""The check that the extra ``wsdl`` is installed. Imports zeep only when called."""

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
