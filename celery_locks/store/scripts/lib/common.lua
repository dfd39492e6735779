-- Shared by most scripts: the layout of the keys, the clock, and the grant of a lock.
--
-- A line "--include <name>" is replaced by the text of lib/<name>.lua; common is included first.
--
-- KEYS[1] is the root of one shard, "<prefix>:{<shard>}:". Every redis key is the root plus one of:
--   h:<name>  zset    token -> expiry ms        the holders; a lapsed one stays until its slot is needed
--   q:<name>  zset    token -> ticket           the waiters, first come first served
--   records   hash    token -> record           the record of each holder and waiter
--   index     zset    name  -> latest expiry ms  the names in use, so that no SCAN is needed; may be late, never early
--   w:<owner> string  token                     the waiter of an owner that holds other locks (owners.py);
--                     expires with the waiter's time to live, and is ignored once the waiter has left the queue
--   fence     string  the last number given out, as a fence or as a ticket
--   log       stream  actions of operators, about the last 1000 (action_log.lua)
--   past      stream  holds of more than a second that ended or lapsed, about the last 1000 (past.lua)
--   usual     hash    task -> "<ms> <ms> ...", its last 16 holds, latest first; at most 1000 tasks
--   stops     hash    token -> 1                holders that are asked to stop (stop.lua)
--   r:<token> string  "<length of by> <by><why>"  the lock was force-released; kept for two ttl, at least a minute
--   Others: completed work (marks.lua), buffers (batches.lua), inventory (take_item.lua), replies (saved_replies.lua).
--
-- record = "<fence> <since> <ttl> <limit> <job> <attempt> <channel> <length of name> <name><about>",
-- times in ms by this server's clock.
-- Attempt 0 is a queued message that has not started. A waiter has fence 0, and its `since` is the
-- time until which it counts as alive.
--
-- Invariant of every script: while a waiter is alive, no slot is free. So no holders means no queue.

local root = KEYS[1]
local records, index = root .. 'records', root .. 'index'

-- Read the clock once, and only if it is needed: most releases do not need it.
local cached_micros
local function micros()
  if not cached_micros then
    local clock = redis.call('TIME')
    cached_micros = clock[1] * 1000000 + clock[2]
  end
  return cached_micros
end
local function now() return math.floor(micros() / 1000) end

-- A lapsed name is deleted this much later; until then its holder may still renew it.
local FORGET_MS = 60000

-- A hybrid clock: strictly increasing, and above every number from before a restart or a FLUSHALL.
local function next_number()
  local key, number = root .. 'fence', micros()
  local last = tonumber(redis.call('SET', key, string.format('%.0f', number), 'GET') or 0)
  if number > last then return number end
  redis.call('SET', key, string.format('%.0f', last + 1))
  return last + 1
end

-- `tail` is the record without fence and since. The holders' zset is written last: if an earlier
-- write fails (a key of another type), there is no lock.
local function grant(name, token, expiry, tail, fence, since)
  fence = fence or next_number()
  redis.call('ZADD', index, 'GT', expiry, name)
  redis.call('HSET', records, token, string.format('%.0f %.0f ', fence, since or now()) .. tail)
  redis.call('ZADD', root .. 'h:' .. name, expiry, token)
  return fence
end
