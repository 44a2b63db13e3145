"""A memory limit for indexes that the container cannot keep is told at the start and by `--check`.

In: the files in which Linux shows the limits of control groups, written by the test. Out: a limit, and words.
"""

import sys
from pathlib import Path
from typing import Final

import pytest

from gateway import __main__ as command
from gateway.operate import memory
from tests.launch import Gateways, listening, port_of

MIB: Final = 1 << 20


def groups(folder: Path, own: str, limits: dict[str, str]) -> tuple[Path, Path]:
    """The root of the control groups, and the file that names those of the process."""
    for name, text in limits.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "own").write_text(own)
    return folder / "cgroup", folder / "own"


@pytest.mark.parametrize(
    ("own", "limits", "limit"),
    [
        ("0::/\n", {"memory.max": "536870912\n"}, 512 * MIB),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {}, None),
        ("", {"memory.max": "1\n"}, None),
        ("0::/a.slice/b.service\n", {"a.slice/memory.max": "4096\n", "a.slice/b.service/memory.max": "max\n"}, 4096),
        ("0::/a.slice/b.service\n", {"a.slice/memory.max": "max\n", "a.slice/b.service/memory.max": "8192\n"}, 8192),
        ("0::/outside/docker-1\n", {"memory.max": "4096\n"}, 4096),
        ("4:cpu,memory:/docker/1\n0::/\n", {"memory/memory.limit_in_bytes": "4096\n"}, 4096),
        ("4:memory:/d\n", {"memory/d/memory.limit_in_bytes": "4096\n", "memory/memory.limit_in_bytes": "9"}, 9),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 9223372036854771712),
        ("4:cpu:/\n", {"memory/memory.limit_in_bytes": "9\n"}, None),
    ],
)
def test_the_least_limit_of_all_groups_around_the_process_counts(
    tmp_path: Path, own: str, limits: dict[str, str], limit: int | None
) -> None:
    assert memory.limit_bytes(*groups(tmp_path, own, limits)) == limit


@pytest.fixture
def small_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of 512 MiB, as this process sees it."""
    root, own = groups(tmp_path, "0::/\n", {"memory.max": f"{512 * MIB}\n"})
    monkeypatch.setattr(memory.limit_bytes, "__defaults__", (root, own))


@pytest.mark.parametrize(("most", "warns"), [("1GiB", True), ("512MiB", True), ("256MiB", False)])
async def test_a_start_in_a_container_too_small_warns(
    gateways: Gateways, small_container: None, most: str, warns: bool
) -> None:
    with listening() as sock:
        async with gateways.in_process(port_of(sock), log={}, index={"memory_bytes_max": most}) as gateway:
            found = [line for line in gateway.lines() if "index.memory_bytes_max" in line["message"]]
            assert [line["level"] for line in found] == ["warning"] * warns


@pytest.mark.parametrize(("most", "warns"), [("1GiB", True), ("256MiB", False)])
def test_check_warns_too(
    small_container: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    most: str,
    warns: bool,
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"upstreams: [{{name: a, url: 'http://127.0.0.1:1/mcp'}}]\nindex: {{memory_bytes_max: {most}}}\n")
    monkeypatch.setattr(sys, "argv", ["taskgate", "--check", "--config", str(file)])
    command.main()
    said = capsys.readouterr()
    assert "valid" in said.out
    assert ("512 MiB" in said.err) == warns


@pytest.fixture
def gateways(tmp_path: Path) -> Gateways:
    return Gateways(tmp_path)
