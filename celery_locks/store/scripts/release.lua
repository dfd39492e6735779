-- release: give the slot back and hand it over to the next waiter; a waiter leaves the queue by it too.
-- ARGV 1 name  2 token
--      optional, all or none:
--      3 ms to keep the slot taken (at_least), or 0
--      4 the token to keep it under, '' for one that nobody knows
--      5 mark, 6 value, 7 ms; 8 mark, ...: marks to leave (marks.lua), also if the lock is not held
--      and one more at the end to note the hold in the history (past.lua): why it ended, '' by itself
-- returns 1 released, 0 not held by this token (lapsed and taken, or only waiting)
--
-- ZREM comes first: it needs no memory, and after a first write a script may continue under OOM.

--include common

local name, token = ARGV[1], ARGV[2]
local held, queue = root .. 'h:' .. name, root .. 'q:' .. name
local was_held = redis.call('ZREM', held, token)
if was_held == 0 then redis.call('ZREM', queue, token) end
if not ARGV[3] then
  -- The hot path, nothing to leave and nobody left, returns before the other functions are created.
  redis.call('HDEL', records, token)
  if redis.call('EXISTS', held, queue) == 0 then
    redis.call('ZREM', index, name)
    return was_held
  end
end

--include handover
--include marks

if not ARGV[3] then
  pass_on(name)
  return was_held
end
local keep_ms = tonumber(ARGV[3])
for i = 5, #ARGV - 2, 3 do leave_mark(ARGV[i], ARGV[i + 1], ARGV[i + 2], token) end
if #ARGV % 3 == 2 and was_held == 1 then note_past('held', name, token, now(), ARGV[#ARGV]) end
local record = keep_ms > 0 and was_held == 1 and redis.call('HGET', records, token)
redis.call('HDEL', records, token)
if record then
  -- Kept under another token, so that a renewal on its way cannot extend it.
  local kept_token = ARGV[4] ~= '' and ARGV[4] or '-' .. token
  redis.call('HSET', records, kept_token, record)
  redis.call('ZADD', index, 'GT', now() + keep_ms, name)
  redis.call('ZADD', held, now() + keep_ms, kept_token)
  return 1
end
pass_on(name)
return was_held
