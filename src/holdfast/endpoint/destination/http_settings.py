"""DestinationHTTP: what HTTP peers may do with a destination, and how it reaches them. Settings only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.core.policy import SourcePolicy, StagingPolicy
from holdfast.endpoint.arguments import check_class, check_public_url
from holdfast.endpoint.destination.allow_list import AllowList
from holdfast.endpoint.envelopes.transport_facts import Keeper
from holdfast.endpoint.logs import LineLimit, log
from holdfast.endpoint.sending.http_settings import HTTPSettings
from holdfast.http.exchange import HTTPLimits
from holdfast.settings import check_callable
from holdfast.wire import Limits


@dataclass(frozen=True, kw_only=True)
class DestinationHTTP(HTTPSettings):
    """What peers may do with a destination, and how each reaches the other.

    ``headers``, ``ssl_context``, ``proxy`` and ``timeout`` are those of the requests that the destination sends.

    Args:
        public_url: The URL at which clients reach the destination, if a reverse proxy or a gateway changes the host,
            the port or the path: ``https://api.example/orders``. The WSDL and its policy then name this URL, whatever
            the headers of a request are. ``{path}`` at its end stands for the path of the request:
            ``https://api.example/soap{path}``. None: the address comes from ``X-Forwarded-Proto``,
            ``X-Forwarded-Host`` and ``Host``.
        allow_addresses: URL prefixes of the addresses, besides the anonymous one, that a peer may name as AcksTo,
            ReplyTo or FaultTo, such as ``https://partner.example/rm``; a URL without a port allows every port. Empty
            by default, because an attacker can direct a service that posts to any address against other systems.
        keep_http_headers: HTTP headers to store with each message, which its handler reads in
            ``message.http_headers``: ``["X-Request-ID"]``; ``["*"]`` for all except Authorization,
            Proxy-Authorization and Cookie, which are stored only if named. At most 8 KB for each message; further
            headers are omitted.
        limits: Limits for HTTP peers under an ASGI server. Holdfast's own server has its own limits.
        envelopes: Limits on the size and structure of one envelope.
        staging: Limits on the records that external writers, such as a Spark query, stage.
        mtom: Whether handlers of ``@app.operation`` return large binary values as attachments
            (MTOM), instead of in base64. None: if the request had some, or the WSDL's policy demands MTOM.
        policy: Limits and timers for the messages that the destination sends: replies and acknowledgements to
            addressable peers.
        policy_for: Returns the policy for an address; None: ``policy`` for every address. The log reports an error that
            it raises, and ``policy`` applies.

    Raises:
        ConfigurationError: A value is not valid.
    """

    public_url: str | None = None
    allow_addresses: Iterable[str] = ()
    keep_http_headers: Iterable[str] = ()
    limits: HTTPLimits = field(default_factory=HTTPLimits)
    envelopes: Limits = field(default_factory=Limits)
    staging: StagingPolicy = field(default_factory=StagingPolicy)
    mtom: bool | None = None
    policy: SourcePolicy = field(default_factory=SourcePolicy)
    policy_for: Callable[[str], SourcePolicy] | None = None

    def policy_of(self, address: str, _key: str) -> SourcePolicy:
        if self.policy_for is None:
            return self.policy
        try:
            policy = self.policy_for(address)
            check_class("the result of policy_for", policy, SourcePolicy, optional=False)
        except Exception as error:  # the program's own, for an address that a peer has named
            if (left_out := _FAILURES.admit()) is not None:
                log.error("policy.not_given", address=address, left_out=left_out, exc_info=error)
            return self.policy
        return policy

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in _KINDS.items():
            check_class(name, getattr(self, name), kind, optional=False)
        check_class("mtom", self.mtom, bool)
        if self.public_url is not None:
            check_public_url("public_url", self.public_url)
        check_callable("policy_for", self.policy_for, 1, optional=True)
        for name, make in (("allow_addresses", AllowList), ("keep_http_headers", Keeper)):
            given = getattr(self, name)
            if isinstance(given, Iterable) and not isinstance(given, str | bytes):
                given = tuple(given)
            make(given)  # raises
            object.__setattr__(self, name, given)


_FAILURES = LineLimit()
_KINDS = {"limits": HTTPLimits, "envelopes": Limits, "staging": StagingPolicy, "policy": SourcePolicy}
