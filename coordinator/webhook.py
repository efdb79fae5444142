"""Deliver messages to the webhook: at least once, by one worker, signed as Standard Webhooks describe it.

A thread of its own sends, so that no request waits. Only the setting names the receiver: nothing that a
client or a plan contains does, redirects are not followed, and the body of an answer is not read.
"""

from __future__ import annotations

import json
import random
import threading
import time
from datetime import datetime, timedelta

from pydantic import SecretStr

from coordinator.db.engine import Database, database_time
from coordinator.http import outgoing_requests
from coordinator.observability.logs import logger
from coordinator.rounds.stuck_rounds import stuck_rounds, waiting_since
from coordinator.storage import webhook_outbox
from coordinator.storage.server_key import ServerKey
from coordinator.storage.webhook_outbox import Message
from schemas.identity.webhooks import MESSAGE_ID, signed_headers

LEASE = timedelta(seconds=60)
"""Time after which another worker tries a message whose worker died."""

TIMEOUT_SECONDS = 10.0
"""Deadline of an attempt, from its connection to the headers of the answer."""

_MAX_WAIT_SECONDS = 3600.0
_SCAN_SECONDS = 10.0
_JOIN_SECONDS = 1.0
_HEADERS = {"Content-Type": "application/json", "User-Agent": "tessera-webhook"}

log = logger(__name__)


class WebhookSender:
    """Sends messages from `start` to `stop`; one at a time, so a slow receiver delays only messages."""

    def __init__(
        self,
        database: Database,
        *,
        url: str,
        secret: SecretStr | None,
        key: ServerKey,
        stuck_seconds: float,
        tick_seconds: float,
        first_wait_seconds: float = 5.0,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Prepare; `secret` adds an HMAC to the signature, `first_wait_seconds` is the first retry's."""
        self._database = database
        self._url = url
        self._secret = secret
        self._key = key
        self._stuck_seconds = stuck_seconds
        self._tick_seconds = tick_seconds
        self._first_wait_seconds = first_wait_seconds
        self._timeout_seconds = timeout_seconds
        self._stopping = threading.Event()
        self._next_scan = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop without waiting for a message in delivery."""
        self._stopping.set()
        # A message in delivery is sent again after its lease, so that a slow receiver must not delay the
        # stop.
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._scan()
                if self.send_next():
                    continue
            except Exception:
                log.exception("webhook-interrupted")
            self._stopping.wait(self._tick_seconds)

    def _scan(self) -> None:
        # Rarer than ticks: the query looks at all rounds in progress.
        if time.monotonic() >= self._next_scan:
            self._next_scan = time.monotonic() + min(_SCAN_SECONDS, self._stuck_seconds)
            report_stuck_rounds(self._database, self._stuck_seconds)

    def send_next(self) -> bool:
        """Try to deliver one message that is due; return whether there was one."""
        message = webhook_outbox.claim(self._database, LEASE)
        if message is None:
            return False
        fault = self._post(message)
        names = {"message": message.id, "kind": message.kind, "federation": message.federation_id}
        if fault is None:
            webhook_outbox.mark_delivered(self._database, message)
            log.info("webhook-delivered", **names, attempts=message.attempts)
            return True
        seconds = retry_wait(message.attempts, self._first_wait_seconds, random.random())
        webhook_outbox.retry_in(self._database, message, seconds)
        log.warning(
            "webhook-failed", **names, attempts=message.attempts, reason=fault, again_in=round(seconds)
        )
        return True

    def _post(self, message: Message) -> str | None:
        """Send a message; return why it was not accepted, None = it was."""
        body = payload(message)
        now = int(time.time())
        signed = signed_headers(message.id, body, now, sign=self._key.sign_webhook, secret=self._secret)
        try:
            answer = outgoing_requests.request(
                "POST",
                self._url,
                seconds=self._timeout_seconds,
                most_bytes=0,
                content=body,
                headers=_HEADERS | signed,
            )
        except outgoing_requests.NoAnswer as error:
            return str(error)
        return None if answer.is_success else f"status {answer.status}"


def payload(message: Message) -> bytes:
    """Encode a message; all attempts send the same bytes."""
    document = {
        "type": message.kind,
        "timestamp": utc_text(message.created_at),
        "data": {"federation": message.federation_id, **message.data},
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def retry_wait(attempts: int, first_seconds: float, draw: float) -> float:
    """Return the seconds until the next attempt: four times longer each time, an hour at most.

    `draw`, uniform in [0, 1), spreads them over 0.5 to 1.5 times that.
    """
    return min(_MAX_WAIT_SECONDS, first_seconds * 4.0 ** min(attempts - 1, 10)) * (0.5 + draw)


def report_stuck_rounds(database: Database, seconds: float) -> int:
    """Add a message for each stuck round and state that has none; return their number.

    A message's id contains both, so that replicas add it once, and again only after it was deleted.
    """
    with database.read() as session:
        stuck = {
            f"{MESSAGE_ID}stuck_{row.federation_id}_{row.number}_{row.state}": row
            for row in stuck_rounds(session, database_time(session), seconds)
        }
        new = webhook_outbox.missing(session, stuck)
    added = 0
    for message_id in sorted(new):
        row = stuck[message_id]
        data = {"round": row.number, "state": row.state, "since": utc_text(waiting_since(row))}
        with database.write() as session:
            added += webhook_outbox.add(
                session, row.federation_id, "round.stuck", data, message_id=message_id
            )
    return added


def utc_text(moment: datetime) -> str:
    """Return a time as RFC 3339 with a `Z`."""
    return moment.isoformat().replace("+00:00", "Z")
