"""The command: how it reads its configuration, what --check says, and what SIGHUP does (DESIGN 8)."""

import asyncio
import http.client
import json
import logging
import os
import signal
from pathlib import Path

import pytest

from gateway.operate import log_format
from tests.forked import ran
from tests.launch import Gateways, Json, command, eventually, logged, ports, run, settings

ONE = "upstreams: [{name: a, url: 'http://a.example/mcp'}]\n"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# ---- names that are no UTF-8 ----


@pytest.mark.parametrize("lines", [log_format.JsonLines(), log_format.TextLines()])
def test_a_log_names_a_file_whose_name_is_no_utf_8(lines: logging.Formatter) -> None:
    record = logging.makeLogRecord({"msg": "not reloaded", "why": os.fsdecode(b"gate\xff.yaml"), "levelname": "ERROR"})
    assert "gate\\udcff.yaml" in lines.format(record)


def test_check_names_a_file_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gate\xff.yaml"))
    file.write_text(ONE)
    checked = run("--check", "--config", str(file), PYTHONIOENCODING="utf-8:strict")  # as in most locales
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "gate\\udcff.yaml: valid" in checked.stdout


# ---- --check ----


def test_check_reads_standard_input_and_the_environment() -> None:
    text = ONE + "listen: ${GATE_ADDRESS}\n"
    checked = ran("--check", "--config", "-", GATE_ADDRESS="127.0.0.1:1234", text=text)
    assert checked.returncode == 0
    assert checked.stdout.splitlines()[1] == "  http://127.0.0.1:1234/mcp leads to http://a.example/mcp (a)"
    refused = ran("--check", "--config", "-", GATE_ADDRESS="hunter2", text=text)
    assert refused.returncode == 2 and "hunter2" not in refused.stderr
    assert refused.stderr.startswith("taskgate: standard input:2: listen: expected HOST:PORT")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("index: {page_size: 7}\n", None),
        ("listen: 127.0.0.1:1\n", "listen: listen cannot change while the gateway runs"),
        ("guards: {own_tasks: true}\n", "guards.own_tasks cannot change while the gateway runs"),
    ],
)
def test_check_against_the_file_in_force_says_what_a_reload_cannot_change(
    tmp_path: Path, line: str, words: str | None
) -> None:
    new, in_force = write(tmp_path / "new.yaml", ONE + line), write(tmp_path / "in_force.yaml", ONE)
    checked = ran("--check", "--config", new)
    assert checked.returncode == 0
    assert ("guards.own_tasks without a store" in checked.stdout) is ("own_tasks" in line)
    against = ran("--check", "--config", new, "--against", in_force)
    assert against.returncode == (0 if words is None else 2)
    assert words is None or (against.stderr.startswith(f"taskgate: {new}:2: ") and words in against.stderr)


def test_a_copy_of_the_file_elsewhere_names_the_same_files(tmp_path: Path) -> None:
    """systemd's unit keeps a copy in /run/taskgate: relative names in it are not relative to that folder."""
    for folder in ("etc", "run"):
        (tmp_path / folder).mkdir()
    for name in ("cert.pem", "key.pem"):
        (tmp_path / "etc" / name).touch()
    text = ONE + "tls: {certificate: cert.pem, key: key.pem}\n"
    new, in_force = write(tmp_path / "etc/gate.yaml", text), write(tmp_path / "run/gate.yaml", text)
    checked = ran("--check", "--config", new, "--against", in_force)
    assert "cannot change" not in checked.stderr and "No such file" not in checked.stderr


def test_flags_that_do_not_go_together(tmp_path: Path) -> None:
    file = write(tmp_path / "gate.yaml", ONE)
    for flags in (["--config", file, "--against", file], ["--check", "--upstream", "http://a/", "--against", file]):
        refused = ran(*flags)
        assert refused.returncode == 2 and "--against goes with --check and --config" in refused.stderr
    assert ran("--upstream", "http://a/", "--log-level", "loud").returncode == 2
    assert ran("demo", "--log-level", "info").returncode == 2


# ---- a gateway that runs ----


@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("error", 0)])
async def test_log_level_goes_before_the_files(tmp_path: Path, level: str, lines: int) -> None:
    with ports() as (listen, admin):
        config = settings(listen, admin, 1, {"log": {"level": "debug"}})
        file = write(tmp_path / "gate.yaml", json.dumps(config))

        async def serves() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", listen)
            except ConnectionError:
                return False
            writer.close()
            return True

        async with command("--config", file, "--log-level", level) as process:
            await eventually(serves, "a gateway that serves")
            process.terminate()
            said, _ = await process.communicate()
        assert (said.count(b'"stopped"'), said.count(b'"debug"')) == (lines, 0)


async def test_a_gateway_by_flags_says_where_most_servers_are_and_sighup_does_nothing(gateways: Gateways) -> None:
    """It killed the process."""
    config: Json = {"upstreams": [{"name": "upstream", "url": "http://127.0.0.1:1"}]}
    with ports() as (listen, admin):
        config |= {"listen": f"127.0.0.1:{listen}", "admin": {"listen": f"127.0.0.1:{admin}"}}
        with gateways.starting(config, by_flags=True) as gateway:
            gateway.wait()
            assert "most servers are at /mcp" in (await logged(gateway, '"serving"'))["hint"]
            gateway.signal(signal.SIGHUP)
            line = await logged(gateway, "SIGHUP")
            assert (line["level"], line["message"][:20]) == ("info", "SIGHUP does nothing:")
            assert gateway.get("/readyz")[0] == 200


async def test_a_reload_changes_how_is_logged(gateways: Gateways) -> None:
    with gateways.process(1, log={"level": "warning"}) as gateway:
        good = json.loads(gateway.file.read_text()) if gateway.file else {}
        gateway.renew({**good, "log": {"level": "info", "format": "text"}})
        await eventually(lambda: " reloaded upstreams=" in gateway.log, "the reload, in the format that it brings")


async def test_a_drain_takes_new_connections_for_its_delay(gateways: Gateways) -> None:
    """What Kubernetes needs: it goes on sending clients for a while."""
    with gateways.process(1, limits={"shutdown_delay": "4s"}) as gateway:
        gateway.signal(signal.SIGTERM)
        await eventually(lambda: gateway.get("/readyz")[0] == 503, "/readyz says no")
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=5)
        connection.request("GET", "/")
        assert connection.getresponse().status == 502
        connection.close()
        assert await gateway.exits() == 0
