"""For operators: what they see of the gateway. The rooms that relay and index do not know it.

access_log        the record of each request: metrics, a line of the log and of the audit, a row of the page
metrics           what is counted
traces            spans of requests, off unless configured
log_format        how log lines are written
admin_listener    the listener for health checks, metrics and the page
status_page       the page for people, and what it shows
recent_failures   the last requests, failures and queries, and why requests fail, for the page
recent_rates      what the last minutes were like, requests and tasks, for the page
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gateway.config import Config, ConfigError, StdioConfig

if TYPE_CHECKING:
    from gateway.operate.access_log import AccessLog
    from gateway.operate.metrics import Metrics


def observers(config: Config | StdioConfig, ending: AsyncExitStack) -> "tuple[Metrics, Callable[..., AccessLog]]":
    """What counts and what logs; both make spans too, where that is configured, until `ending`. Raises ConfigError."""
    from gateway.operate.access_log import AccessLog
    from gateway.operate.metrics import Metrics

    if config.traces is None:
        return Metrics(), AccessLog
    try:
        from gateway.operate.traces import TracedAccessLog, TracedMetrics, Tracing

        tracing = Tracing(config.traces.endpoint)
    except ImportError as error:
        raise ConfigError(f"traces: its packages are missing; install taskgate with the extra otel: {error}") from None
    except ValueError as error:
        raise ConfigError(f"traces: OpenTelemetry refuses a variable OTEL_*: {error}") from None
    ending.push_async_callback(tracing.close)
    return TracedMetrics(tracing.tracer), TracedAccessLog
