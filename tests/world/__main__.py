"""`python -m tests.world` prints the table of servers of docs/clients.md."""

import asyncio
import tempfile
from pathlib import Path

from tests.launch import Gateways
from tests.world.costs import table

with tempfile.TemporaryDirectory() as directory:
    print(asyncio.run(table(Gateways(Path(directory)))))
