"""Certificates that have expired, or are not yet valid: what starts, what a reload takes, who is told (DESIGN 8.13)."""

import asyncio
import json
import shutil
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.certificates import Authority, signed
from tests.forked import ran
from tests.launch import Gateways, Json, eventually, listening, logged, port_of, settings
from tests.relay.http1 import Reader
from tests.relay.rig import Place, Rig, own, tls_client
from tests.relay.test_upstreams_as_they_are import tls_upstream
from tests.relay.wire import LAST_CHUNK, chunk, event, request, response, stream
from tests.upstream import fields_of

HOUR: Final = 1 / 24
INVALID: Final = {
    "expired": ((-1, -HOUR), "EXPIRED 1 h ago"),
    "not yet valid": ((2 * HOUR, 1), "NOT YET VALID for 2 h"),
}
"""From when to when, in days from now, and what is said of it."""


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "cert.pem", tmp_path / "key.pem"


def named(pair: tuple[Path, Path]) -> Json:
    return {"certificate": str(pair[0]), "key": str(pair[1])}


@pytest.mark.parametrize("what", INVALID)
@pytest.mark.parametrize("whose", ["the listener's", "shown to an upstream"])
def test_check_refuses_a_certificate_that_is_not_valid(
    tmp_path: Path, pair: tuple[Path, Path], what: str, whose: str
) -> None:
    days, words = INVALID[what]
    signed(*pair, days=days[1], begins_days=days[0])
    file, shown = tmp_path / "config.yaml", {"url": "https://127.0.0.1:1/mcp", "tls": named(pair)}
    changed = {"tls": named(pair)} if whose == "the listener's" else {"upstream": shown}
    file.write_text(json.dumps(settings(8080, 9090, 1, changed)))
    checked = ran("--check", "--config", str(file))
    key, hit = {
        "the listener's": ("tls", "clients cannot connect"),
        "shown to an upstream": ("upstreams[0].tls", "up may refuse it"),
    }[whose]
    assert (checked.returncode, checked.stdout) == (2, "")
    assert f"{key}.certificate: {pair[0]}: {words}: {hit}; renew it" in checked.stderr
    signed(*pair)
    assert ran("--check", "--config", str(file)).returncode == 0


async def validity(rig: Rig) -> tuple[float, float]:
    """From when to when the listener's certificate is valid, as metrics have it."""
    found, labels = await rig.gateway.metrics(), (("upstream", ""),)
    begins = found["taskgate_certificate_not_before_timestamp_seconds", labels]
    return begins, found["taskgate_certificate_expiry_timestamp_seconds", labels]


@pytest.mark.parametrize("what", INVALID)
async def test_a_reload_keeps_the_certificate_before_and_takes_over_the_rest(
    gateways: Gateways, pair: tuple[Path, Path], tmp_path: Path, what: str
) -> None:
    """A bad certificate changes nothing. The new files have the old names."""
    days, words = INVALID[what]
    signed(*pair)
    old = tmp_path / "old.pem"
    old.write_bytes(pair[0].read_bytes())
    changed: Json = {"log": {"level": "info"}, "tls": named(pair)}
    async with own(gateways, **changed) as rig:
        before = await validity(rig)
        pair[0].write_text("no certificate")
        rig.gateway.signal(signal.SIGHUP)
        assert (await logged(rig.gateway, "cannot be used"))["level"] == "error"
        signed(*pair, days=days[1], begins_days=days[0])
        rig.gateway.renew(rig.settings(**changed, allowed_hosts=["new.example"]))
        line = await logged(rig.gateway, "a certificate is not valid")
        assert line["why"] == f"{words}, and the one before stays in use"
        await logged(rig.gateway, '"reloaded"')
        assert await validity(rig) == before, "that of the certificate in use"

        async def is_renewed() -> bool:
            return (await validity(rig))[1] > before[1]

        async with tls_client(rig, str(old)) as (reader, writer):
            writer.write(request(host=b"new.example"))
            await (await rig.upstream.request()).send(response(b""))
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            signed(*pair, days=40_000)  # from 2050 on the instant has another form
            rig.gateway.signal(signal.SIGHUP)
            await eventually(is_renewed, "another reload")
            assert (await validity(rig))[1] == pytest.approx(time.time() + 40_000 * 86_400, abs=60)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(request(host=b"evil.example"))
            assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n", "what is open goes on"
        async with tls_client(rig, str(pair[0])):
            pass
        with pytest.raises(ssl.SSLError):
            async with tls_client(rig, str(old)):
                pass


async def test_one_that_is_valid_later_is_taken_where_none_is_valid_now(
    gateways: Gateways, pair: tuple[Path, Path]
) -> None:
    """Kept, the expired one would be in use when the other is valid: nobody sends another SIGHUP for that."""
    signed(*pair, days=-HOUR)
    changed: Json = {"log": {"level": "info"}, "tls": named(pair)}
    async with own(gateways, **changed) as rig:
        signed(*pair, begins_days=HOUR, days=10)
        rig.gateway.renew(rig.settings(**changed))
        await logged(rig.gateway, '"reloaded"')
        whys = [line["why"] for line in rig.gateway.lines() if "certificate" in line["message"]]
        assert [why.partition(" ")[0] for why in whys] == ["EXPIRED", "NOT"]
        begins, ends = await validity(rig)
        assert ends - begins == pytest.approx((10 - HOUR) * 86_400, abs=1)


def joined(*files: str) -> bytes:
    return b"".join(Path(file).read_bytes() for file in files)


@pytest.mark.parametrize("ends", [-HOUR, 1], ids=["kept", "renewed"])
@pytest.mark.parametrize("under", ["another name", "the same name", "link", "bundle"])
async def test_another_authority_is_trusted_whatever_becomes_of_the_certificate_and_the_one_before_no_more(
    gateways: Gateways, tmp_path: Path, under: str, ends: float
) -> None:
    """Where the certificate stayed, the new authorities were added to the old ones; or the whole context stayed."""
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path), Authority(tmp_path / "new")
    cert, key = old.certificate("gateway.internal")
    tls = {"ca": old.ca, "certificate": cert, "key": key, "server_name": "mcp.internal"}
    other = tmp_path / "other.pem"
    if under == "link":
        other.symlink_to(old.ca)
    elif under == "bundle":
        other.write_bytes(joined(new.ca, old.ca))
    if under in ("link", "bundle"):
        tls["ca"] = str(other)
    async with tls_upstream(old, "mcp.internal") as (_, port), tls_upstream(new, "mcp.internal", old) as (seen, moved):
        upstream = {"url": f"https://127.0.0.1:{port}/mcp", "tls": tls}
        changed: Json = {"upstream": upstream, "log": {"level": "info"}}
        with listening() as sock, gateways.process(port_of(sock), **changed) as gateway:
            assert await gateway.relayed() == (200, "ok")
            signed(Path(cert), Path(key), "gateway.internal", by=old, days=ends)
            if under == "another name":
                tls["ca"] = new.ca
            elif under == "the same name":
                shutil.copy(new.ca, old.ca)
            else:
                other.unlink()
                other.symlink_to(new.ca)
            gateway.renew(settings(gateway.port, gateway.admin, port, changed))
            await logged(gateway, '"reloaded"')
            assert (await gateway.relayed())[0] == 502
            if ends < 0:
                line = await logged(gateway, "a certificate is not valid")
                assert line["upstream"] == "up" and "stays in use" in line["why"]
            upstream["url"] = f"https://127.0.0.1:{moved}/mcp"
            gateway.renew(settings(gateway.port, gateway.admin, port, changed))
            await eventually(lambda: gateway.log.count('"reloaded"') == 2, "another reload")
            assert await gateway.relayed() == (200, "ok")
            assert seen.clients == ["gateway.internal"]


class Replacing:
    """Replaces files as others do, again and again: whole or in pieces, certificate and key one after the other."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder, self.random = folder, Random(4)
        contents = []
        for number in range(2):
            other = folder / str(number)
            other.mkdir()
            signed(other / "own.pem", other / "own.key")
            signed(other / "shown.pem", other / "shown.key", "gateway.internal", by=authority)
            (other / "host").write_text(f"host-{number}\n")
            contents.append({file.name: file.read_bytes() for file in other.iterdir()})
        authority_text = Path(authority.ca).read_bytes()
        self.contents = [{**each, "ca.pem": authority_text + b"\n# more" * at} for at, each in enumerate(contents)]
        self.put(0)

    def put(self, number: int) -> None:
        for name, data in self.contents[number].items():
            (self.folder / name).write_bytes(data)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            name, data = self.random.choice([*self.random.choice(self.contents).items()])
            cut = self.random.randrange(len(data))
            if name == "host":  # a part of it would be as good a host
                (self.folder / "next").write_bytes(data)
                (self.folder / "next").replace(self.folder / name)
            elif self.random.random() < 0.5:
                with (self.folder / name).open("wb", buffering=0) as file:
                    file.write(data[:cut])
                    stop.wait(self.random.random() / 200)
                    file.write(data[cut:])
            else:
                (self.folder / name).unlink()
                stop.wait(self.random.random() / 200)
                (self.folder / name).write_bytes(data)
            stop.wait(self.random.random() / 50)


async def test_files_that_others_write_meanwhile_are_taken_over_whole_or_not_at_all(
    gateways: Gateways, tmp_path: Path
) -> None:
    """One SIGHUP in seven ended in an exception: files were checked, and read once more. The page then failed."""
    authority = Authority(tmp_path)
    files = Replacing(tmp_path, authority)
    shown = {"ca": "ca.pem", "certificate": "shown.pem", "key": "shown.key", "server_name": "mcp.internal"}
    async with tls_upstream(authority, "mcp.internal") as (seen, port):
        shown = {name: value if name == "server_name" else str(tmp_path / value) for name, value in shown.items()}
        changed: Json = {
            "tls": {"certificate": str(tmp_path / "own.pem"), "key": str(tmp_path / "own.key")},
            "log": {"level": "info"},
            "upstream": {
                "url": f"https://127.0.0.1:{port}/mcp",
                "tls": shown,
                "host": f"${{file:{tmp_path / 'host'}}}",
                "idle_timeout": "0s",
            },
        }
        with gateways.process(port, **changed) as gateway:
            stop, statuses = threading.Event(), list[int]()
            trusting = ssl.create_default_context()
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

            def ask() -> None:
                while not stop.is_set():
                    with closing(HTTPSConnection("127.0.0.1", gateway.port, timeout=30, context=trusting)) as client:
                        client.request("GET", "/mcp", headers={"Host": "localhost"})
                        statuses.append(client.getresponse().status)

            def ended() -> list[str]:
                words = ("reloaded", "reload refused, nothing has changed")
                return [line["message"] for line in gateway.lines() if line["message"] in words]

            def has_ended(number: int) -> bool:
                return len(ended()) == number

            assert gateway.file is not None
            config, rest = gateway.file, gateway.file.read_bytes()
            work = [asyncio.to_thread(files.run, stop), asyncio.to_thread(ask)]
            running = [asyncio.create_task(each) for each in work]
            for number in range(1, 151):
                part = files.random.choice([len(rest), len(rest), files.random.randrange(len(rest))])
                config.write_bytes(rest[:part])
                gateway.signal(signal.SIGHUP)
                await eventually(partial(has_ended, number), "one line for each SIGHUP")
            stop.set()
            await asyncio.gather(*running)
            files.put(1)
            config.write_bytes(rest)
            gateway.signal(signal.SIGHUP)
            await eventually(partial(has_ended, 151), "the last reload")
            assert ended()[-1] == "reloaded"
            assert set(statuses) == {200} and set(ended()) > {"reloaded"}
            assert {fields_of(head)["host"] for head in seen.heads} == {"host-0", "host-1"}
            assert (await asyncio.to_thread(gateway.get, "/"))[0] == 200


# ---- TLS on the listener, and towards an upstream ----


@pytest.fixture(scope="module")
def place(gateways: Gateways, tls: Json) -> Iterator[Place]:
    """A gateway whose listener has TLS, and adds the fields of a proxy."""
    upstream = {"add_headers": ["x-forwarded", "forwarded", "via"]}
    with listening() as sock, gateways.process(port_of(sock), tls=tls, upstream=upstream) as gateway:
        yield Place(gateway, sock)


async def test_added_fields_say_that_a_client_came_over_tls(rig: Rig, tls: Json) -> None:
    async with tls_client(rig, tls["certificate"]) as (_, writer):
        writer.write(request())
        await rig.upstream.request()
    [seen] = rig.upstream.requests
    assert seen.value(b"x-forwarded-proto") == b"https"
    assert b"proto=https" in (seen.value(b"forwarded") or b"")


async def test_a_stream_over_tls_that_ends_as_its_client_leaves(gateways: Gateways, tls: Json) -> None:
    """The end of the exchange met a connection that was closing: uvloop's TLS has no socket then."""
    async with own(gateways, tls=tls) as rig:
        for number in range(1, 31):
            async with tls_client(rig, tls["certificate"]) as (reader, writer):
                writer.write(request(fields=[b"Accept: text/event-stream"]))
                peer = await rig.upstream.request(number)
                await peer.send(stream() + chunk(event(b"1")))
                async with asyncio.timeout(20):
                    await reader.readuntil(b"data: 1\n\n\r\n")
                writer.close()
                if number % 3 == 0:
                    await peer.ends()
                if number % 2:
                    await writer.wait_closed()
                await peer.send(LAST_CHUNK)
        # A fault in the log fails the test when the gateway ends.


async def test_a_cut_over_tls_is_a_cut(rig: Rig, tls: Json) -> None:
    async with tls_client(rig, tls["certificate"]) as (reader, writer):
        writer.write(request())
        peer = await rig.upstream.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234")
        peer.reset()
        got = b""
        async with asyncio.timeout(20):
            with suppress(ssl.SSLError, ConnectionError):
                while piece := await reader.read(65536):
                    got += piece
        reads = Reader()
        reads.feed(got)
        assert not any(m.whole for m in reads.responses([b"GET"], "fin"))
