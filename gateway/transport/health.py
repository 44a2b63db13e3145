"""The health check of an upstream, off unless configured: a request for a page, again and again.

In: a pool of connections. Out: whether the upstream is up, noted in the pool. Always: one request at a time, each with
a time limit; a status below 500 counts as an answer.
"""

import asyncio
import logging

from gateway.config import HealthCheck
from gateway.errors import GatewayError
from gateway.transport.pool import Pool

log = logging.getLogger("taskgate.upstream")


async def watch(pool: Pool, check: HealthCheck) -> None:
    """Check for ever."""
    was_up = True
    while True:
        if pool.is_full:  # no place for a check: requests under way will tell
            await asyncio.sleep(check.interval)
            continue
        why = await _failure(pool, check)
        pool.up = why is None
        if pool.up != was_up:
            was_up = pool.up
            extra = {"upstream": pool.config.name}
            log.log(
                logging.INFO if was_up else logging.WARNING,
                "the upstream is up" if was_up else "the upstream is down",
                extra=extra if was_up else {**extra, "why": why},
            )
        await asyncio.sleep(check.interval)


async def _failure(pool: Pool, check: HealthCheck) -> str | None:
    """Why the check fails; None if it does not."""
    config = pool.config
    host = config.url.authority if config.host in ("upstream", "preserve") else config.host
    head = f"GET {check.path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nUser-Agent: taskgate\r\n\r\n".encode()
    try:
        async with asyncio.timeout(check.timeout), pool.call(b"GET") as call:
            response = await call.send_all(head, b"", check.timeout, again=True)
            while await response.body.read():
                pass
    except TimeoutError:
        return f"no whole answer within {check.timeout:g} s"
    except GatewayError as error:
        return str(error)
    return f"it answered {response.status}" if response.status >= 500 else None
