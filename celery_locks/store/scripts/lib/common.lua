-- Shared by the scripts of locks: the layout of the keys, the clock, and the grant of a lock.
--
-- A line "--include <name>" is replaced by the text of lib/<name>.lua. A line "--keys <name> ..." names
-- KEYS in their order and becomes local variables. Every redis key is the root of one shard,
-- "<prefix>:{<shard>}:", and one of the following; a script gets every key that it touches in KEYS.
--   h:<name>  zset    token -> expiry ms        the holders; a lapsed one stays until its slot is needed.
--                     Also markers with the score +inf: what operators set for the lock (overrides.lua)
--   q:<name>  zset    token -> ticket           the waiters, first come first served; priorities are in park.lua
--   records   hash    token -> record           the record of each holder and waiter
--   index     zset    name  -> latest expiry ms  the names in use, so that no SCAN is needed; may be late, never early
--   w:<owner> string  "<token> <name>"          the waiter of an owner that holds other locks (owners.py);
--                     expires with the waiter's time to live, and is ignored once the waiter has left the queue
--   fence     string  the last number given out, as a fence or as a ticket; with ' p' while there are patterns
--   epoch     string  when the data of this shard began, and whether data from before is lost (guard.lua)
--   patterns  hash    glob -> pause             the patterns of names that operators paused (patterns.lua)
--   log       stream  actions of operators, about the last 1000 (action_log.lua)
--   past      stream  holds of more than a second that ended or lapsed, about the last 1000 (past.lua)
--   usual     hash    task -> "<ms> <ms> ...", its last 16 holds, latest first; at most 1000 tasks
--   notices   hash    token -> notice           what holders are told when they renew (holder_notices.lua)
--   a:<name>  string  "<token> <arguments>" of the queued message that has the lock (commit_message.lua)
--   n:<name>  string  the fence of the reservation of the latest message that started; exists while a message
--                     without its reservation may come (leave_message.lua)
--   parked, due       the messages that wait for a lock, and what workers have to do for them (park.lua)
--   kept      hash    token -> "<ms> <message>"  messages that are published again if the broker loses them
--                     (keep_message.lua)
--   search    string  exists while a worker searches for those, and until the next search (kept_messages.py)
--   Others: marks (marks.lua), buffers (batches.lua), inventory (take_item.lua), runs of a beat (share_runs.lua),
--   replies (saved_replies.lua), rates (rates.lua).
--
-- record = "<fence> <since> <ttl> <limit> <job> <attempt> <channel> <length of name> <name><about>",
-- times in ms by this server's clock.
-- Limit 0: it shares the lock with others that share it, however many. Attempt 0 is a queued message that
-- has not started. A waiter has fence 0, and its `since` is the time until which it counts as alive.
--
-- Limits: each caller has its own. A caller is granted a slot if fewer than its own limit hold the lock
-- and nobody is in the queue; the first waiter is granted one by its own limit, and nobody passes it. An
-- operator's limit or pause (overrides.lua) takes the place of every caller's limit. A holder that shares
-- the lock and one that does not never hold it together.
--
-- Invariant of every script: while a waiter is alive, no slot is free for the first one, unless that one
-- waits for several locks (several.lua); then h:<name> has a marker. So an empty h:<name> means no queue.

-- A hybrid clock: strictly increasing, and above every number from before a restart or a FLUSHALL.
local has_patterns, last_number = false, nil -- set by next_number(): the number before the new one
local function next_number()
  now()
  local number = micros
  local before = redis.call('SET', fence, number, 'GET') or 0
  local last = tonumber(before)
  last_number = last
  if last and number > last then return number end
  has_patterns = not last -- "<number> p": see patterns.lua
  last_number = last or tonumber(before:match('^%d+'))
  number = math.max(number, last_number + 1)
  redis.call('SET', fence, string.format('%.0f', number) .. (has_patterns and ' p' or ''))
  return number
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
