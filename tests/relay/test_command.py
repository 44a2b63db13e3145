"""The command: its configuration, --check, SIGHUP, the errors of the first hour, and how a process ends (DESIGN 8)."""

import asyncio
import json
import logging
import os
import signal
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from gateway.config import Address
from gateway.operate import log_format
from gateway.operate.admin_listener import why_not
from tests.certificates import signed
from tests.forked import ran
from tests.launch import Gateways, Json, eventually, logged, ports, run
from tests.relay.messages import call, filtered, notification, page, result, task
from tests.relay.rig import Rig, body, final, ids, own
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, stream

ONE = "upstreams: [{name: a, url: 'http://a.example/mcp'}]\n"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# ---- names that are no UTF-8 ----


def test_check_and_the_log_name_a_file_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gate\xff.yaml"))
    file.write_text(ONE)
    checked = run("--check", "--config", str(file), PYTHONIOENCODING="utf-8:strict")  # as in most locales
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "gate\\udcff.yaml: valid" in checked.stdout
    record = logging.makeLogRecord({"msg": "not reloaded", "why": os.fsdecode(b"gate\xff.yaml"), "levelname": "ERROR"})
    for is_text in (False, True):
        assert "gate\\udcff.yaml" in log_format.Lines(is_text).format(record)


# ---- --check ----


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


# ---- a gateway that runs ----


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
        assert (await gateway.relayed())[0] == 502
        assert await gateway.exits() == 0


# ---- the errors of the first hour: each says what is wrong and what to do, in words ----

URL = "http://127.0.0.1:3001/mcp"


def refused(*flags: str, text: str | None = None, **environment: str) -> str:
    """What standard error says: no traceback. The status is 1 if an address cannot be had, else 2."""
    ended = ran(*flags, text=text, **environment)
    assert ended.returncode == (1 if "cannot listen" in ended.stderr else 2), ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_file_and_an_upstream_together_are_an_error_wherever_they_come_from(tmp_path: Path) -> None:
    name = write(tmp_path / "gate.yaml", ONE)
    both = {
        "--config and --upstream": (["--config", name, "--upstream", URL], {}),
        "--config and TASKGATE_UPSTREAM": (["--config", name], {"TASKGATE_UPSTREAM": URL}),
        "TASKGATE_CONFIG and --upstream": (["--upstream", URL], {"TASKGATE_CONFIG": name}),
        "TASKGATE_CONFIG and TASKGATE_UPSTREAM": ([], {"TASKGATE_CONFIG": name, "TASKGATE_UPSTREAM": URL}),
    }
    for words, (flags, environment) in both.items():
        assert f"{words} are both given" in refused(*flags, **environment)
    assert "TASKGATE_LISTEN goes with --upstream" in refused("--config", name, TASKGATE_LISTEN="127.0.0.1:1")


def test_variables_stand_for_flags_and_a_flag_overrides_its_variable(tmp_path: Path) -> None:
    file = write(tmp_path / "gate.yaml", ONE)
    there = ran("--check", TASKGATE_CONFIG=file)
    assert (there.returncode, there.stdout.splitlines()[0]) == (0, f"{file}: valid")
    addresses = {"TASKGATE_LISTEN": "127.0.0.1:1234", "TASKGATE_ADMIN": "127.0.0.1:1235", "TASKGATE_CONFIG": ""}
    said = ran("--check", TASKGATE_UPSTREAM="http://127.0.0.1:1/x", **addresses).stdout
    assert "http://127.0.0.1:1234/x leads to http://127.0.0.1:1/x" in said
    said = ran("--check", "--upstream", URL, "--listen", "127.0.0.1:99", TASKGATE_UPSTREAM="no url", **addresses).stdout
    assert f"http://127.0.0.1:99/mcp leads to {URL}" in said
    assert "--upstream: expected http" in refused("--check", TASKGATE_UPSTREAM="no url")
    assert ran("demo", "--help", TASKGATE_UPSTREAM=URL).returncode == 0


def test_a_certificate_or_key_that_cannot_be_used_is_named_with_what_is_wrong_in_it(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    other, empty, locked = tmp_path / "other.pem", tmp_path / "empty.pem", tmp_path / "locked.pem"
    signed(cert, key)
    signed(tmp_path / "second.pem", other)
    empty.write_text("nothing\n")
    secret = generate_private_key(SECP256R1())
    locked.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    wrong = {
        f"tls.certificate cannot be used: {empty} has no PEM block": (empty, key),
        f"tls.key cannot be used: {empty} has no PEM block": (cert, empty),
        f"tls.key cannot be used: {other} is not that of the certificate in {cert}": (cert, other),
        f"tls.key cannot be used: {locked} is encrypted": (cert, locked),
    }
    for words, (one, two) in wrong.items():
        text = ONE + f"tls: {{certificate: {one}, key: {two}}}\n"
        assert words in refused("--check", "--config", "-", text=text)
    text = f"upstreams: [{{name: a, url: 'https://a.example/mcp', tls: {{ca: {empty}}}}}]\n"
    assert f"upstreams[0].tls.ca cannot be used: {empty}" in refused("--check", "--config", "-", text=text)


def test_a_port_below_1024_says_what_it_needs() -> None:
    """Root, and some containers, may listen on any port: so the words are made from the system's error here."""
    said = why_not("listen", Address("127.0.0.1", 80), PermissionError(13, "x"))
    assert said == (
        "cannot listen on 127.0.0.1:80: Permission denied; listen: below 1024 a port needs CAP_NET_BIND_SERVICE; "
        "choose one from 1024 on"
    )


async def test_the_first_line_of_the_log_says_where_clients_and_operators_go(gateways: Gateways) -> None:
    """The line about file descriptors came first, and was a warning though nobody had set the limit."""
    with gateways.process(1, descriptors=256, limits={"connections_max": 9999}) as gateway:
        assert (await logged(gateway, "limits.connections_max cannot be kept"))["level"] == "warning"
    with gateways.process(1, descriptors=256) as gateway:
        assert (await logged(gateway, "limits.connections_max cannot be kept"))["level"] == "info"
        first, second = gateway.lines()[:2]
        assert (first["message"], first["page"]) == ("serving", f"http://127.0.0.1:{gateway.admin}/")
        assert second["message"].startswith("limits.connections_max cannot be kept")
        assert "hint" not in first


# ---- how a process ends: what it lets finish, what it closes, and when ----

TASKS = [task("t-1"), task("t-2", "completed")]


async def draining(rig: Rig) -> None:
    """Send SIGTERM, and return once no connection is taken any more."""

    async def nobody_there() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.port)
        except OSError:
            return True
        writer.close()
        return False

    rig.gateway.signal(signal.SIGTERM)
    await eventually(nobody_there, "no new connections")


async def test_sigterm_lets_answers_finish_and_closes_streams(fresh_gateways: Gateways) -> None:
    """An answer says that its connection ends: else its client might send another request, and lose it."""
    async with own(fresh_gateways, limits={"drain_timeout": "1h"}) as rig:
        paths, get = ("/readyz", "/healthz"), request(fields=[b"Accept: text/event-stream"])
        assert [rig.gateway.get(path)[0] for path in paths] == [200, 200]
        one, peer = await rig.begin(post(call("tools/call")))
        filters, listing = await rig.begin(post(filtered()))
        asked_id = body(rig.upstream.requests[1])["id"]
        streamed, slow = await rig.begin(post(call("tools/call")))  # so the TypeScript SDK answers: it has an end
        await slow.send(stream() + chunk(event(notification("notifications/progress", progress=1))))
        await streamed.hears(b"progress")
        late, late_peer = await rig.begin(get)
        endless = [await rig.begin(get) for _ in range(2)]
        for client, side in endless:
            await side.send(stream() + chunk(event(b"1")))
            await client.hears(b"data: 1")
        await draining(rig)
        assert [(await asyncio.to_thread(rig.gateway.get, path))[0] for path in paths] == [503, 200]
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234")
        await one.hears(b"01234")
        await peer.send(b"56789")
        got = await one.response()
        assert (got.status, got.body, got.whole, got.value(b"connection")) == (200, b"0123456789", True, b"close")
        assert await one.ends() == "fin"
        told = event(notification("notifications/message", level="info", data="x"))
        await listing.send(stream() + chunk(told + event(result(asked_id, page(TASKS[:1], "c")))) + LAST_CHUNK)
        listing = await rig.upstream.request(7)
        await listing.send(answer(result(body(rig.upstream.requests[6])["id"], page(TASKS[1:]))))
        got = await filters.response()
        assert ids(final(got)) == ["t-1"]
        assert (got.value(b"content-type"), got.value(b"connection")) == (b"text/event-stream", b"close")
        await slow.send(chunk(event(result(1, {}))) + LAST_CHUNK)
        assert final(await streamed.response()) == result(1, {})
        for client in (one, filters, streamed):
            await client.close()
        await rig.gateway.becomes("connections", 3)
        assert [client.end for client, _ in endless] == ["open"] * 2
        await late_peer.send(stream() + chunk(event(b"1")))  # its head says that there is no end to wait for
        for end in (late, *(end for both in endless for end in both)):
            await end.ends()
        assert await rig.gateway.exits() == 0


@pytest.mark.parametrize("framing", [b"Content-Length: 10\r\n", b""], ids=["by its length", "by its end"])
async def test_sigterm_waits_no_longer_than_its_limit_and_what_it_cuts_does_not_look_whole(
    gateways: Gateways, framing: bytes
) -> None:
    """An answer that ends with its connection was once closed by FIN, as if it were whole."""
    async with own(gateways, limits={"drain_timeout": "500ms"}) as rig:
        one, peer = await rig.begin(post(call("tools/call")))
        await peer.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\nhalf")
        await one.hears(b"half")
        rig.gateway.signal(signal.SIGTERM)
        assert not (await one.response()).whole
        assert framing or one.end == "rst"
        assert await rig.gateway.exits() == 0


async def test_sigint_ends_as_sigterm_does(fresh_gateways: Gateways) -> None:
    async with own(fresh_gateways) as rig:
        rig.gateway.signal(signal.SIGINT)
        assert await rig.gateway.exits() == 0
