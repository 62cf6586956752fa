"""WS-Policy 1.2 (2004/09) and 1.5: what a service demands, and which of its alternatives Holdfast can meet.

This room owns policy expressions and their normal form, the table of assertions that Holdfast can meet,
the choice of an alternative, and the settings that the assertions of reliable messaging state. It knows XML elements
and the core's settings, but no WSDL, no file and no network. To support an assertion, add a row to ``assertions``.
Open :mod:`holdfast.wire.policy.expressions` first.
"""
