"""The policy of a destination as XML: reliable messaging with its assurance and timers, addressing, and more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from holdfast.core.messages import MC_NS
from holdfast.core.policy import Assurance, Delivery, DestinationPolicy
from holdfast.core.versions import ALL_VERSIONS, RM, Addressing
from holdfast.wire.policy.assertions import ADDRESSING_DRAFTS, ADDRESSING_METADATA, NET_RMP_1_1, RMP_1_0, RMP_1_1
from holdfast.wire.policy.expressions import POLICY

PolicyVersion = Literal["1.5", "1.2"]
"""A version of WS-Policy. Programs of 2007 and earlier read only 1.2."""
WSP: Mapping[PolicyVersion, str] = {"1.5": POLICY[0], "1.2": POLICY[1]}
"""Version -> the namespace of the prefix ``wsp``, which the document must declare."""
_DELIVERIES = {
    Delivery.AT_MOST_ONCE: "AtMostOnce",
    Delivery.AT_LEAST_ONCE: "AtLeastOnce",
    Delivery.EXACTLY_ONCE: "ExactlyOnce",
}
_ADDRESSING = {
    Addressing.V2004_08: f'<w:UsingAddressing xmlns:w="{ADDRESSING_DRAFTS[1]}"/>',
    Addressing.V2005_08: f'<wsam:Addressing xmlns:wsam="{ADDRESSING_METADATA}"><wsp:Policy/></wsam:Addressing>',
}
_ADDRESSING_IN_1_2 = _ADDRESSING | {Addressing.V2005_08: f'<w:UsingAddressing xmlns:w="{ADDRESSING_DRAFTS[0]}"/>'}
"""The assertions that are as old as WS-Policy 1.2: wsam:Addressing is one of 1.5."""


def written(
    policy: DestinationPolicy, others: Iterable[str], version: PolicyVersion = "1.5", *, binds_sequences: bool = False
) -> str:
    """Return the content of a wsp:Policy: an alternative for each pair of versions.

    Args:
        policy: The assurance and the timers.
        others: Further assertions, each for every alternative.
        version: Of WS-Policy.
        binds_sequences: Whether CreateSequence must name a token, which only RM 1.1 can demand.
    """
    more = "".join(others)
    addresses = _ADDRESSING if version == "1.5" else _ADDRESSING_IN_1_2
    assertions = {RM.V1_1: _rm_1_1} if binds_sequences else _RM_ASSERTIONS
    pairs = {(one.addressing, one.rm) for one in ALL_VERSIONS if one.rm in assertions}
    alternatives = (
        f"<wsp:All>{addresses[addressing]}{assertions[rm](policy, binds_sequences)}{more}</wsp:All>"
        for addressing, rm in sorted(pairs, key=lambda pair: (pair[0].value, pair[1].value), reverse=True)
    )
    joined = "\n".join(alternatives)  # a line each, since errors name lines
    return f"<wsp:ExactlyOne>\n{joined}\n</wsp:ExactlyOne>"


def _rm_1_0(policy: DestinationPolicy, _binds_sequences: bool) -> str:
    return f'<r:RMAssertion xmlns:r="{RMP_1_0}">{_timers("r", policy)}</r:RMAssertion>'


def _rm_1_1(policy: DestinationPolicy, binds_sequences: bool) -> str:
    """The assertion (WS-RM Policy 1.2, 2.4), with timers beside its nested policy, as .NET writes and reads them."""
    binding = "<r:SequenceSTR/>" * binds_sequences
    return (
        f'<r:RMAssertion xmlns:r="{RMP_1_1}"><wsp:Policy>{binding}<r:DeliveryAssurance><wsp:Policy>'
        f"{_assurance(policy.assurance)}</wsp:Policy></r:DeliveryAssurance></wsp:Policy>"
        f"{_timers('n', policy)}</r:RMAssertion>"
        f'<m:MCSupported xmlns:m="{MC_NS}" wsp:Optional="true"/>'  # WS-MakeConnection 3.4
    )


_RM_ASSERTIONS = {RM.V1_0: _rm_1_0, RM.V1_1: _rm_1_1}


def _assurance(assurance: Assurance) -> str:
    return f"<r:{_DELIVERIES[assurance.delivery]}/>{'<r:InOrder/>' if assurance.in_order else ''}"


def _timers(prefix: str, policy: DestinationPolicy) -> str:
    """The timers. The shorter of the two inactivity timeouts counts, since it holds for two-way clients of WCF."""
    declared = f' xmlns:n="{NET_RMP_1_1}"' if prefix == "n" else ""
    timeouts = [one for one in (policy.inactivity_timeout, policy.keep_alive_timeout) if one is not None]
    inactivity = (
        f'<{prefix}:InactivityTimeout Milliseconds="{_milliseconds(min(timeouts))}"{declared}/>' if timeouts else ""
    )
    interval = _milliseconds(policy.acknowledgement_interval)
    return f'{inactivity}<{prefix}:AcknowledgementInterval Milliseconds="{interval}"{declared}/>'


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
