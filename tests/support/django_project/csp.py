"""As strict as Django's own admin bears."""

from collections.abc import Callable
from typing import Any

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def strict(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return answer
