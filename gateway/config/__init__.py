"""The configuration: from YAML text and the environment, or the command line's flags, to frozen structs.

The structs of `settings` are the specification: the type of a field carries the reader of its values.
`yaml_document` walks the YAML and the structs together, and remembers where each value stands. It knows no other room.

settings        the sections, their keys and defaults, and values that are wrong only together
value_readers   the readers of values: addresses, durations, sizes, names
yaml_document   a YAML document, or the command line's flags: values are read, each fault is noted with its location
"""

from gateway.config.settings import (
    Config,
    GuardLimits,
    HealthCheck,
    IndexLimits,
    Limits,
    Log,
    StdioConfig,
    StdioLog,
    StoreSettings,
    Tls,
    Upstream,
    UpstreamTls,
)
from gateway.config.value_readers import LEVELS, Address, NamedFile, Url, bracketed
from gateway.config.yaml_document import ConfigError, StartError, for_upstream, load, load_stdio, parse

__all__ = [
    "LEVELS", "Address", "Config", "ConfigError", "GuardLimits", "HealthCheck", "IndexLimits", "Limits", "Log",
    "NamedFile", "StartError", "StdioConfig", "StdioLog", "StoreSettings", "Tls", "Upstream", "UpstreamTls", "Url",
    "bracketed", "for_upstream", "load", "load_stdio", "parse",
]  # fmt: skip
