-- release: give the slot back and hand it to the next in line; a waiter leaves the queue by it too.
-- ARGV 1 name  2 token
--      and, unless there is nothing of the kind to say:
--      3 ms to keep the slot taken still (at_least), or 0
--      4 the token to keep it under, '' for one that nobody knows
--      5 mark, 6 value, 7 ms; 8 mark, ...: what to leave behind (marks.lua), ours or not
--      and one more at the end if the hold is worth a note (note_past): why it ended, '' by itself
-- returns 1 released, 0 not ours (lapsed and taken, or only waiting)
--
-- ZREM comes first: it needs no memory, and after a first write a script may go on under OOM.

--include common

local name, token = ARGV[1], ARGV[2]
local held, queue = root .. 'h:' .. name, root .. 'q:' .. name
local was_held = redis.call('ZREM', held, token)
if was_held == 0 then redis.call('ZREM', queue, token) end
if not ARGV[3] then
  -- As most are: nothing to leave, and nobody left. What only the others need comes after it.
  redis.call('HDEL', records, token)
  if redis.call('EXISTS', held, queue) == 0 then
    redis.call('ZREM', index, name)
    return was_held
  end
end

--include ends
--include marks

if not ARGV[3] then
  pass_on(name)
  return was_held
end
local keep = tonumber(ARGV[3])
for i = 5, #ARGV - 2, 3 do leave_mark(ARGV[i], ARGV[i + 1], ARGV[i + 2], token) end
if #ARGV % 3 == 2 and was_held == 1 then note_past('held', name, token, now(), ARGV[#ARGV]) end
local record = keep > 0 and was_held == 1 and redis.call('HGET', records, token)
redis.call('HDEL', records, token)
if record then
  -- Kept under another token, so that a renewal still on its way cannot lengthen it.
  local kept = ARGV[4] ~= '' and ARGV[4] or '-' .. token
  redis.call('HSET', records, kept, record)
  redis.call('ZADD', index, 'GT', now() + keep, name)
  redis.call('ZADD', held, now() + keep, kept)
  return 1
end
pass_on(name)
return was_held
