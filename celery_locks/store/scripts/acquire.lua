-- acquire: grant a slot, or join the queue, or report who holds the lock. Safe to repeat with one token.
-- KEYS after the 8 below: the keys of the options, in their order; then w:<owner> for each owner
--      (owners.py) that holds other locks and waits in this call
-- ARGV 1 token  2 record without fence and since; '-' for no job or no channel
--      3... options, each with its values:
--      option     keys               values
--      wait                          ms for which the caller counts as alive in the queue; the first option, if given
--      ended      e:<job>                         reject the call if this attempt of the job has ended (reject.lua)
--      release    h:<name> q:<name>  token        a reservation to release with the grant (on_grant.lua)
--      replace    e:<job> p:<token>  token        a reservation to replace, and its job (replace_reservation.lua)
--      supersede  e:<job>            ms           a job to mark as ended with the grant
--      once       o:<name>           reuse, ms    the mark that the work is completed (reject.lua)
-- returns the fence (an integer): granted
--         {'replaced', fence}: granted in place of a reservation, whose `since` it keeps
--         {'ended', attempt}: the attempt has ended; {'ended', '?'}: the message is being replaced
--         {'completed', mark}: the work is completed
--         {'limit', n}: the lock is held with another limit, n
--         {'busy', ms until a holder lapses, position, now, ticket or 0, [token, expiry, record]...}: up
--         to 8 holders; only the copy if another copy of this message runs, and then the caller is not
--         queued. A later grant has a fence above the ticket.

--keys records index fence past usual completed held queue
--include clock
--include names
--include common

local token, record_tail = ARGV[1], ARGV[2]
local ttl = record_tail:match('^%d+')

-- A lock without holders has no live waiters: whoever removes the last holder hands the slot over.
-- The hot path, a free lock and no options, returns before the functions of the other paths are created.
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
if not holders[1] and (not ARGV[3] or ARGV[3] == 'wait' and not ARGV[5]) then
  return grant(held, token, now() + ttl, record_tail)
end

--include options
--include saved_replies
--include handover
--include marks

local limit, job, attempt = record_tail:match('^%d+ (%d+) (%S+) (%d+)')
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
  local number = grant(held, token, now() + ttl, record_tail, nil, since)
  on_grant()
  return number
end

--include reject
--include replace_reservation

-- A repeated call gets its earlier reply: the reservation that it replaced is gone.
local reply = options.replace and saved_reply(options.replace[2]) or rejection()
if reply then return reply end
if not holders[1] then return grant_slot() end

--include enqueue
--include takeover

-- The same token acquires again: its reply was lost, or it was granted the lock and claims it.
local function confirm()
  redis.call('ZADD', index, 'GT', now() + ttl, name_of(held))
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
  note_past('lapsed', held, holders[1], holders[2], LAPSED)
  remove_holder(table.remove(holders, 1))
  table.remove(holders, 1)
  has_room = true
end
local is_next = false
if has_room then
  -- Waiters come first; this call may use only the slots that they leave.
  -- hand_over stops at this caller's own ticket.
  is_next = select(2, hand_over(held, queue, token))
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
local replaced = options.replace and replace_reservation()
if replaced then return replaced end
if earlier then take_over(earlier) end
if is_next or earlier then redis.call('ZREM', queue, token) end
if is_next or earlier or #holders / 2 < limit then return grant_slot() end
return busy(holders, options.wait)
