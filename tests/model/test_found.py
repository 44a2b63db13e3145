"""Histories that once broke a rule, made small, where the usual ones seldom would; and some that a fault would break.

Those were written by hand: each rule of DESIGN 6 and 7.4 that is hard to meet by chance breaks if it is taken out
(`wilful.py`).
"""

import pytest

from tests.model.history import (
    Blink,
    Clock,
    Create,
    Delete,
    Fault,
    Get,
    History,
    Log,
    Move,
    Nobody,
    Other,
    Page,
    Query,
    Reload,
    Renew,
    Restart,
    Setting,
    Stream,
    Update,
    Wait,
)
from tests.model.over_stdio import StdioWorld
from tests.model.play import play
from tests.rules.legal import watched


def put_off(kind: str) -> History:
    """Three requests for a task fail, of which only a notification has told; then the list is read twice."""
    fails = [Fault(kind=kind, method="tasks/get")] * 3
    asks = Query(), Wait(2), Query(), Wait(700), Query(), Wait(700), Query(ids=(0,)), Wait(66), Query()
    return History(
        Setting(order="nothing", listening=True, tasks="wc"),
        (Query(), Wait(3), Update(notify=True), Wait(2), *fails, *asks),
    )


def asked_for(code: int, times: int = 1, later: int = 1, again: bool = False) -> History:
    """A query asks for a task, which the caller has perhaps found `again`, and gets errors; another one is `later`."""
    found_again = (Renew(), Wait()) if again else ()
    fails = [Fault(kind=f"code {code}", method="tasks/get")] * times
    queries = Query(), Wait(later), Query(), Wait()
    return History(Setting(order="nothing"), (Create(), Wait(), *found_again, *fails, *queries))


FOUND = {
    "a server answers late with an id that another caller has at the one that has taken its place": History(
        Setting(owns=True, delays=((0, 0), (0, 40), (0, 0))),
        (Create(), Wait(2), Move(), Create(1), Wait(50), Query(1)),
    ),
    "a task is asked for by its id, and the server that has taken the place of the one before has that id": History(
        Setting(tasks="i"), (Get(), Wait(), Move(), Get(), Create(elsewhere=True)),
    ),
    "the stream of a call is resumed at the server that has taken the place of the one that was called": History(
        Setting(streams=True), (Fault(kind="resume"), Create(), Blink(4), Move()),
    ),
    "a server has answered `initialize`, and before a client knows, another that did not has taken its place": History(
        Setting(delays=((0, 4),)),
        (Renew(restarts=True), Blink(), Move(), Wait(16), Create(elsewhere=True), Query(methods=(1,))),
    ),
    "a token is renewed before a client knows that the server has answered its other `initialize`": History(
        Setting(delays=((3, 40), (3, 40), (0, 0), (0, 0))),
        (Renew(restarts=True), Wait(5), Renew(), Query(methods=(1,)), Create(elsewhere=True)),
    ),
    **{
        f"a task of which only a notification has told is put off by {kind}, and the list is read again": put_off(kind)
        for kind in ("status 409", "status 503", "status 500", "code -32000", "code -32603 null")
    },
    "a caller is refused as his session ends, and then names a task that is not his": History(
        Setting(streams=True, owns=True, delays=((1, 40), (2, 40), (1, 1), (70, 40), (16, 2), (8, 16), (1, 5), (16, 8),
                (1, 1), (1, 2), (1, 1), (16, 5))),
        (Query(), Query(s=1), Wait(), Fault(kind="status 401"), Other(method="tools/list"), Wait(),
         Restart(by_client=True), Wait(16), Query(ids=(-1,))),
    ),
    "callers with empty credentials make a task each": History(Setting(owns=True), (Nobody(), Nobody(0, 0, 4))),
    "a task is asked for, and once there is no such method": asked_for(-32601, later=16),
    "a task is asked for, and twice there is no such method": asked_for(-32601, 2, 641),
    "a task is asked for, and once that fails": asked_for(-32000),
    "a task is denied once": asked_for(-32602),
    "an empty cursor is refused once, and then begins the list again": History(
        Setting(tasks="i", per_page=1, always_next=True, empty="restarts", delays=((0, 5),)),
        (Query(), Wait(10), Fault(kind="stale 409"), Wait()),
    ),
    "no tasks/get, and a page that passes overlaps with a crawl's": History(
        Setting(max_age=1, knows_get=False, shared=True, tasks="w", delays=(
            (5, 16), (8, 8), (1, 8), (1, 8), (1, 2), (16, 8), (1, 16), (1, 2), (3, 2),
        )),
        (Create(1), Wait(5), Query(1), Query(), Wait(32), Page(), Page(), Wait(32), Page(), Wait(2), Update(status=1),
         Wait(), Query()),
    ),
    "a server that serves one request at a time gets two of the gateway's, for two queries": History(
        Setting(max_age=1, delays=((1, 2),), busy=503, owns=True),
        (Create(), Wait(2), Wait(2), Page(), Wait(2), Query()),
    ),
    "a task that the server keeps behind its ttl is denied once": History(
        Setting(expiry="never"),
        (Create(ttl=8), Wait(), Query(), Wait(64), Fault(kind="status 410 -32602"), Query(), Wait()),
    ),
    "no tasks/get, and each refresh is a crawl: what is known is not asked for": History(
        Setting(full_crawl_interval=0, knows_get=False, tasks="w"), (Get(method="tasks/cancel"), Wait(), Restart())
    ),
    "no tasks/get, and a task that was marked before a crawl has gone": History(
        Setting(knows_get=False, expiry="lazily"),
        (Create(elsewhere=True, ttl=80), Get(method="tasks/result"), Query()),
    ),
    "no tasks/get, and a task that was made has gone": History(
        Setting(knows_get=False, delays=((0, 0), (2, 2), (140, 0), (1, 140), (0, 2), (70, 5))), (Create(ttl=8),)
    ),
    "a task that a query names is denied once": History(
        Setting(tasks="w"), (Fault(kind="status 422 -32002"), Query(ids=(0,)), Blink(count=21))
    ),
    "once there is no such method, and then a task is denied once": History(
        Setting(tasks="ffw"),
        (Fault(kind="code -32601", method="tasks/get"), Query(), Get(method="tasks/cancel"), Wait(),
         Fault(kind="code -32002 null"), Query(), Wait()),
    ),
    "a task that a caller finds again is asked for, and once that fails": asked_for(-32000, again=True),
    "a task that a caller finds again is asked for, and thrice that fails": asked_for(-32000, 3, 641, again=True),
    "a task that a caller finds again is denied once": asked_for(-32602, again=True),
    "there is no route for a stream": History(
        Setting(methods=3, order="nothing", lacks=404),
        (Create(method=1), Wait(), Query(), Wait(), Other(method="GET"), Wait(), Query(methods=(2,)), Wait()),
    ),
    "a cursor is refused once with -32000": History(
        Setting(tasks="wwwww"), (Fault(kind="stale -32000", method="tasks/list"), Query(), Wait())
    ),
    "a cursor is refused once with 400": History(
        Setting(tasks="wwwww"), (Fault(kind="stale 400", method="tasks/list"), Query(), Wait())
    ),
    "the second of three pages has an empty cursor": History(
        Setting(empty="page", per_page=1, tasks="www"), (Query(), Wait())
    ),
    "the end is an empty cursor, which is refused": History(Setting(empty="refused", tasks="www"), (Query(), Wait())),
    "an empty cursor leads to the list again": History(Setting(empty="restarts", tasks="www"), (Query(), Wait())),
    "an empty cursor leads to the list again, in front of which a task has been made meanwhile": History(
        Setting(empty="restarts", order="prepends", per_page=1, tasks="cc", delays=((0, 0), (0, 16))),
        (Query(), Wait(2), Create(), Wait(200)),
    ),
    "an empty cursor leads to an empty cursor": History(Setting(empty="again", tasks="www"), (Query(), Wait())),
    "two tasks stand in order by chance": History(
        Setting(order="random", per_page=1, full_crawl_interval=3840, tasks="cc"),
        (Query(), Wait(65), Create(elsewhere=True), Create(elsewhere=True), Wait(65), Query(), Wait()),
    ),
    "nine tasks stand in order by chance, on pages that are empty or shorter and name a next one": History(
        Setting(order="ids", full_crawl_interval=3840, tasks="c" * 19),
        (*[Delete(which=which) for which in (0, 0, 0, 0, 0, 1, 4, 5, 5, 7)], Query(), Wait(65), Create(elsewhere=True),
         Wait(65), Query(), Wait()),
    ),
    "a balancer's cookie is new in each answer": History(
        Setting(balanced=True, tasks="w"), (Query(), Wait(66), Query(), Wait(), Query(), Wait())
    ),
    "of two requests the first is refused as others were under way, and that comes when none is": History(
        Setting(busy=503, order="nothing", delays=((0, 0), (1, 0), (3, 0), (5, 0))),
        (Create(), Wait(16), Create(), Wait(16), Get(), Wait(), Query(ids=(0, 1)), Wait(40)),
    ),
    "a server serves one request at a time": History(
        Setting(busy=409, order="nothing", delays=((2, 2),)), (Create(), Wait(5), Create(), Wait(5), Query(), Wait(66))
    ),
    "a 403 to the gateway's request for a task that another session has shown": History(
        Setting(shared=True, tasks="w"),
        (Get(), Wait(), Fault(s=1, kind="403", method="tasks/get"), Query(s=1), Wait()),
    ),
    "a task is gone, says the response to a request that was not read": History(
        Setting(tasks="ww"), (Delete(), Query(), Wait(), Get(which=1, form="bomb"), Delete())
    ),
    "a task is gone, and a page that was read before comes later": History(
        Setting(delays=((0, 40), (0, 1), (0, 1)), tasks="w"),
        (Query(), Wait(5), Delete(), Get(), Wait(40), Query(), Wait()),
    ),
    "a task is in a response with NaN": History(Setting(order="nothing"), (Fault(kind="nan"), Create(), Wait())),
    "a task has changed, says a response that is no JSON": History(
        Setting(tasks="ww"), (Query(), Wait(), Fault(kind="illegible"), Get(method="tasks/cancel"), Wait())
    ),
    "a task is made, says a response that is no JSON": History(
        Setting(tasks="ww"), (Query(), Wait(), Fault(kind="illegible", method="tools/call"), Create(), Wait())
    ),
    "a task is made while all pages are read": History(
        Setting(delays=((5, 70), (1, 140), (2, 2), (1, 16), (140, 1), (70, 0)), ids_again=65, tasks="c"),
        (Query(), Create(ttl=16)),
    ),
    "a page is refused with 401 for its cursor while a task is asked for by name": History(
        Setting(delays=((1, 3), (16, 40), (1, 16), (1, 8), (5, 5), (1, 1), (8, 5), (3, 2), (8, 1), (16, 2), (40, 1),
                        (8, 40)), tasks="cccccccicci"),
        (Query(), Blink(18), Wait(2), Wait(5), Wait(5), Wait(5), Wait(16), Wait(16), Wait(16), Wait(3), Wait(2),
         Wait(63), Wait(5), Fault(kind="401", method="tasks/list"), Wait(), Fault(kind="error", method="tasks/list"),
         Query(ids=(-1,)), Wait(3), Query(ids=(-1,))),
    ),
    "a tool is refused after a task was made": History(
        Setting(methods=3, order="nothing"),
        (Create(method=1), Wait(), Query(), Wait(), Fault(kind="403", method="prompts/get"), Create(method=1), Wait(2),
         Query(methods=(2,))),
    ),
    "a token is renewed after a task was made": History(
        Setting(order="nothing"), (Create(), Wait(), Query(), Wait(), Renew(), Wait(), Query())
    ),
    "a client starts again after a task was made": History(
        Setting(order="nothing"), (Create(), Wait(), Query(), Wait(), Renew(restarts=True), Wait(), Query())
    ),
    "what was asked by id before a session was found too large is shown after it": History(
        Setting(tasks_max=3, tasks="www"),
        (Query(), Create(), Wait(), Query(ids=(7,)), Wait(), Delete(which=7), Create(), Query(), Wait(),
         Query(ids=(9, 8))),
    ),
    "a task that may be gone is brought by a page that was asked for before": History(
        Setting(order="prepends", delays=((70, 16), (70, 140), (0, 2), (140, 1), (1, 140), (2, 140)), tasks="wwwcwx"),
        (Query(), Query(s=1), Wait(ticks=130), Delete(which=5), Get(which=5, method="tasks/result"), Wait(ticks=3),
         Query(created=(3, -640))),
    ),
    "two tasks gone and one page to read: never an end of crawls": History(
        Setting(tasks="w"), (Query(), Create(), Wait(), Delete(), Delete())
    ),
    "a response that was on its way when its session ended makes the session known again": History(
        Setting(delays=((0, 1), (16, 16), (0, 2), (140, 1), (5, 16), (2, 0)), tasks="w"),
        (Get(), Wait(), Wait(ticks=16), Query(), Restart(), Wait(ticks=16), Query(ids=(0,))),
    ),
    "a task asked for by id makes a crawl's index too large on the way": History(
        Setting(tasks_max=3, per_page=1, delays=((16, 0),), tasks="ccccc"), (Query(), Wait(ticks=40), Query(ids=(4,)))
    ),
    "prepended: a task made through the gateway hides one made elsewhere before it": History(
        Setting(per_page=1, order="prepends", full_crawl_interval=3840, tasks="cccccccc"),
        (Query(), Wait(65), Create(elsewhere=True), Wait(2), Create(), Wait(65), Query(), Wait(65), Query()),
    ),
    "a response that was on its way when its index went brings back a task that has gone": History(
        Setting(max_age=128, idle_timeout=16, delays=((2, 16), (2, 30), (2, 30), (2, 70)), tasks="w"),
        (Get(), Wait(3), Delete(), Get()),
    ),
    "an index that went while in use is found again, larger than an index may be": History(
        Setting(memory_bytes_max=8000, listening=True, tasks="wwww"),
        (Get(), Query(ids=(1, 0, 3)), Create(s=1), Create()),
    ),
    "tasks/result has told that a task has ended": History(
        Setting(full_crawl_interval=3840, tasks="w"),
        (Query(), Wait(5), Update(), Wait(2), Get(which=0, method="tasks/result"), Wait(2), Query()),
    ),
    "no tasks/get: that is found out while a crawl reads and a task is being made": History(
        Setting(max_age=128, full_crawl_interval=200, order="prepends", per_page=1, knows_get=False,
                delays=((2, 2), (40, 40), (70, 0), (70, 0), (40, 2)), listening=True, tasks="ccccc"),
        (Query(), Wait(300), Create(), Wait(), Query(), Wait(32), Query(ids=(99,)), Wait(65), Query(), Wait(5), Query(),
         Wait(64)),
    ),
    "what passed after the clock was set back is not asked for": History(
        Setting(listening=True, tasks="w"),
        (Update(status=0, notify=True), Query(), Wait(), Clock(by_s=-3600), Update(status=1, notify=True), Wait(),
         Query()),
    ),
    "a task has the id of one that has ended": History(
        Setting(ids_again=0, order="nothing", tasks="wc"),
        (Query(), Create(), Wait(), Query(), Get(which=1, method="tasks/cancel"), Wait(), Create(), Query(), Wait(65)),
    ),
    "of two answers that overlap the last one is the older": History(
        Setting(order="random", full_crawl_interval=3840, delays=((1, 1), (1, 1), (1, 40), (1, 1), (1, 1)), tasks="w"),
        (Query(), Wait(70), Query(ids=(0,)), Wait(2), Update(status=1), Wait(), Query(), Wait(42), Query()),
    ),
    "of two answers that overlap the first one is the older": History(
        Setting(order="random", full_crawl_interval=3840, delays=((1, 20), (1, 1), (1, 4), (1, 1), (1, 1)), tasks="w"),
        (Query(), Wait(70), Query(ids=(0,)), Wait(2), Update(status=1), Wait(), Query(), Wait(42), Query()),
    ),
    "a client is told long after it asked that a task is as it was": History(
        Setting(max_age=16, full_crawl_interval=3840, per_page=1, delays=((0, 0), (1, 1), (1, 30), (1, 1), (0, 0)),
                tasks="wccccccccc"),
        (Query(), Wait(16), Get(), Wait(3), Update(status=1), Wait(35), Query()),
    ),
    "a notification says late what was so before": History(
        Setting(max_age=16, full_crawl_interval=3840, per_page=1, listening=True, tasks="wccccccccc"),
        (Update(status=1, notify=True, late=20), Wait(2), Query(), Wait(2), Update(status=0), Wait(20), Query()),
    ),
    "an answer to what was asked before a 403 comes after it": History(
        Setting(delays=((1, 1), (1, 30), (1, 1), (1, 1)), tasks="w"),
        (Query(), Wait(70), Query(), Wait(2), Fault(kind="403", method="tools/call"), Create(), Wait(40), Query()),
    ),
    "a client is served after a 403": History(
        Setting(tasks="w"),
        (Query(), Wait(2), Fault(kind="403", method="tools/call"), Create(), Wait(2), Get(), Wait(2), Query()),
    ),
    "a request for a task is refused with 403 as a page is with 500": History(
        Setting(tasks="ccxfxi"),
        (Query(), Wait(), Fault(kind="403", method="tasks/get"), Fault(kind="500"), Wait(ticks=64), Query(), Wait(),
         Query(ids=(9,))),
    ),
    "prepended: a page shows a task in its life before the one that is known": History(
        Setting(max_age=1, order="prepends", per_page=1, always_next=True, ids_again=0, tasks="wii",
                delays=((70, 70), (8, 16), (2, 5), (2, 2), (1, 3), (5, 1), (2, 2), (2, 2), (2, 8), (3, 16), (2, 70),
                        (16, 40))),
        (Query(), Query(s=1), Wait(ticks=130), Query(), Wait(ticks=32), Query(), Renew(restarts=True), Blink(count=7),
         Update(), Renew(), Wait(ticks=5), Query(), Wait(ticks=8), Reload(), Wait(ticks=22), Create(), Wait(ticks=6),
         Wait(), Update(), Wait(ticks=91), Wait(), Wait(ticks=3), Wait(), Wait(ticks=2), Query(), Wait(ticks=48),
         Blink(count=10), Update(which=-1), Wait(), Wait(ticks=21), Create(elsewhere=True), Query(ids=(-2,)), Create()),
    ),
    "a list in no order looks as if new tasks came first, and a query names one that came elsewhere": History(
        Setting(order="random", always_next=True, tasks="cwic"),
        (Delete(), Delete(), Query(), Wait(), Create(elsewhere=True), Wait(ticks=64), Query(ids=(0, 9))),
    ),
    "a task that has gone and one of its id are counted": History(
        Setting(ids_again=0), (Create(), Wait(66), Delete(), Wait(), Create(), Wait(66))
    ),
    "an answer that was asked for before two overlapped settles nothing": History(
        Setting(max_age=1, order="random", per_page=1, always_next=True, tasks="i",
                delays=((40, 5), (8, 2), (1, 3), (2, 5), (2, 1), (2, 1), (5, 16), (1, 5), (40, 2), (2, 40), (2, 16),
                        (16, 70))),
        (Query(), Query(s=1), Wait(ticks=16), Page(), Page(), Page(), Page(), Page(), Query(s=1), Query(),
         Wait(ticks=63), Query(s=1), Wait(ticks=3), Wait(), Query(s=1), Wait(ticks=3), Query(), Page(), Get(),
         Query(ids=(-2,)), Wait(ticks=2), Query(ids=(-2,)), Wait(ticks=16), Page(), Wait(ticks=3), Query(),
         Wait(ticks=3), Update(status=1), Query()),
    ),
    "a task that a caller finds again is put off: that denies nothing of it": History(
        Setting(order="nothing"),
        (Create(), Wait(), Fault(kind="403"), Get(), Fault(kind="429", method="tasks/get"), Query(), Wait()),
    ),
    "a task is made by a request of one method, and no page shows it": History(
        Setting(methods=3, order="nothing"),
        (Create(method=1), Wait(), Query(methods=(1,)), Wait(), Query(methods=(2,))),
    ),
    "the result of a task comes after another of its id was made by an unread request, at a clock behind": History(
        Setting(streams=True, skew_s=-3, ids_again=0, tasks="wwf"),
        (Query(), Blink(count=13), Reload(), Get(which=1), Create(), Query(), Query(), Query(s=1),
         Create(form="coding"), Get(), Get(which=1, method="tasks/result"), Update(which=1)),
    ),
    "a new session's index is fresh when an answer in the one before shows a task": History(
        Setting(max_age=16, order="nothing", listening=True, tasks="ww", delays=((2, 2), (16, 1), (16, 70), (3, 2),
                (2, 16), (16, 70), (2, 16), (40, 2), (16, 40), (5, 1), (8, 16), (16, 1))),
        (Query(s=1), Query(), Wait(32), Update(which=-1, notify=True), Query(s=1), Query(), Wait(16), Renew(), Wait(16),
         Query(s=1), Query(), Wait(5), Query()),
    ),
    "a client leaves as a notification says that a task has ended, and gets late news that it is live": History(
        Setting(listening=True, tasks="i"),
        (Update(status=1, notify=True, late=20), Update(notify=True), Stream(), Stream()),
    ),
    "a refusal reaches the client in the moment before the session ends": History(
        Setting(tasks="f"),
        (Query(), Wait(), Wait(64), Fault(kind="status 401"), Query(), Delete(),
         Fault(kind="code -32603", method="tasks/get"), Wait(), Query(), Blink(8), Restart()),
    ),
}  # fmt: skip


OVER_STDIO = {
    "over stdio a task of which only a notification has told is put off, and the list is read again": put_off(
        "code -32000"
    ),
    "an error without an id is the oldest request's, and comes to a later one that a query does not wait for": History(
        Setting(per_page=1, delays=((140, 0), (140, 140), (2, 1)), listening=True, tasks="fficcfcc"),
        (Query(), Wait(16), Fault(kind="code -32700 null", method="tasks/list"), Query(ids=(8,)), Wait(130)),
    ),
    "over stdio, where nothing finds a task again, there is no such method twice": asked_for(-32601, 2, 641),
    "a line of a log comes between two lists": History(
        Setting(listening=True, tasks="w"), (Query(), Wait(66), Query(), Wait(), Log(), Wait(), Query(), Wait())
    ),
    "the result of a task, asked for by a line that was not read, comes after its id was given again": History(
        Setting(delays=((0, 16), (1, 1), (5, 0), (1, 16), (5, 5), (70, 5)), ids_again=0, listening=True, tasks="c"),
        (Create(), Get(method="tasks/result", form="large")),
    ),
    "the responses to a page and to a task have the id of no request, and are both taken for the page's": History(
        Setting(per_page=1, delays=((16, 2), (140, 2), (0, 70)), listening=True, tasks="fcwifccxcfc"),
        (Query(), Wait(63), Fault(kind="text id", method="tasks/get"), Wait(63), Fault(kind="other id"),
         Fault(kind="code -32050"), Wait(63), Fault(kind="other id"), Query(ids=(99, 3, 5)), Wait()),
    ),
    "a notification tells of a task at the very end": History(
        Setting(max_age=1, full_crawl_interval=0, order="nothing", listening=True, tasks="w"),
        (Update(status=1, notify=True, late=70),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("history", OVER_STDIO.values(), ids=OVER_STDIO.keys())
def test_what_once_broke_a_rule_over_stdio_breaks_none(history: History) -> None:
    play(history, StdioWorld)


@pytest.mark.parametrize("history", FOUND.values(), ids=FOUND.keys())
def test_what_once_broke_a_rule_breaks_none_and_what_is_known_is_legal(history: History) -> None:
    with watched() as found:
        play(history)
    assert not found
