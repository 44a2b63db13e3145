"""The response for an error."""

from gateway.downstream.exchange import Exchange
from gateway.errors import GatewayError, UpstreamRefused, UpstreamTimeout
from gateway.http.fields import Headers
from gateway.mcp import jsonrpc
from gateway.relay.caller import HttpCaller
from gateway.relay.pump import JSON


def respond(exchange: Exchange, error: GatewayError, caller: HttpCaller | None, raw_id: bytes) -> None:
    """Make a response of an error. Where a response has begun, cut the connection instead."""
    response = exchange.response
    if caller is not None and isinstance(error, UpstreamTimeout):
        caller.pool.state.silent(str(error))  # the connection does not see the limits of a crawl and of an upload
    if response.started:
        response.status = error.status  # for the metrics: the status that went out promised a whole answer
    elif isinstance(error, UpstreamRefused):
        body, answered = error.body, jsonrpc.parse(error.body)
        if answered is not None and answered.is_strict and bytes(answered.id) == error.crawl_id:
            body, response.is_edited = jsonrpc.replace(body, ("id",), raw_id), True
        headers = Headers(error.headers).end_to_end()
        if caller is not None:
            headers = caller.moved(error.status, headers)
        headers = headers.without(b"transfer-encoding", b"trailer").with_value(b"content-length", b"%d" % len(body))
        response.begin(error.status, error.reason, headers, "length")  # it is the upstream's, and gains no `Date`
        response.send(body)
        response.end()
    else:
        fields = [(b"Content-Type", JSON), *error.fields, *(() if caller is None else caller.cors)]
        response.respond(error.status, error.reason, fields, error.message(raw_id))
