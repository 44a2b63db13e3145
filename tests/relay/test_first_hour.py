"""The errors of the first hour, by the real command: each says what is wrong and what to do, in words (issue 23)."""

import os
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from gateway.config import Address
from gateway.operate.admin_listener import why_not
from tests.certificates import signed
from tests.forked import ran
from tests.launch import COMMAND, ROOT, Gateways, logged

URL = "http://127.0.0.1:3001/mcp"
ONE = f"upstreams: [{{name: a, url: '{URL}'}}]\n"


def refused(*flags: str, text: str | None = None, **environment: str) -> str:
    """What standard error says: no traceback. The status is 1 if an address cannot be had, else 2."""
    ended = ran(*flags, text=text, **environment)
    assert ended.returncode == (1 if "cannot listen" in ended.stderr else 2), ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


# ---- flags and variables ----


def test_a_file_and_an_upstream_together_are_an_error_wherever_they_come_from(tmp_path: Path) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(ONE)
    name = str(file)
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
    file = tmp_path / "gate.yaml"
    file.write_text(ONE)
    there = ran("--check", TASKGATE_CONFIG=str(file))
    assert (there.returncode, there.stdout.splitlines()[0]) == (0, f"{file}: valid")
    addresses = {"TASKGATE_LISTEN": "127.0.0.1:1234", "TASKGATE_ADMIN": "127.0.0.1:1235", "TASKGATE_CONFIG": ""}
    said = ran("--check", TASKGATE_UPSTREAM="http://127.0.0.1:1/x", **addresses).stdout
    assert "http://127.0.0.1:1234/x leads to http://127.0.0.1:1/x" in said
    said = ran("--check", "--upstream", URL, "--listen", "127.0.0.1:99", TASKGATE_UPSTREAM="no url", **addresses).stdout
    assert f"http://127.0.0.1:99/mcp leads to {URL}" in said
    assert "--upstream: expected http" in refused("--check", TASKGATE_UPSTREAM="no url")
    assert ran("demo", "--help", TASKGATE_UPSTREAM=URL).returncode == 0


def test_nothing_at_all_is_asked_for() -> None:
    assert "one of --config FILE and --upstream URL is needed" in refused()


# ---- files ----


@pytest.mark.parametrize("size", ["1.5GB", "0.5GiB", "1500.25MB"])
def test_a_size_may_have_a_point(size: str) -> None:
    text = ONE + f"index: {{memory_bytes_max: {size}}}\n"
    assert ran("--check", "--config", "-", text=text).returncode == 0
    assert "1.5GB" in refused("--check", "--config", "-", text=ONE + "index: {memory_bytes_max: 1.5 GB}\n")


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


# ---- listening ----


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


# ---- whoever reads the output may stop ----


@pytest.mark.parametrize("flags", [["--check", "--upstream", URL], ["--help"], ["try", "--help"]])
def test_output_that_nobody_reads_is_no_error(flags: list[str]) -> None:
    """`taskgate --check | head` ended with a traceback."""
    reads, writes = os.pipe()
    os.close(reads)
    ended = subprocess.run([*COMMAND, *flags], cwd=ROOT, stdout=writes, stderr=subprocess.PIPE, timeout=60)
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (0, b"")
