-- Shared by the scripts of locks: the layout of the keys, the clock, and the grant of a lock.
--
-- A line "--include <name>" is replaced by the text of lib/<name>.lua. A line "--keys <name> ..." names
-- KEYS in their order and becomes local variables. Every redis key is the root of one shard,
-- "<prefix>:{<shard>}:", and one of the following; a script gets every key that it touches in KEYS.
--   h:<name>  zset    token -> expiry ms        the holders; a lapsed one stays until its slot is needed
--   q:<name>  zset    token -> ticket           the waiters, first come first served
--   records   hash    token -> record           the record of each holder and waiter
--   index     zset    name  -> latest expiry ms  the names in use, so that no SCAN is needed; may be late, never early
--   w:<owner> string  "<token> <name>"          the waiter of an owner that holds other locks (owners.py);
--                     expires with the waiter's time to live, and is ignored once the waiter has left the queue
--   fence     string  the last number given out, as a fence or as a ticket
--   log       stream  actions of operators, about the last 1000 (action_log.lua)
--   past      stream  holds of more than a second that ended or lapsed, about the last 1000 (past.lua)
--   usual     hash    task -> "<ms> <ms> ...", its last 16 holds, latest first; at most 1000 tasks
--   notices   hash    token -> notice           what holders are told when they renew (notices.lua)
--   Others: marks (marks.lua), buffers (batches.lua), inventory (take_item.lua), replies (saved_replies.lua).
--
-- record = "<fence> <since> <ttl> <limit> <job> <attempt> <channel> <length of name> <name><about>",
-- times in ms by this server's clock.
-- Attempt 0 is a queued message that has not started. A waiter has fence 0, and its `since` is the
-- time until which it counts as alive.
--
-- Invariant of every script: while a waiter is alive, no slot is free. So no holders means no queue.

-- A hybrid clock: strictly increasing, and above every number from before a restart or a FLUSHALL.
local function next_number()
  now()
  local number = micros
  local last = tonumber(redis.call('SET', fence, number, 'GET') or 0)
  if number > last then return number end
  redis.call('SET', fence, last + 1)
  return last + 1
end

-- `tail` is the record without fence and since. The holders' zset is written last: if an earlier
-- write fails (a key of another type), there is no lock.
local function grant(held, token, expiry, tail, number, since)
  number = number or next_number()
  redis.call('ZADD', index, 'GT', expiry, name_of(held))
  redis.call('HSET', records, token, string.format('%.0f %.0f ', number, since or now()) .. tail)
  redis.call('ZADD', held, expiry, token)
  return number
end
