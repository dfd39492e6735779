"""The calls that workers make about parked messages, by the names of jobs."""

from __future__ import annotations

from typing import Any

from celery_locks import Conflict, Holder, Locks
from celery_locks.store.commands.locks import (
    WOKE,
    AcquireExtras,
    ParkRequest,
    ended_mark,
    reservation_token,
)
from celery_locks.store.commands.parking import Due, ParkCommands, ParkedMessage
from celery_locks.store.commands.replies import Parked, Rejection
from celery_locks.types import LockSpec

Answer = int | Conflict | Rejection


def parked_token(job: str) -> str:
    return reservation_token(job, parked=True)


class ParkedCalls:
    """One process for the store: it runs jobs, parks them, and wakes those that are due."""

    def __init__(self, locks: Locks, *, lifetime: float = 60.0, most: int = 1000) -> None:
        self.locks = locks
        self.lifetime = lifetime
        self.most = most
        self.commands = ParkCommands(locks.commands)

    def start(self, job: str, name: str = "a", **options: Any) -> Answer:
        """Acquire the lock for a run, as the first call of a task does: it parks nothing."""
        return self._acquire(job, name, parks=False, **options)

    def start_or_park(self, job: str, name: str = "a", **options: Any) -> Answer:
        """Acquire the lock for a run, or park its message."""
        return self._acquire(job, name, parks=True, **options)

    def _acquire(
        self,
        job: str,
        name: str,
        *,
        parks: bool,
        attempt: int = 1,
        limit: int = 1,
        token: str = "",
        message: str = "",
        ttl: float = 30.0,
        reject_if_ended: bool = True,
        group: str = "",
        rank: int = 0,
    ) -> Answer:
        spec, holder = LockSpec(name, ttl, limit), Holder(task_id=job, task="bill")
        park = ParkRequest(
            holder._replace(retries=-1),
            attempt,
            self.lifetime,
            message or f"message {attempt} of {job}",
            self.most,
            group,
            rank=rank,
        )
        extras = AcquireExtras(reject_if_ended=reject_if_ended, park=park if parks else None)
        call = self.locks.commands.acquire(
            spec, token or f"run-{job}", holder._replace(retries=attempt - 1), extras
        )
        answer: Answer = self.locks.perform(call)
        return answer

    def publish_or_park(self, job: str, name: str = "a", limit: int = 1) -> Answer:
        """Acquire the reservation of a call that is published, or park its message."""
        holder = Holder(task_id=job, task="bill", retries=-1)
        park = ParkRequest(holder, 0, self.lifetime, f"message 0 of {job}", self.most)
        call = self.locks.commands.acquire(
            LockSpec(name, self.lifetime, limit),
            reservation_token(job),
            holder,
            AcquireExtras(park=park),
        )
        answer: Answer = self.locks.perform(call)
        return answer

    def park(self, *jobs: str, name: str = "a", **options: Any) -> None:
        for job in jobs:
            answer = self.start_or_park(job, name, **options)
            assert isinstance(answer, Parked), answer

    def end(self, job: str, name: str = "a", *, attempt: int = 1, token: str = "") -> int:
        """Release the lock after a run, with the mark that this attempt has ended."""
        mark = ended_mark(Holder(task_id=job, retries=attempt - 1), 60)
        reply: int = self.locks.perform(
            self.locks.commands.release(name, token or f"run-{job}", marks=[mark])
        )
        return reply

    def release(self, token: str, name: str = "a") -> int:
        reply: int = self.locks.perform(self.locks.commands.release(name, token))
        return reply

    def poll(self, name: str = "a") -> Due:
        due: Due = self.locks.perform(self.commands.poll(self.locks.commands.root(name)))
        return due

    def look_at(self, *names: str) -> bool:
        """Give the free slots of locks to those who wait, as a worker that polls does."""
        root = self.locks.commands.root(names[0])
        woke: bool = self.locks.perform(self.commands.wake_waiters(root, names))
        return woke

    def confirm(self, *messages: ParkedMessage, name: str = "a") -> int:
        root = self.locks.commands.root(name)
        count: int = self.locks.perform(self.commands.confirm(root, messages))
        return count

    def unpark(self, job: str, name: str = "a", *, publish: bool) -> str:
        call = self.commands.unpark(name, parked_token(job), publish=publish)
        message: str = self.locks.perform(call)
        return message

    def take(self, job: str, name: str = "a") -> ParkedMessage:
        """Poll, and expect the message of this job and no other."""
        due = self.poll(name)
        assert [it.token for it in due.messages] == [parked_token(job)]
        return due.messages[0]

    def wake(self, job: str, name: str = "a") -> None:
        """Publish and confirm the only message that is due."""
        assert self.confirm(self.take(job, name), name=name) == 1

    def waiting(self, name: str = "a") -> list[str]:
        info = self.locks.info(name)
        return [it.token for it in info.waiters] if info else []

    def holding(self, name: str = "a") -> list[str]:
        return [it.token for it in self.locks.holders(name)]


__all__ = ["WOKE", "ParkedCalls", "parked_token"]
