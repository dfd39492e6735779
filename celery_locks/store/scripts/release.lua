-- release: give the slot back and hand it over to the next waiter; a waiter leaves the queue by it too.
-- KEYS after the 9 below: the marks to leave (marks.lua), also if the lock is not held
-- ARGV 1 token
--      optional, all or none:
--      2 ms to keep the slot taken (at_least), or 0
--      3 the token to keep it under, '' for one that nobody knows; 'q*…' for a message that is requeued
--      4 value, 5 ms of the first mark, ...
--      and one more at the end to note the hold in the history (past.lua): why it ended, '' by itself
-- returns 1 released, 0 not held by this token (lapsed and taken, or only waiting); 3 released, and a
-- parked message was woken: the caller may poll at once (poll_due.lua)
--
-- ZREM comes first: it needs no memory, and after a first write a script may continue under OOM.
-- Model: Release in Lock.tla and Park.tla.

--keys records index fence past usual completed due held queue
--include clock
--include names

local token, keep_ms = ARGV[1], tonumber(ARGV[2] or 0)
local was_held = redis.call('ZREM', held, token)
-- A message in the queue (park.lua) was parked again after it was woken: this release is about the slot
-- that it had before, and the message stays.
local is_gone = was_held == 1 or token:sub(1, 1) ~= 'k'
if was_held == 0 and is_gone then redis.call('ZREM', queue, token) end

local next_value = 4
if #KEYS > 9 then
--include marks
  for i = 10, #KEYS do
    leave_mark(KEYS[i], ARGV[next_value], ARGV[next_value + 1], token)
    next_value = next_value + 2
  end
end

local note = was_held == 1 and ARGV[next_value]
local needs_record = note or keep_ms > 0
if not needs_record then
  -- The hot path, nobody is left: it returns before the other functions are created.
  if is_gone then redis.call('HDEL', records, token) end
  if redis.call('EXISTS', held, queue) == 0 then
    redis.call('ZREM', index, name_of(held))
    return was_held
  end
end

--include common
--include handover

if note then note_past('held', held, token, now(), note) end
local record = keep_ms > 0 and was_held == 1 and redis.call('HGET', records, token)
if needs_record and is_gone then redis.call('HDEL', records, token) end
if record then
  -- Kept under another token, so that a renewal on its way cannot extend it.
  local next_token = ARGV[3] ~= '' and ARGV[3] or '-' .. token
  if next_token:sub(1, 2) == 'q*' then
    -- Attempt 0, as at publish: the same attempt comes back and has to take it over.
    record = record:gsub('^(%d+ %d+ %d+ %d+ %S+ )%d+', '%10')
  end
  redis.call('HSET', records, next_token, record)
  redis.call('ZADD', index, 'GT', now() + keep_ms, name_of(held))
  redis.call('ZADD', held, now() + keep_ms, next_token)
  return 1
end
pass_on(held, queue)
return was_held == 1 and woke_message and 3 or was_held
