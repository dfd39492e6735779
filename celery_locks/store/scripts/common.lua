-- What most verbs share: where things are, what time it is, and how a lock is granted.
--
-- A line "--include <name>" stands for the text of that file; common comes before all others.
--
-- KEYS[1] is the root of one shard, "<prefix>:{<shard>}:". Every key is the root plus one of:
--   h:<name>  zset    token -> expiry ms        the holders; lapsed ones stay until someone needs the room
--   q:<name>  zset    token -> ticket           the waiters, first come first served
--   records   hash    token -> record           what each holder and waiter is, and got
--   index     zset    name  -> latest expiry ms  which locks there are, without SCAN; may be late, never early
--   w:<owner> string  token                     the wait of a flow of control that holds locks too (owners.py);
--                     gone with the waiter's time to live, and means nothing once that waits no more
--   fence     string  the last number given out, as fence or as ticket
--   log       stream  what operators did, the last 1000 or so (log.lua)
--   past      stream  holds of more than a second that ended or lapsed, the last 1000 or so (ends.lua)
--   usual     hash    task -> "<ms> <ms> ...", its last 16 such holds, latest first; 1000 tasks at most
--   stops     hash    token -> 1                holders that are asked to stop (stop.lua)
--   r:<token> string  "<length of by> <by><why>"  it was taken by force; two ttl long, a minute at least
--   and what is left when work ends (marks.lua), buffers (batches.lua), tickets (take.lua) and answers (again.lua)
--
-- record = "<fence> <since> <ttl> <limit> <job> <attempt> <channel> <length of name> <name><about>",
-- times in ms by this server.
-- Attempt 0 is a message that nobody has begun. A waiter has fence 0 and, as since, the moment until
-- which it counts as alive.
--
-- Kept by every verb: where a waiter lives, no slot is free, so no holders means no queue.

local root = KEYS[1]
local records, index = root .. 'records', root .. 'index'

-- This server's clock, asked once, and by a call that needs it only: most releases do not.
local moment
local function micros()
  if not moment then
    local clock = redis.call('TIME')
    moment = clock[1] * 1000000 + clock[2]
  end
  return moment
end
local function now() return math.floor(micros() / 1000) end

-- A lapsed name is forgotten this long after; until then its holder may still revive it.
local FORGET_MS = 60000

-- The hybrid clock: strictly increasing, and past anything given before a restart or a FLUSHALL.
local function next_number()
  local key, number = root .. 'fence', micros()
  local last = tonumber(redis.call('SET', key, string.format('%.0f', number), 'GET') or 0)
  if number > last then return number end
  redis.call('SET', key, string.format('%.0f', last + 1))
  return last + 1
end

-- The holder's zset goes last: whatever fails before it (a key of a foreign type) leaves no lock.
local function grant(name, token, expiry, rest, fence, since)
  fence = fence or next_number()
  redis.call('ZADD', index, 'GT', expiry, name)
  redis.call('HSET', records, token, string.format('%.0f %.0f ', fence, since or now()) .. rest)
  redis.call('ZADD', root .. 'h:' .. name, expiry, token)
  return fence
end
