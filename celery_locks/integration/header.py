"""The one header and property that our messages carry, and what is in it.

In the headers, which retries inherit: ``options`` of this call, ``queued`` (name and token of the
lock that the message holds), ``replaced`` (task id of the message whose place it took, and seconds
to remember that); while it is put back because of a conflict, ``since`` and ``times``; because a
copy of it has ended, ``unseen`` (since when its result is waited for). In the properties of a
request to a pool's child, which nothing inherits: the token of this one execution.
"""

HEADER = "celery_locks"
