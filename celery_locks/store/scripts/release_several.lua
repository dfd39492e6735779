-- release_several: give several locks back that were acquired together (lib/several.lua), in one step; a
-- waiter leaves all its queues by it too.
-- KEYS after those below: h:<name>, q:<name> of each lock; then the marks to leave (marks.lua)
-- ARGV 1 token  2 number of locks  3 ms to keep the slots taken (at_least), or 0
--      4 value, 5 ms of the first mark, ...
--      and one more at the end to note the holds in the history (past.lua): why they ended, '' by themselves
-- returns 1 released, 0 one of them was not held by this token

--keys records index fence past usual completed due
--include clock
--include names
--include common
--include handover
--include marks

local count, keep_ms, released = tonumber(ARGV[2]), tonumber(ARGV[3]), 1
local note = #ARGV % 2 == 0 and ARGV[#ARGV]

local function release(held, queue, token)
  if redis.call('ZREM', held, token) == 0 then
    redis.call('ZREM', queue, token)
    redis.call('HDEL', records, token)
    released = 0
    return
  end
  if note then note_past('held', held, token, now(), note) end
  local record = redis.call('HGET', records, token)
  redis.call('HDEL', records, token)
  if record and keep_ms > 0 then
    redis.call('HSET', records, '-' .. token, record)
    redis.call('ZADD', index, 'GT', now() + keep_ms, name_of(held))
    redis.call('ZADD', held, now() + keep_ms, '-' .. token)
  end
end

for i = 0, count - 1 do
  release(KEYS[8 + 2 * i], KEYS[9 + 2 * i], i == 0 and ARGV[1] or ARGV[1] .. '/' .. i)
end
local next_value = 4
for i = 8 + 2 * count, #KEYS do
  leave_mark(KEYS[i], ARGV[next_value], ARGV[next_value + 1], ARGV[1])
  next_value = next_value + 2
end
for i = 0, count - 1 do pass_on(KEYS[8 + 2 * i], KEYS[9 + 2 * i]) end
return released
