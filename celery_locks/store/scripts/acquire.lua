-- acquire: grant a slot, or join the queue, or report who holds the lock. Safe to repeat with one token.
-- ARGV 1 name  2 token  3 ttl ms  4 record without fence and since; '-' for no job or no channel
--      5 optional: ms for which the caller counts as alive in the queue, 0 if it does not wait; then,
--        each after a space, the owners (owners.py) that hold other locks and wait in this call
--      6 to 14 optional, all or none: the extras
--        6 '1': reject the call if this attempt of the job has ended elsewhere (completed.lua)
--        7 name, 8 token of a reservation to release with the grant, or '' (on_grant.lua)
--        9 token of a reservation to replace, or '' (replace.lua)
--        10 job that this one supersedes, marked as ended with the grant, or ''  11 ms of that mark
--        12 mark that the work of this lock is completed, or ''  13 reuse  14 ms of that mark (completed.lua)
-- returns the fence (an integer): granted
--         {'replaced', fence}: granted in place of reservation 9, whose `since` it keeps
--         {'done', attempt}: the attempt has ended; {'done', '?'}: the message is being replaced
--         {'once', mark}: the work is completed
--         {'limit', n}: the lock is held with another limit, n
--         {'busy', ms until a holder lapses, position, now, ticket or 0, [token, expiry, record]...}: up
--         to 8 holders; only the copy if another copy of this message runs, and then the caller is not
--         queued. A later grant has a fence above the ticket.

--include common

local name, token, ttl, tail = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local held = root .. 'h:' .. name

-- At most two a call: only acquire creates names, so they cannot pile up.
local function lapsed_names()
  return redis.call('ZRANGEBYSCORE', index, '-inf', now() - FORGET_MS, 'LIMIT', 0, 2)
end

-- The hot path, a free lock and no extras, returns before the functions of the other paths are created.
local fence
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
if not holders[1] and not ARGV[6] then
  fence = grant(name, token, now() + ttl, tail)
  if not lapsed_names()[1] then return fence end
end

--include saved_replies
--include handover
--include marks

local function forget_lapsed_names()
  for _, lapsed in ipairs(lapsed_names()) do
    for _, key in ipairs({root .. 'h:' .. lapsed, root .. 'q:' .. lapsed}) do
      -- pcall: a value of another type under our key is not ours to delete.
      drop(key, lapsed, redis.pcall('ZRANGE', key, 0, -1, 'WITHSCORES'))
    end
    redis.call('ZREM', index, lapsed)
  end
end

if fence then
  forget_lapsed_names()
  return fence
end

local queue = root .. 'q:' .. name
local has_extras = ARGV[6] ~= nil
local limit, job, attempt = tail:match('^%d+ (%d+) (%S+) (%d+)')
limit, attempt = tonumber(limit), tonumber(attempt)

local function record_of(holder)
  return redis.call('HGET', records, holder) or ''
end

local function remove_holder(holder)
  redis.call('ZREM', held, holder)
  redis.call('HDEL', records, holder)
end

--include on_grant

local function grant_slot(since)
  local granted = grant(name, token, now() + ttl, tail, nil, since)
  on_grant()
  forget_lapsed_names()
  return granted
end

--include completed
--include replace

if has_extras then
  local reply = repeated_replacement() or completed_reply()
  if reply then return reply end
end
if not holders[1] then return grant_slot() end

--include enqueue
--include takeover

-- The same token acquires again: its reply was lost, or it was granted the lock and claims it.
local function confirm()
  redis.call('ZADD', index, 'GT', now() + ttl, name)
  redis.call('ZADD', held, now() + ttl, token)
  on_grant()
  return tonumber(redis.call('HGET', records, token):match('^%d+'))
end

for i = 1, #holders, 2 do
  if holders[i] == token then
    local _, copy = same_job(holders)
    return copy and yield_to(copy) or confirm()
  end
end

local has_room = #holders / 2 < limit
while holders[1] and tonumber(holders[2]) <= now() do
  note_past('lapsed', name, holders[1], holders[2], LAPSED)
  remove_holder(table.remove(holders, 1))
  table.remove(holders, 1)
  has_room = true
end
local is_next = false
if has_room then
  -- Waiters come first; this call may use only the slots that they leave.
  is_next = select(2, hand_over(name, token))
  holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
end

if holders[1] then
  local held_limit = tonumber(record_of(holders[1]):match('^%d+ %d+ %d+ (%d+)'))
  if held_limit and held_limit ~= limit then
    leave_queue()
    return {'limit', held_limit}
  end
end
local earlier, copy = same_job(holders)
if copy then return yield_to(copy) end
local replaced = has_extras and replace_reservation()
if replaced then return replaced end
if earlier then take_over(earlier) end
if is_next or earlier then redis.call('ZREM', queue, token) end
if is_next or earlier or #holders / 2 < limit then return grant_slot() end
return busy(holders, is_waiting())
