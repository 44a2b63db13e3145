"""What passing messages say of tasks, and the edit of `initialize`: the same over every transport.

In: the messages of one caller, on their way to the client. Out: what the sessions know; the result of `initialize`
with the capability in it (DESIGN 4). Always: no other message is changed here.
"""

import logging

from gateway.identity import Key
from gateway.mcp import capabilities, observe
from gateway.mcp.jsonrpc import Message
from gateway.tasks import criteria
from gateway.tasks.sessions import Sessions

log = logging.getLogger("taskgate.request")


class Passing:
    """Tells the sessions what passes for one caller."""

    def __init__(self, sessions: Sessions, key: Key) -> None:
        self._sessions = sessions
        self._key = key

    def response(self, request: Message, response: Message, asked_at: float) -> str | None:
        """The response to a request that passed at `asked_at`. Returns the id of the one task that it reports."""
        if observation := observe.of_response(request, response):
            self._sessions.observe(self._key, observation, asked_at)
            return observation.tasks[0].id if len(observation.tasks) == 1 else None
        return None

    def notification(self, message: Message) -> None:
        """A notification or a request of the server's."""
        if observation := observe.of_notification(message):
            self._sessions.observe(self._key, observation)

    def unread(self) -> None:
        """Something passed unread. It may tell of any change, so the index may be out of date."""
        self._sessions.observe(self._key, observe.Observation(doubt=True))

    def initialized(self, data: bytes, response: Message, opened: Key | None = None, is_certain: bool = True) -> bytes:
        """The response `data` to `initialize` as the client gets it. `opened` is the key of its new session.

        `is_certain` is False if it is unknown which request the response answers: then nothing is logged.
        """
        try:
            edited, server = capabilities.advertise(data, response, criteria.capability)
        except capabilities.NotAdvertised as why:
            if is_certain:
                log.warning("not advertised", extra={"upstream": self._key.upstream, "why": str(why)})
            return data
        if server is not None:
            self._sessions.servers.note(opened or self._key, server)
        return edited
