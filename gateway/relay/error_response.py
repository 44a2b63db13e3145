"""The response for an error.

A client takes a status of 400 or above for a broken transport, and may end its session. So the one that posts a request
and reads the answer in the body gets the gateway's own errors there, with status 200 (DESIGN 5.8).
"""

import logging
from http import HTTPStatus

from gateway.downstream.exchange import Exchange
from gateway.errors import Ambiguous, GatewayError, Internal, UpstreamRefused, UpstreamTimeout, shown
from gateway.http.header_fields import JSON, Headers
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.relay.http_caller import HttpCaller

log = logging.getLogger("taskgate.request")


def respond(
    exchange: Exchange, raised: Exception, caller: HttpCaller | None, message: ClientMessage | None, is_relayed: bool
) -> GatewayError:
    """Make a response of an error, and return it. Where a response has begun, cut the connection instead.

    It is called where `raised` is handled: an exception that is no GatewayError is a fault of the gateway itself.
    """
    response, raw_id = exchange.response, b"" if message is None else message.id
    error = raised if isinstance(raised, GatewayError) else Internal()
    if error is not raised:
        path = exchange.request.head.target.partition(b"?")[0]  # a query may hold a token
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
        if answered is not None and answered.is_strict and bytes(answered.id) == b"%d" % error.crawl_id:
            body, response.is_edited = jsonrpc.replace(body, ("id",), raw_id), True
        headers = headers.without(b"transfer-encoding", b"trailer").with_value(b"content-length", b"%d" % len(body))
        response.begin(error.status, error.reason, headers, "length")  # it is the upstream's, and gains no `Date`
        response.send(body)
        response.end()
    else:
        fields = [(b"Content-Type", JSON), *(() if caller is None else caller.cors)]
        status = error.status
        if caller is not None and message is not None and _is_for_reader(error, exchange, caller, message, is_relayed):
            status = 200
        elif error.retry_after_s is not None:
            fields.append((b"Retry-After", b"%d" % error.retry_after_s))
        response.respond(status, HTTPStatus(status).phrase.encode(), fields, error.message(raw_id))
        response.status = error.status  # for log and metrics
    return error


def _is_for_reader(
    error: GatewayError, exchange: Exchange, caller: HttpCaller, message: ClientMessage, is_relayed: bool
) -> bool:
    """Whether who posted the request reads the error as its response, and the transport is whole.

    Nobody reads the body of a 200 over HTTP+SSE. What two readers read differently may be no request.
    """
    if isinstance(error, Ambiguous) or (is_relayed and error.status in (502, 504)) or caller.is_of_http_sse:
        return False
    return exchange.request.head.method == b"POST" and message.is_request and message.id != b"null"
