"""HTTP: bytes to exchanges and back. stdio: bytes to lines and back.

This package knows `mcp`, `config`, `errors` and `identity`.

Towards clients:

    listener      all connections of clients: their number, their deadlines, the drain; what the process can keep
    handshakes    connections with TLS, up to the end of their handshake
    connection    one of them, and the states of its life
    exchange      one request and its response; the only writer of response heads
    http1         requests, read with llhttp
    door          who may come in: `Host` and `Origin`
    cors          what a browser may read of an answer of the gateway's own

Towards upstreams:

    pool          the connections to one upstream, and the exchanges on them
    pools         ... and the pools of all upstreams, through reloads; probes of what is down, and health checks
    upstream      one of them: the request out, the response in
    response      responses, read with llhttp
    dial          a new connection: addresses in turn, Unix sockets, TLS
    certificates  when certificates end
    state         the state of an upstream: not asked yet, up or down
    channel       requests of the gateway's own
    addresses     the upstream's own addresses, moved to the gateway's

Over standard input and output:

    child         the server's process
    pipes         standard streams, read and written
    lines         lines, whole and in pieces
    stdio         requests and answers of the gateway's own; which request each response answers

Between them:

    routes        the way of a request: which upstream, which target, which header fields
    caller        the client of a request: its upstream, session and identity; what it gets for a filtered `tasks/list`
    drift         sessions in which each request is another caller
    relay         the byte pump
    taps          the messages that pass, inspected
    codings       which content codings can be read, and how
    headers       header fields
    remembered    heads that came before, and what follows from them
    wire          the base of all connections
    chunks        bodies in chunks, read with llhttp
    body          a body on its way, and what ends it
    buffers       the count of all bytes that are held, and its limit
    said          lines of the log, written once a second at most
    turns         large reads share the turns of the event loop
"""
