"""A field of a question: a list of holders, each by its lock's name and its token."""

from __future__ import annotations

from typing import Any

from celery_locks.admin import Target
from celery_locks.validation import check_name
from celery_locks.web.params import Param
from celery_locks.web.responses import HttpError

MOST = 100
TOKEN = Param("token", "text", "Only the holder with this token.", least=1, most=2000)


class HoldersField(Param):
    """Of 1 to ``MOST`` objects with ``name`` and ``token``."""

    @property
    def schema(self) -> dict[str, Any]:
        name = {"type": "string", "format": "lock-name", "minLength": 1}
        item = {
            "type": "object",
            "properties": {"name": name, "token": TOKEN.schema},
            "required": ["name", "token"],
            "additionalProperties": False,
        }
        return {"type": "array", "items": item, "minItems": 1, "maxItems": MOST}

    def checked(self, value: Any) -> tuple[Target, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= MOST:
            raise HttpError(400, f"{self.name} must be a list of 1 to {MOST} holders.")
        return tuple(self._target(one) for one in value)

    def _target(self, one: Any) -> Target:
        if not isinstance(one, dict) or set(one) != {"name", "token"}:
            raise HttpError(400, f"Each of {self.name} must be an object with name and token.")
        check_name(one["name"])
        return Target(one["name"], TOKEN.checked(one["token"]))
