"""Who asks, by the header fields of a request (DESIGN 5.9, 7.2), and what holds for one message alone."""

from itertools import product

import pytest

from gateway import caller_identity as module
from gateway.caller_identity import is_of_one_message, proof, rate_limit_key, who
from gateway.http.header_fields import Headers
from tests.fields import COOKIES, IDS, OF_ONE, STANDING


def example(name: bytes) -> bytes:
    return name.replace(b"*", b"anything")


def test_the_tables_of_the_document_are_those_of_the_code() -> None:
    assert {*STANDING, *IDS} == module._NO_IDENTITY - module._OF_ONE_MESSAGE
    patterns = {name for name in OF_ONE if name.endswith(b"*")}
    assert {name.rstrip(b"*") for name in patterns} == {*module._OF_ONE_MESSAGE_BEGIN}
    assert {*OF_ONE} - patterns == module._OF_ONE_MESSAGE
    for names in (STANDING, OF_ONE, IDS):
        assert len(names) == len({*names}), "a field stands in a table twice"


@pytest.mark.parametrize("name", [*STANDING, *OF_ONE, *IDS], ids=bytes.decode)
def test_a_field_of_the_tables_tells_nobody_who_asks(name: bytes) -> None:
    spellings = {example(name), example(name).upper(), example(name).title()}
    base = [(b"Authorization", b"Bearer t"), (b"X-Tenant", b"1")]
    plain = who(base, None)
    assert {who([*base, (spelled, value)], None) for spelled in spellings for value in (b"1", b"2")} == {plain}
    assert is_of_one_message(example(name)) is (name in OF_ONE)


COUNTS = b"""
    authorization cookie host origin x-tenant x-api-key x-unknown forwarded x-forwarded-for x-real-ip true-client-ip
    cf-connecting-ip fastly-client-ip x-azure-clientip cloudfront-viewer-address fly-client-ip
    x-forwarded-user x-forwarded-client-cert x-amzn-oidc-data x-goog-iap-jwt-assertion cf-access-jwt-assertion
    correlation-context jaeger-baggage sw8-correlation uberctx-user
    x-content-type my-content-id dpop signature contented iffy x-if-match mcp-tenant x-request-id-of-user""".split()


@pytest.mark.parametrize("name", COUNTS, ids=bytes.decode)
def test_any_other_field_counts(name: bytes) -> None:
    assert len({who([(name, value)], None) for value in (b"1", b"2")} | {who([], None)}) == 3


def test_what_the_operator_names_counts_whatever_it_is() -> None:
    named = ["CF-Ray", "Idempotency-Key"]
    for name in (b"cf-ray", b"IDEMPOTENCY-KEY"):
        assert who([(name, b"1")], named) != who([(name, b"2")], named)
    assert who([(b"Authorization", b"1")], named) == who([], named)


# ---- cookies of balancers ----

LOGGED_IN = [(b"Cookie", b"sid=ada; theme=dark")]


@pytest.mark.parametrize("name", COOKIES, ids=bytes.decode)
@pytest.mark.parametrize("only", [None, ["Cookie"]])
def test_a_cookie_of_the_table_tells_nobody_who_asks(name: bytes, only: list[str] | None) -> None:
    ways = [b"%b; sid=ada; theme=dark", b"sid=ada; %b; theme=dark", b"sid=ada; theme=dark; %b"]
    ways += [b"sid=ada;%b; theme=dark"]
    for value in (b"", b"1", b"aB+/9=|~-_.%3A:!'*()[]{}@?<>`#$&^", b'"aB+/9="'):
        pair = b"%b=%b" % (example(name), value)
        ways_of_one = [[(b"cookie", way % pair)] for way in ways]
        ways_of_one += [[*LOGGED_IN, (b"COOKIE", pair)], [(b"Cookie", pair + b"; " + pair), *LOGGED_IN]]
        assert {who(fields, only) for fields in ways_of_one} == {who(LOGGED_IN, only)}
        assert {rate_limit_key(fields, only, "::1") for fields in ways_of_one} == {
            rate_limit_key(LOGGED_IN, only, "::1")
        }
        alone = [(b"Cookie", pair)]
        assert who(alone, only) == who([], only) and not who(alone, only).has_credentials
        assert rate_limit_key(alone, only, "::1") == rate_limit_key([], only, "::1")


def test_the_cookies_of_the_document_are_those_of_the_code() -> None:
    said = module._OF_BALANCERS.pattern.partition(b"(?:")[2].partition(b")=")[0]
    assert {name.replace(rb"[\w.~-]*", b"*") for name in said.split(b"|")} == {*COOKIES}
    assert len(COOKIES) == len({*COOKIES})


HIDES = [
    *(b"AWSALB", b"awsalb=%d", b"XAWSALB=%d", b"AWSALBx=%d", b"lb2=%d", b"lb=1,sid=%d", b'lb="%d', b'lb="1; sid=%d"'),
    *(b"lb=1 sid=%d", b"lb=1\tsid=%d", b"lb=\\%d", b"lb =%d", b"lb=\x00%d", b"lb=\xe9%d", b"AWSELB sid=%d"),
    *(b'sid="a; lb=%d"', b'"lb=%d', b'lb="1" %d', b'lb="1""%d"', b'sid="a\\"; lb=%d; b="', b"ARRAffinity,a=%d"),
    *(b"=%d", b"%d", b"NSC_AAAC=%d", b"lb=\x7f%d", b"$lb=%d", b"lb:%d", b"lb=1\n; sid=%d"),
]  # fmt: skip


@pytest.mark.parametrize("value", HIDES)
def test_nothing_hides_behind_the_name_of_a_balancers_cookie(value: bytes) -> None:
    """What another reader could take for a cookie of another name counts, and so does a name that is only near."""
    values = [value.replace(b"%d", number) for number in (b"1", b"2")] if b"%d" in value else [value]
    callers = {who(fields, None) for v in values for fields in ([(b"Cookie", v)], [(b"Cookie", b"sid=ada; " + v)])}
    assert len(callers | {who([], None), who([(b"Cookie", b"sid=ada")], None)}) == 2 * len(values) + 2


@pytest.mark.parametrize("value", [b"sid=ada;", b"; sid=ada", b";", b"sid=ada;;", b"a", b"=", b"sid=ada; sid=bob"])
def test_a_cookie_counts_as_it_came_if_it_has_none_of_a_balancer(value: bytes) -> None:
    plain = [(b"Cookie", b"sid=ada")]
    assert who([(b"Cookie", value)], None) not in (who(plain, None), who([], None))
    assert who([(b"Cookie", b"")], None) == who([], None)


def test_renewed_credentials_are_another_identity_of_one_kin() -> None:
    callers = [who([(name, value)], None) for name in (b"Authorization", b"Cookie") for value in (b"a=1", b"a=2")]
    assert len({caller.identity for caller in callers}) == 4 and len({caller.kin for caller in callers}) == 1


# ---- proofs of one request ----

PROVES = [
    *(b"DPoP: eyJ0", b"dpop: eyJ0", b"Signature: sig1=:YWJj:", b"Signature-Input: sig1=()", b"Detached-JWS: eyJ0"),
    *(b"GAP-Signature: sha1 aGk=", b"X-PAYMENT: e30=", b"PAYMENT-SIGNATURE: e30="),
    b"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/20261123/eu/s3/aws4_request, SignedHeaders=host, Signature=fe5f",
    *(b"Authorization: AWS4-ECDSA-P256-SHA256 Credential=a, Signature=1", b"authorization: aws4-hmac-sha256 x"),
    *(b"Authorization: AWS AKIA:c2ln", b"Authorization: GOOG4-RSA-SHA256 Credential=a, Signature=b"),
    *(b"Authorization: TC3-HMAC-SHA256 Credential=a, Signature=b", b"Authorization: SharedKey acc:c2ln"),
    *(b'Authorization: Signature keyId="a",signature="b"', b'Authorization:  \tHawk id="a", nonce="b", mac="c"'),
    *(b'Authorization: Digest username="a", nonce="b", response="c"', b"Authorization: HMAC-SHA256 a&Signature=b"),
    *(b'Authorization: OAuth oauth_nonce="a", oauth_signature="b"', b"Authorization: EG1-X a=1;nonce=2;signature=3"),
    *(b"Authorization: PrivateToken token=abc", b"Authorization: Payment eyJ0"),
]  # fmt: skip
STANDS = [
    *(b"Authorization: Bearer eyJ0", b"Authorization: bearer signature=1", b"Authorization: Basic YTpi"),
    *(b"Authorization: DPoP eyJ0", b"Authorization: Token abc", b"Authorization: OAuth abc"),
    *(b'Authorization: Macaroon root="a"', b"Authorization: GenieKey hawk", b"Authorization: digestible x"),
    b"Authorization: ApiKey a",
    *(b"Authorization:", b"Authorization: x", b"Cookie: signature=1; nonce=2", b"X-Signature-Version: 1"),
    *(b"Authorization: Custom assignature=1", b"Negotiate: x", b"Proxy-Authorization: Digest nonce=1"),
]


def proof_in(*lines: bytes) -> str:
    headers = Headers((name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines))
    return proof(headers.by_name, headers.all(b"authorization"))


@pytest.mark.parametrize("line", PROVES, ids=lambda line: line.decode()[:40])
def test_a_field_that_holds_for_one_request_is_a_proof(line: bytes) -> None:
    for lines in ([line], [b"Authorization: Bearer t", line], [line, b"Authorization: Basic a"]):
        assert proof_in(*lines).lower() == line.partition(b":")[0].decode().lower()


@pytest.mark.parametrize("line", STANDS, ids=lambda line: line.decode()[:40])
def test_a_credential_that_holds_for_all_requests_is_none(line: bytes) -> None:
    assert proof_in(b"Host: x", line) == ""


def test_signatures_of_single_requests_fill_no_bucket_of_their_own() -> None:
    """Each would be another client, and the rate would hold for none."""
    signed = [[(b"Authorization", b"AWS4-HMAC-SHA256 Signature=%d" % n)] for n in range(2)]
    for named in (None, ["Authorization"]):
        assert len({rate_limit_key(fields, named, "10.0.0.1") for fields in signed}) == 1
    assert rate_limit_key(signed[0], None, "10.0.0.1") != rate_limit_key(signed[0], None, "10.0.0.2")


EMPTY_TOKENS = [
    *(b"", b" ", b"Bearer", b"bearer ", b"Bearer undefined", b"Bearer null", b"Basic", b"Basic Og==", b"DPoP"),
    *(b"Token", b"ApiKey"),
]
EMPTY_COOKIES = [b"", b";", b"; ;", b"sid=", b'sid=""', b"sid=; other= "]
TOKENS = [b"Bearer t", b"Basic OTo=", b"s3cret", b"Token t", b"Bearer , a", b"Basic Og==t"]
SOME_COOKIES = [b"sid=1", b"sid", b"=1", b"a=; b=1", b"sid===", b'sid="1"']
NONE = [*product([b"Authorization"], EMPTY_TOKENS), *product([b"Cookie"], EMPTY_COOKIES)]
SOME = [*product([b"Authorization"], TOKENS), *product([b"Cookie"], SOME_COOKIES)]


@pytest.mark.parametrize("field", NONE)
@pytest.mark.parametrize("only", [None, ["Authorization", "Cookie"]])
def test_an_empty_credential_is_none(field: tuple[bytes, bytes], only: list[str] | None) -> None:
    """Callers who sent one shared their tasks, and a bucket of the rate limit (DESIGN 8.9, 8.16)."""
    assert not who([field], only).has_credentials
    if only is None:
        assert rate_limit_key([field], None, "192.0.2.1") == rate_limit_key([], None, "192.0.2.1")
        token = (b"Authorization", b"Bearer t"), (b"Cookie", b"sid=1")
        for other in (other for other in token if other[0] != field[0]):
            assert who([field, other], None).has_credentials
            assert rate_limit_key([field, other], None, "") == rate_limit_key([other], None, "")
    assert not who([(b"X-User", b" ")], ["X-User"]).has_credentials


@pytest.mark.parametrize("field", SOME)
def test_any_other_credential_is_one(field: tuple[bytes, bytes]) -> None:
    assert who([field], None).has_credentials
    assert rate_limit_key([field], None, "192.0.2.1") != rate_limit_key([], None, "192.0.2.1")
