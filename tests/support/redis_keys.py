"""Keys on the server, as tests read them."""

import re
from collections.abc import Iterable


def keys_of_locks(keys: Iterable[str | bytes]) -> list[str]:
    """The keys that belong to a lock; not counter and epoch, nor what is kept of past holds.

    Nor what goes by itself: the answers that are kept for a repeated question, the notes of who
    waits (w:) and of the latest message (n:), and that a worker searches for lost messages.
    """
    names = [key.decode() if isinstance(key, bytes) else key for key in keys]
    apart = (":fence", ":epoch", ":past", ":usual", ":search")
    return [name for name in names if not name.endswith(apart) and not re.search("}:[npw]:", name)]
