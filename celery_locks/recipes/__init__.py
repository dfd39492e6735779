"""Once, exactly: the second line of defence, and the atomic helpers that go with locks.

==================  ===============================================================================
``idempotent``      the work for a key is done once; a repeat gets the saved result
``claim``           whoever comes first names it, everyone else gets its name
``claim_or_create`` the same for what has to be made first
``drain``           messages off a Redis list in one step
``Buffer``          users' messages, absorbed in batches: none lost, none handled by two at once
``Tickets``         a stock that is never oversold, one item a user
==================  ===============================================================================

Each takes ``Locks`` or ``AsyncLocks``; with the latter its answer is to be awaited. Values travel
as JSON. Wrong input is refused before anything is written.

What no library can do: a process may die between the end of its work and the mark that says so.
Then the work is done again (``reuse="never"``: is not done at all again). The window is one call.
"""

from celery_locks.recipes.buffer import AsyncBuffer, Buffer
from celery_locks.recipes.claims import claim, claim_or_create, unclaim
from celery_locks.recipes.drain import drain
from celery_locks.recipes.idempotent import DoneWork, done_work, idempotent, reset
from celery_locks.recipes.inventory import AsyncInventory, AsyncTickets, Inventory, Taken, Tickets

__all__ = [
    "AsyncBuffer",
    "AsyncInventory",
    "AsyncTickets",
    "Buffer",
    "DoneWork",
    "Inventory",
    "Taken",
    "Tickets",
    "claim",
    "claim_or_create",
    "done_work",
    "drain",
    "idempotent",
    "reset",
    "unclaim",
]
