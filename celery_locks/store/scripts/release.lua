-- release: give the slot back and hand it to the next in line; a waiter leaves the queue by it too.
-- ARGV 1 name  2 token  3 ms to keep the slot taken still (at_least), or 0
--      4 mark, 5 value, 6 ms; 7 mark, ...: what to leave behind (marks.lua), ours or not
-- returns 1 released, 0 not ours (lapsed and taken, or only waiting)
--
-- ZREM comes first: it needs no memory, and after a first write a script may go on under OOM.

local name, token, keep = ARGV[1], ARGV[2], tonumber(ARGV[3])
local held = root .. 'h:' .. name
local was_held = redis.call('ZREM', held, token)
if was_held == 0 then redis.call('ZREM', root .. 'q:' .. name, token) end
for i = 4, #ARGV, 3 do leave_mark(ARGV[i], ARGV[i + 1], ARGV[i + 2], token) end
local record = keep > 0 and was_held == 1 and redis.call('HGET', records, token)
redis.call('HDEL', records, token)
if record then
  -- Kept under another token, so that a renewal still on its way cannot lengthen it.
  redis.call('HSET', records, '-' .. token, record)
  redis.call('ZADD', index, 'GT', now + keep, name)
  redis.call('ZADD', held, now + keep, '-' .. token)
  return 1
end
pass_on(name)
return was_held
