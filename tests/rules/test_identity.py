"""Who asks, by the header fields of a request (DESIGN 5.9, 7.2), and what holds for one message alone."""

import pytest

from gateway import caller_identity as module
from gateway.caller_identity import is_of_one_message, proof, rate_limit_key, who
from gateway.http.header_fields import Headers
from tests.fields import IDS, OF_ONE, STANDING


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
    *(
        b"Authorization: DPoP eyJ0",
        b"Authorization: Token abc",
        b"Authorization: OAuth abc",
        b"Authorization: ApiKey a",
    ),
    *(b'Authorization: Macaroon root="a"', b"Authorization: GenieKey hawk", b"Authorization: digestible x"),
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
