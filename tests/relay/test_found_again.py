"""Who finds which tasks again: with a renewed token, in a new session, as another user (DESIGN 7.12)."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, fault, filtered, notification, page, result, task
from tests.relay.rig import Rig, Script, body, final, ids, rig_with
from tests.relay.wire import answer, chunked, event, post, stream


class Asks(NamedTuple):
    session: bytes = b"s-1"
    token: bytes = b""
    user: bytes = b""
    cookie: bytes = b""

    def post(self, message: Json) -> bytes:
        names = (b"Mcp-Session-Id", b"Authorization", b"X-User", b"Cookie")
        return post(message, *(b"%b: %b" % field for field in zip(names, self, strict=True) if field[1]))

    @classmethod
    def of(cls, asked: Message) -> "Asks":
        names = (b"mcp-session-id", b"authorization", b"x-user", b"cookie")
        return cls(*(asked.value(name) or b"" for name in names))


Gives: TypeAlias = Callable[[Asks, Asks], bool]
ADA = Asks(token=b"Bearer ada.1")
RENEWED, AGAIN = ADA._replace(token=b"Bearer ada.2"), ADA._replace(session=b"s-2")
BOB = ADA._replace(token=b"Bearer bob.1")
HOST = Asks(token=b"Bearer host")  # it speaks for many users with one token
NAMED, OTHER_NAME = HOST._replace(user=b"ada"), HOST._replace(user=b"bob")
BROWSER = Asks(cookie=b"sid=ada")
NOBODY = Asks()


def by_user(maker: Asks, asks: Asks) -> bool:
    """A server that knows its users by their tokens, renewed or not, by `X-User`, or by a cookie."""
    one, other = ((who.token.partition(b".")[0], who.user, who.cookie) for who in (maker, asks))
    return one == other


def by_session(maker: Asks, asks: Asks) -> bool:
    """The TypeScript SDK from 1.32 on."""
    return maker.session == asks.session


def by_id(_maker: Asks, _asks: Asks) -> bool:
    return True


def serving(gives: Gives) -> Script:
    """Each `tools/call` makes a task; the list is empty."""
    made: dict[str, Asks] = {}

    async def script(asked: Message, _peer: Peer) -> bytes:
        message, who = body(asked), Asks.of(asked)
        if message["method"] == "tasks/list":
            return answer(result(message["id"], page([])))
        if message["method"] == "tools/call":
            made[name := message["params"]["name"]] = who
            return answer(result(message["id"], {"task": task(name)}))
        task_id = message["params"]["taskId"]
        if task_id in made and gives(made[task_id], who):
            return answer(result(message["id"], task(task_id)))
        return answer(fault(message["id"], -32602, "Task not found"))

    return script


async def listed(rig: Rig, who: Asks) -> list[str]:
    return ids(final(await rig.ask(who.post(filtered()))))


@pytest.mark.parametrize(
    ("gives", "maker", "asks", "find_again", "shown", "is_asked"),
    [
        (by_user, ADA, RENEWED, "credentials", True, True),  # a renewed token
        (by_user, ADA, RENEWED, "session", True, True),
        (by_user, ADA, AGAIN, "credentials", True, True),  # the client was started again
        (by_user, ADA, AGAIN, "session", False, False),
        (by_user, ADA, RENEWED._replace(session=b"s-2"), "credentials", False, False),  # both: nothing tells who
        (by_user, ADA, BOB, "credentials", False, True),  # another user in the session: the server denies it
        (by_user, ADA, BOB._replace(session=b"s-2"), "credentials", False, False),
        (by_user, NAMED, OTHER_NAME, "credentials", False, False),  # a field names the user
        (by_user, NAMED, NAMED._replace(session=b"s-2"), "credentials", True, True),
        (by_user, HOST, HOST._replace(session=b"s-2"), "credentials", True, True),  # one token for all users
        (by_user, HOST, HOST._replace(session=b"s-2"), "session", False, False),
        (by_user, BROWSER, BROWSER._replace(session=b"s-2"), "credentials", True, True),
        (by_user, BROWSER, BROWSER._replace(session=b"s-2"), "session", False, False),
        (by_user, NOBODY, NOBODY._replace(session=b"s-2"), "credentials", False, False),  # no credentials
        (by_session, ADA, RENEWED, "credentials", True, True),
        (by_session, ADA, AGAIN, "credentials", False, True),
        (by_id, ADA, BOB, "credentials", True, True),  # as his own `tasks/get` gives it
        (by_id, ADA, BOB._replace(session=b"s-2"), "credentials", False, False),
        (by_id, NAMED, OTHER_NAME, "credentials", False, False),
    ],
)
async def test_who_sees_what(
    gateways: Gateways, gives: Gives, maker: Asks, asks: Asks, find_again: str, shown: bool, is_asked: bool
) -> None:
    async with rig_with(gateways, serving(gives), index={"max_age": 0, "find_again": find_again}) as rig:
        await rig.ask(maker.post(call("tools/call", name="t-1", task={})))
        for _ in range(2):  # what is denied is not asked for again
            assert await listed(rig, asks) == ["t-1"] * shown
            assert len(rig.asked("tasks/get")) <= 2 if shown else len(rig.asked("tasks/get")) == is_asked
        given = final(await rig.ask(asks.post(call("tasks/get", taskId="t-1"))))
        assert "result" in given or not shown
        assert await listed(rig, asks) == ["t-1"] * ("result" in given)
        assert await listed(rig, maker) == ["t-1"]


@pytest.mark.parametrize(("status", "renewed", "again"), [(401, ["t-1"], ["t-1"]), (404, [], ["t-1"])])
async def test_a_refusal_forgets_no_id_and_the_end_of_a_session_those_of_the_session(
    gateways: Gateways, status: int, renewed: list[str], again: list[str]
) -> None:
    serves = serving(by_user)

    async def script(asked: Message, peer: Peer) -> bytes | None:
        if body(asked)["method"] == "ping":
            return answer(b"", status=b"%d No" % status)
        return await serves(asked, peer)

    async with rig_with(gateways, script) as rig:
        await rig.ask(ADA.post(call("tools/call", name="t-1", task={})))
        assert await listed(rig, ADA) == ["t-1"]
        assert (await rig.ask(ADA.post(call("ping")))).status == status
        assert await listed(rig, RENEWED) == renewed
        assert await listed(rig, AGAIN) == again


@pytest.mark.parametrize("said", [b"400", b"403", b"404", b"500", -32603])
async def test_no_list_fails_for_an_id_that_is_found_again(gateways: Gateways, said: bytes | int) -> None:
    """Some servers deny a task by a status, or by another error. It is asked for again after the next crawl."""
    serves, denies = serving(by_user), [True]

    async def script(asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        if message["method"] == "tasks/get" and denies and Asks.of(asked) != ADA:
            if isinstance(said, int):
                return answer(fault(message["id"], said, "Internal error"))
            return answer(fault(message["id"], -32602, "no"), status=said + b" No")
        return await serves(asked, peer)

    async with rig_with(gateways, script, index={"max_age": 0, "full_crawl_interval": 0}) as rig:
        for number in range(12):
            await rig.ask(ADA.post(call("tools/call", name=f"t-{number}", task={})))
        for asks in (RENEWED, AGAIN):
            for _ in range(3):
                assert await listed(rig, asks) == []
        assert len(await listed(rig, ADA)) == 12
        denies.clear()
        for asks in (RENEWED, AGAIN):
            await listed(rig, asks)
            assert len(await listed(rig, asks)) == 12


async def test_a_notification_makes_no_id_seen_for_others(gateways: Gateways) -> None:
    """Only an answer to a caller shows that a task is his: some servers tell every session of every task."""
    serves = serving(by_id)

    async def script(asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        if message["method"] != "ping":
            return await serves(asked, peer)
        told = notification("notifications/tasks/status", **task("t-1"))
        return stream() + chunked(event(told), event(result(message["id"], {})))

    async with rig_with(gateways, script) as rig:
        await rig.ask(ADA.post(call("ping")))
        assert await listed(rig, RENEWED) == []
        assert rig.asked("tasks/get") == []
