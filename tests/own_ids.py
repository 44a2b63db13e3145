"""The ids of the gateway's own requests: integers from 2,000,000,000 on, of 31 bits."""

import re
from typing import Final

OWN: Final = re.compile(rb'"id": ?(2[01][0-9]{8})(?=[,}])')


def is_own(message_id: object) -> bool:
    return isinstance(message_id, int) and 2_000_000_000 <= message_id < 2**31
