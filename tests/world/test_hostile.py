"""`taskgate try` and `taskgate tasks` at hostile servers: each ends in words, in time, and steers no terminal.

HOSTILE_EXAMPLES sets how many servers there are; HOSTILE_SEED plays one again.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from gateway.cli.task_table import SHOWN_CHARS_MAX
from tests.forked import Ended, forked
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, dumps, result, task
from tests.world.hostile import Hostile, nested
from tests.world.servers import at

EXAMPLES: Final = int(os.environ.get("HOSTILE_EXAMPLES", "120"))
AT_ONCE: Final = 8
SECONDS: Final = "2"
IN_TIME_S: Final = 45.0  # with eight at once, and a machine that has other work
FORMS: Final = (["try"], ["try", "--json"], ["try", "--create", "work"], ["tasks"], ["tasks", "--json", "--all"])
_COPY: Final = "exec 3<>/dev/tcp/127.0.0.1/$0; cat <&3 & cat >&3; kill $!"


@asynccontextmanager
async def serving(server: Hostile, over_http: bool) -> AsyncIterator[list[str]]:
    if over_http:
        async with at(server) as url:
            yield [url]
    else:
        async with await asyncio.start_server(server.lines, "127.0.0.1", 0, limit=2**24) as lines:
            yield ["--", "bash", "-c", _COPY, str(lines.sockets[0].getsockname()[1])]


def judged(ended: Ended, form: list[str], seconds: float) -> None:
    """What holds whatever a server says."""
    both = ended.stdout + ended.stderr
    assert ended.returncode in (0, 1, 2), "no exit status of the documents"
    assert ended.returncode != 1 or form[0] == "try"
    assert "Traceback" not in both and "a fault of taskgate" not in both and "never " not in both
    assert all(line.isprintable() for line in both.split("\n")), "a terminal would be steered"
    assert all(len(line) < 8 * SHOWN_CHARS_MAX for line in both.split("\n")) or "--json" in form
    assert seconds < IN_TIME_S
    if "--json" in form:
        for line in ended.stdout.splitlines():
            json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    says = ended.stderr.startswith(f"taskgate {form[0]}: ") or "Stopped after" in ended.stdout or not ended.stderr
    assert ended.returncode != 2 or says, "it says nothing"


async def played(seed: int) -> bool:
    """Whether the server had its turn to be hostile."""
    over_http = seed % 4 != 0
    server, form = Hostile(seed, over_http), FORMS[seed // 4 % len(FORMS)]
    if server.mutated == "tools/call":
        form = ["try", "--create", "work"]
    began = time.monotonic()
    async with serving(server, over_http) as where:
        try:
            ended = await forked(*form, "--seconds", SECONDS, *where)
        except TimeoutError:
            raise AssertionError(f"HOSTILE_SEED={seed}: {server}: {form}: it does not end") from None
    try:
        judged(ended, form, time.monotonic() - began)
    except (AssertionError, ValueError) as error:
        out = f"{ended.stdout[-2000:]!r}\n{ended.stderr[-3000:]}"
        raise AssertionError(f"HOSTILE_SEED={seed}: {server}: {form}: {error}\n{ended.returncode}\n{out}") from None
    return server.was_hostile


@pytest.mark.slow
async def test_no_answer_of_a_server_stops_a_command_or_reaches_a_terminal() -> None:
    one = os.environ.get("HOSTILE_SEED")
    seeds = iter([int(one)] if one else range(EXAMPLES))
    hostile, faults = 0, list[str]()

    async def play() -> None:
        nonlocal hostile
        for seed in seeds:
            try:
                had_its_turn = await played(seed)
                hostile += had_its_turn
            except AssertionError as error:
                faults.append(str(error))

    await asyncio.gather(*(play() for _ in range(AT_ONCE)))
    assert not faults, "\n\n".join([*faults[:20], f"{len(faults)} in all"])
    assert one or hostile > EXAMPLES // 2


# ---- each answer that cannot be read is told: what came, where, and no verdict ----

BIG, DEEP, UNTEXT = b"9" * 4_301, nested(100_000, 0), b'"\\ud800\xff\x9b"'
WRONG: Final[dict[str, tuple[tuple[str, ...], dict[str, bytes]]]] = {
    "initialize": (("initialize", "a wrong result"), {
        "protocolVersion": b"7", "capabilities": b"7", "serverInfo": b"[]", "capabilities.tasks": b'"x"',
        "capabilities.tasks.list": b"7", "capabilities.tasks.requests": BIG, "instructions": nested(101, 1),
    }),
    "tasks/list": (("tasks/list", "a wrong result"), {
        "tasks": b'"none"', "tasks.0": b"7", "tasks.0.taskId": b"7", "tasks.3.status": b"[]", "nextCursor": b"7",
        "_meta": b"7", "_meta.taskgate/total": b'"many"', "tasks.1.ttl": BIG,
        "tasks.2.x": nested(101, 2),
    }),
}  # fmt: skip
CASES: Final = [
    *((method, name, True) for method, (_, cases) in WRONG.items() for name in cases),
    *(("initialize", "capabilities.tasks", False), ("tasks/list", "tasks.0.taskId", False)),
]


class Wrong(Hostile):
    """One member of one answer is wrong; `native`: whether it says that it filters."""

    def __init__(self, method: str, name: str, value: bytes, native: bool) -> None:
        super().__init__(1)
        self.mutated, self._member, self._value, self._native, self._login = method, name, value, native, False

    def answered(self, message: Json) -> bytes | None:
        if message.get("method") != self.mutated:
            return super().answered(message)
        said = self.said(message)
        *path, last = self._member.split(".")
        parent = said["result"]
        for step in path:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        parent[int(last) if isinstance(parent, list) else last] = "<hole>"
        return dumps(said).replace(b'"<hole>"', self._value)


@pytest.mark.parametrize(("method", "name", "over_http"), CASES)
async def test_a_member_that_is_wrong_is_named_and_is_no_verdict(method: str, name: str, over_http: bool) -> None:
    words, cases = WRONG[method]
    is_total = "taskgate/total" in name
    server = Wrong(method, name, cases[name], native=is_total)
    async with serving(server, over_http) as where:
        ended = await forked("tasks" if is_total else "try", *where)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended
    assert all(word in ended.stderr for word in words), ended.stderr
    path = "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in name.split("."))
    told = ("out of range", "nested more than 100 deep", f"at `${path}`")
    assert any(word in ended.stderr for word in told), ended.stderr


@pytest.mark.parametrize("over_http", [True, False], ids=["HTTP", "stdio"])
async def test_text_that_is_no_utf_8_is_read(over_http: bool) -> None:
    """Half a surrogate pair, and bytes that are no UTF-8, are shown as U+FFFD."""
    for command in ("try", "tasks"):
        async with serving(Wrong("tasks/list", "tasks.0.statusMessage", UNTEXT, False), over_http) as where:
            ended = await forked(command, *where)
        assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended
    assert "\ufffd\ufffd\ufffd" in ended.stdout


@pytest.mark.parametrize("command", ["try", "tasks"])
async def test_the_limit_of_time_ends_no_tidying_up(command: str) -> None:
    """The session is deleted, which takes longer than all that the server was asked."""
    deleted = list[bool]()

    class Lingering(Wrong):
        async def __call__(self, request: Message, peer: Peer) -> bytes:
            if request.method == b"DELETE":
                await asyncio.sleep(2.5)
                deleted.append(peer.end == "open")
            return await super().__call__(request, peer)

    async with serving(Lingering("", "", b"", True), True) as where:
        ended = await forked(command, "--seconds", "2", *where)
    assert (ended.returncode, ended.stderr, deleted) == (int(command == "try"), "", [True]), ended


@pytest.mark.parametrize("native", [False, True])
async def test_a_list_that_never_ends_is_left(native: bool) -> None:
    """Each page has another task, and names another one."""

    class Endless(Wrong):
        def said(self, message: Json) -> Json:
            if message["method"] != "tasks/list":
                return super().said(message)
            number = str(time.monotonic())
            return result(message["id"], {"tasks": [task(number)], "nextCursor": number})

    async with serving(Endless("", "", b"", native), True) as where:
        ended = await forked("tasks", "--seconds", "0.5", "--all", *where)
    assert (ended.returncode, "gave no list within 0.5 s. --seconds N" in ended.stderr) == (2, True), ended


ENDLESS: Final = {
    "a line without an end": "tr '\\0' x < /dev/zero",
    "empty lines without end": "yes ''",
    "another process has the pipe": "sleep 100 & cat > /dev/null",
    "it does not end": "trap '' TERM; exec sleep 100",
    "its output is closed": "exec >&-; sleep 100",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDLESS)
async def test_a_command_that_does_not_end_is_killed(what: str) -> None:
    """Behind a pipe that was full, or that another process had, no end was seen: `try` waited for ever."""
    began = time.monotonic()
    ended = await forked("try", "--seconds", "1", "--", "bash", "-c", ENDLESS[what])
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended
    assert time.monotonic() - began < IN_TIME_S
