"""The identity of a caller, the key of its session (DESIGN 7), and the key of its rate limit (DESIGN 8.9)."""

import hashlib
import re
from collections.abc import Container, Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from operator import itemgetter
from typing import Final, NamedTuple

# Fields of one message: what it has for content, and how it is to be sent, taken and answered. They tell nobody who
# asks, and go with no request of the gateway's own (DESIGN 5.9, 7.2).
_OF_ONE_MESSAGE: Final = frozenset(
    b"accept accept-encoding transfer-encoding trailer te expect date range if prefer early-data max-forwards "
    b"digest repr-digest want-digest want-repr-digest want-content-digest last-event-id mcp-method mcp-name "
    b"idempotency-key x-idempotency-key repeatability-request-id repeatability-first-sent taskgate-filter".split()
)
_OF_ONE_MESSAGE_BEGIN: Final = (b"content-", b"if-", b"mcp-param-")
# Ids of requests and traces, and the nodes that passed them on.
_IDS: Final = frozenset(
    b"traceparent tracestate baggage b3 x-b3-traceid x-b3-spanid x-b3-parentspanid x-b3-sampled x-b3-flags "
    b"x-request-id x-correlation-id request-id x-request-start x-queue-start via "
    b"x-forwarded-server cf-ray cf-request-id x-timer fastly-ff fastly-client-request-id x-sigsci-requestid "
    b"akamai-grn cdn-requestid x-varnish x-unique-id kong-request-id x-kong-request-id "
    b"x-amzn-trace-id x-amz-cf-id x-amzn-requestid amz-sdk-invocation-id amz-sdk-request "
    b"x-azure-ref x-appgw-trace-id x-arr-log-id x-client-request-id x-ms-client-request-id "
    b"x-cloud-trace-context x-appengine-request-log-id x-appengine-api-ticket x-appengine-timeout-ms "
    b"function-execution-id x-vercel-id x-nf-request-id fly-request-id fly-traceparent fly-tracestate rndr-id "
    b"x-railway-request-id x-vcap-request-id "
    b"x-client-trace-id x-envoy-original-request-id x-envoy-attempt-count x-envoy-expected-rq-timeout-ms "
    b"x-ot-span-context grpc-trace-bin l5d-ctx-trace l5d-ctx-deadline l5d-reqid "
    b"newrelic x-newrelic-transaction x-datadog-trace-id x-datadog-parent-id x-datadog-sampling-priority "
    b"x-datadog-origin x-datadog-tags x-dynatrace elastic-apm-traceparent sentry-trace x-honeycomb-trace x-instana-t "
    b"x-instana-s x-instana-l singularityheader uber-trace-id jaeger-debug-id ot-tracer-traceid "
    b"ot-tracer-spanid ot-tracer-sampled sw8 sw8-x".split()
)
# These cannot carry an identity. docs/fields.md has each with its source. All else counts: that is safe.
_NO_IDENTITY: Final = _OF_ONE_MESSAGE.union(
    _IDS,  # ... and those of the connection, of caches, of the program, of the session
    b"connection keep-alive proxy-connection upgrade cache-control pragma priority accept-charset accept-language "
    b"user-agent mcp-protocol-version mcp-session-id".split(),
)
# From the values of these nothing follows but their own bytes. (Of `via` another field may go up beside it.)
VARYING: Final = (_IDS - {b"via"}).union(
    b"content-length content-digest repr-digest digest content-md5 date mcp-method mcp-name idempotency-key "
    b"x-idempotency-key repeatability-request-id repeatability-first-sent".split()
)
# Cookies of balancers, and of guards against bots. docs/fields.md has each with its source. Their values have nothing
# in which another reader could find a second cookie.
_OF_BALANCERS: Final = re.compile(
    rb"(?:AWSALB|AWSALBCORS|AWSALBTG.*|AWSALBAPP-.*|AWSELB.*|aws-waf-token|ARRAffinity.*|ApplicationGatewayAffinity.*"
    rb"|ASLBSA.*|GCLB|GCILB|__cf_bm|__cflb|__cfruid|_cfuvid|cf_clearance|SERVERID|lb|INGRESSCOOKIE|BIGipServer.*"
    rb"|visid_incap_.*|incap_ses_.*|nlbi_.*|_abck|ak_bmsc|bm_mi|bm_sv|bm_sz|datadome|acw_tc|DO-LB|NB_SRVID"
    rb"|X-Oracle-BMC-LBS-Route|__VCAP_ID__|heroku-session-affinity)".replace(b".*", rb"[\w.~-]*")
    + rb'=("?)[!#-+\--:<-\[\]-~]*\1'
)
_QUOTED: Final = re.compile(rb'[^"=\\]*="[^"\\]*"')  # a cookie whose value is between quotes, for every reader
_CREDENTIALS: Final = (b"authorization", b"cookie")  # the first that is there has the rate limit
_OF_ONE_TOKEN: Final = (b"bearer", b"basic")  # schemes: servers read no word behind their token
# ":" in base 64, and what programs write that have no token.
_NO_TOKEN: Final = re.compile(
    rb"(?:bearer(?:[ \t]+(?:undefined|null|none))?|basic(?:[ \t]+Og==)?|dpop|token|apikey)?", re.IGNORECASE
)
# Fields that prove, or pay for, a single request (RFC 9449, RFC 9421, RFC 9635, oauth2-proxy, x402), and schemes of
# `Authorization` that do, draft-ryan-httpauth-payment included; so does a value with a parameter that only they have.
_PROOFS: Final = (
    "DPoP", "Signature", "Signature-Input", "Detached-JWS", "GAP-Signature", "X-PAYMENT", "PAYMENT-SIGNATURE",
)  # fmt: skip
_PROOFS_BY_NAME: Final = {name.lower().encode(): name for name in _PROOFS}
_PROVING: Final = frozenset(b"digest hawk mac signature sharedkey sharedkeylite oss privatetoken payment".split())
_PROVING_PARAMETER: Final = re.compile(rb"[\s,;&](?:oauth_)?(?:signature|nonce|mac)\s*=", re.IGNORECASE)
_NETWORK_BYTES: Final = 8  # of an IPv6 address: one customer has all 2**64 behind them


class Who(NamedTuple):
    """Who asks. Equal identities are one caller."""

    identity: bytes  # a digest of all fields that tell who asks
    kin: bytes = b""  # the same without `_CREDENTIALS`: renewed ones make another identity, and no other kin
    has_credentials: bool = False  # so that one identity is one caller in every session


class ServerKey(NamedTuple):
    """The server of an upstream. A reload to another one makes another key: what is under way at the one before can
    write nothing of the new one.
    """

    upstream: str
    number: int = 0


class Key(NamedTuple):
    """The key of a session. It has digests, because clients and servers choose the length of the values."""

    server: ServerKey
    target: bytes
    session: bytes  # empty where there is no `Mcp-Session-Id`
    identity: bytes
    kin: bytes = b""  # as in `Who`; it follows from the identity, as does the next
    has_credentials: bool = False

    @classmethod
    def of(cls, server: ServerKey, target: bytes, session_id: bytes, who: Who) -> "Key":
        return cls(server, _digest(target), session_id and _digest(session_id), *who)

    @property
    def upstream(self) -> str:
        return self.server.upstream

    @property
    def of_all(self) -> tuple[ServerKey, bytes, bytes]:
        """The part of the key that all identities share."""
        return self[:3]


class Caller(NamedTuple):
    """What must be known of who asks for a list."""

    key: Key  # of his session
    is_served: bool = True  # his lists may be filtered here (DESIGN 3.9, 3.11)
    filter: str | None = None  # the criteria beside the message, for a list that has none of its own
    asks_first: bytes = b""  # for what the server may refuse him though it accepts the gateway's own requests (5.1)
    proof: str = ""  # the header field that proves one request, so that none can be made in his name


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def is_of_one_message(name: bytes) -> bool:
    """Whether a field, whose name is in lower case, says something of one message alone."""
    return name in _OF_ONE_MESSAGE or name.startswith(_OF_ONE_MESSAGE_BEGIN)


def _read(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The fields, names in lower case. `Cookie` lacks the cookies of balancers; if none is left it is not there.

    It keeps all if it has a quote of another kind: to some readers a semicolon between quotes ends no cookie.
    """
    for name, value in headers:
        low = name.lower()
        if low == b"cookie":
            pairs = [pair.strip(b" \t") for pair in value.split(b";")]
            if all(b'"' not in pair or _QUOTED.fullmatch(pair) for pair in pairs):
                value = b"; ".join(pair for pair in pairs if not _OF_BALANCERS.fullmatch(pair))
        if value or low != b"cookie":
            yield low, value


def telling(headers: Iterable[tuple[bytes, bytes]], only: Iterable[str] | None) -> list[tuple[bytes, bytes]]:
    """The fields that can carry an identity, names in lower case: those named in `only`, else all that can."""
    if only is not None:
        named = {name.lower().encode() for name in only}
        return [field for field in _read(headers) if field[0] in named]
    return [
        field
        for field in _read(headers)
        if field[0] not in _NO_IDENTITY and not field[0].startswith(_OF_ONE_MESSAGE_BEGIN)
    ]


def who(headers: Iterable[tuple[bytes, bytes]], only: Iterable[str] | None) -> Who:
    """Who asks, by the fields that tell it, as `telling` has them. Those in `only` are credentials by their choice."""
    fields = sorted(telling(headers, only), key=itemgetter(0))  # the order of repeated fields may matter
    kin = [field for field in fields if field[0] not in _CREDENTIALS]
    has_credentials = any(_says_who(*f) for f in fields if only is not None or f[0] in _CREDENTIALS)
    # The names too: after a reload of `identity_headers` equal fields may be those of others.
    by = b"" if only is None else ",".join(sorted({name.lower() for name in only})).encode()
    return Who(_digest_of(by, fields), _digest_of(by, kin), has_credentials)


def _says_who(name: bytes, value: bytes) -> bool:
    """Whether a field of `telling` says who asks. One that is empty is everybody's, as a scheme without a token is, or
    cookies without values.
    """
    if name == b"authorization":
        return not _NO_TOKEN.fullmatch(value.strip())
    pairs = [pair.partition(b"=") for pair in value.split(b";")] if name == b"cookie" else [(value, b"", b"")]
    return any((told if separator else only).strip(b' \t"') for only, separator, told in pairs)


def _digest_of(by: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return _digest(b"".join([by, *(b"%d:%b%d:%b" % (len(name), name, len(value), value) for name, value in fields)]))


def proof(names: Container[bytes], authorizations: Iterable[bytes]) -> str:
    """The field that proves this request and no other, of fields in lower case; empty if there is none (DESIGN 5.9)."""
    for name, shown in _PROOFS_BY_NAME.items():
        if name in names:
            return shown
    return "Authorization" if any(map(_proves, authorizations)) else ""


def _proves(value: bytes) -> bool:
    """Whether a value of `Authorization` holds for one request: it signs it, or has a number that serves once."""
    scheme = value.split(None, 1)[0].lower() if value.strip() else b""
    if scheme in _OF_ONE_TOKEN:
        return False
    is_one = scheme in _PROVING or scheme.startswith((b"aws", b"goog")) or b"hmac" in scheme
    return is_one or _PROVING_PARAMETER.search(value) is not None


def rate_limit_key(
    headers: Iterable[tuple[bytes, bytes]], identity_headers: Iterable[str] | None, address: str
) -> bytes:
    """A digest of who is limited for a request: its identity if the operator says what makes one (DESIGN 8.9).

    Else the first that is there of `Authorization` and `Cookie`. Else its connection's `address`; so for a credential
    that stands there twice: servers read one of them, and a client can invent the other. So for an `Authorization` that
    is another for each request.
    """
    said = ((n, value) for n, value in _read(headers) if n not in _CREDENTIALS or _says_who(n, value))
    fields = [(name, _as_read(name, value)) for name, value in said]
    names = [name.decode("latin-1") for name, _ in fields]
    credentials = [name.decode() for name in _CREDENTIALS]
    first = [name for name in credentials if name in names][:1]
    only = first if identity_headers is None else [name.lower() for name in identity_headers]
    is_doubled = any(name in credentials and names.count(name) > 1 for name in only)
    is_new = "authorization" in only and any(name == b"authorization" and _proves(value) for name, value in fields)
    if is_doubled or is_new or (identity_headers is None and not only):
        return _digest(network(address))
    return who(fields, only).identity


def _as_read(name: bytes, value: bytes) -> bytes:
    """A value as all servers read it that take it: with other white space or another case it is the same credential."""
    words = value.split()
    if name == b"authorization" and words:
        words[0] = words[0].lower()
        words = words[:2] if words[0] in _OF_ONE_TOKEN else words
    return b" ".join(words)


def network(address: str) -> bytes:
    """An IPv4 address, the network of an IPv6 address, or the text itself (a Unix socket)."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address.encode()
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).packed[:_NETWORK_BYTES]  # all of an IPv4 address


STDIO: Final = Key.of(ServerKey("stdio"), b"", b"", Who(b""))  # one process is one session and one identity
