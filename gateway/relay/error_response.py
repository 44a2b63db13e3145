"""The response for an error."""

import logging

from gateway.downstream.exchange import Exchange
from gateway.errors import GatewayError, Internal, UpstreamRefused, UpstreamTimeout, shown
from gateway.http.header_fields import JSON, Headers
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message
from gateway.relay.http_caller import HttpCaller

log = logging.getLogger("taskgate.request")


def respond(exchange: Exchange, raised: Exception, caller: HttpCaller | None, message: Message | None) -> GatewayError:
    """Make a response of an error, and return it. Where a response has begun, cut the connection instead.

    It is called where `raised` is handled: an exception that is no GatewayError is a fault of the gateway itself.
    """
    response, raw_id = exchange.response, b"" if message is None else bytes(message.id)
    error = raised if isinstance(raised, GatewayError) else Internal()
    if error is not raised:
        path = exchange.request.target.partition(b"?")[0]  # a query may hold a token
        log.exception("a request could not be handled", extra={"target": shown(path.decode("latin-1"))})
    if caller is not None and isinstance(error, UpstreamTimeout):
        caller.pool.state.silent(str(error))  # the connection does not see the limits of a crawl and of an upload
    if response.started:
        response.status = error.status  # for the metrics: the status that went out promised a whole answer
    elif isinstance(error, UpstreamRefused):
        headers = Headers(error.headers).end_to_end()
        if caller is not None:
            headers = caller.moved(error.status, headers)
        body, answered = error.body, jsonrpc.parse(error.body)
        if answered is not None and answered.is_strict and bytes(answered.id) == error.crawl_id:
            body, response.is_edited = jsonrpc.replace(body, ("id",), raw_id), True
        headers = headers.without(b"transfer-encoding", b"trailer").with_value(b"content-length", b"%d" % len(body))
        response.begin(error.status, error.reason, headers, "length")  # it is the upstream's, and gains no `Date`
        response.send(body)
        response.end()
    else:
        fields = [(b"Content-Type", JSON), *error.fields, *(() if caller is None else caller.cors)]
        response.respond(error.status, error.reason, fields, error.message(raw_id))
    return error
