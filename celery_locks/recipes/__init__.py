"""Idempotent work, and atomic helpers that are built on the locks.

==================  ===============================================================================
``idempotent``      runs the work for a key once; a repeat gets the saved result
``claim``           binds a key to the value of the first caller; the others get that value
``claim_or_create`` the same for a value that has to be created first
``drain``           takes messages off a Redis list in one step
``Buffer``          users' messages, handled in batches: none lost, none handled twice at once
``Inventory``       a stock that is never oversold, one item for each user
==================  ===============================================================================

Each takes ``Locks`` or ``AsyncLocks``; with the latter, await the result. Values are stored as
JSON. Wrong input is refused before anything is written.

No library can prevent this: a process may die between the end of its work and the write of the
mark. Then the work runs again (with ``reuse="never"`` it never runs again). The window is one call.
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
