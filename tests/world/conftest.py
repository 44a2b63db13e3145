"""What these tests share."""

import pytest

from tests.forked import fork_of
from tests.launch import Gateways


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Gateways:
    return Gateways(tmp_path_factory.mktemp("world"), fork_of)  # most of a start is imports
