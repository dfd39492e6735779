-- Part of acquire: park the message of a task whose lock is busy.
--
-- A parked message waits in the queue of the lock like any waiter, as data: no process waits for it. Its
-- token is 'k' and the task's id, its record has attempt 0, and the slot that it is granted is a
-- reservation, which its run takes over (takeover.lua).
--   parked    hash  token -> "<attempt> <number> <message>", or "!<job> <number> <message>": it shall not run,
--                   because the message of that job took its place. The message is the publisher's business
--                   (waking.py). The number is new each time that the message is parked. A message may be
--                   parked again before its earlier publication is confirmed, and that confirmation must not
--                   delete it.
--   g:<name>  hash  'g'<group> -> its last ticket, for a day after the last message (fair_by); and LATEST ->
--                   the token of the message that the next one replaces (keep_latest)
--   due       zset  what workers have to do, and when, in ms (poll_due.lua):
--                   token      publish this message: it was woken, and nobody has confirmed it yet
--                   'n'<name>  look whether a holder of this lock has lapsed
-- Model: AcquireOrPark in Park.tla.

-- A parked message waits for as long as it takes: ten years.
local PARKED_MS = 315360000000
-- A worker looks at least this often at a lock with parked messages.
local LOOK_MS = 5000

-- Groups take turns: each message of a group has a ticket that is one turn after the one before. A group
-- that comes new, or has nothing in the queue, joins the turn that is first in the queue.
local TURN = 1000000
local GROUPS_MS = 86400000

-- Priorities: tickets are microseconds, and a message whose rank is one higher comes as if it had been parked
-- so much earlier, 289 days. All who wait without a priority have rank 0. Ranks are from -255 to 255, so that
-- a ticket is an exact number in a double until the year 2050.
local RANK = 25000000000000

-- The first of rank 0: groups have no priority.
local function first_ticket(number)
  return redis.call('ZRANGEBYSCORE', queue, number - RANK / 2, number + RANK / 2, 'WITHSCORES', 'LIMIT', 0, 1)[2]
end

local function ticket_of(groups, group, number, rank)
  if redis.call('EXISTS', queue) == 0 then redis.call('DEL', groups) end
  if group == '' then return number - rank * RANK end
  local first = first_ticket(number)
  local last = redis.call('HGET', groups, 'g' .. group)
  local ticket = math.max(first and tonumber(first) or number, last and last + TURN or 0)
  redis.call('HSET', groups, 'g' .. group, string.format('%.0f', ticket))
  redis.call('PEXPIRE', groups, GROUPS_MS)
  return ticket
end

local function put_in_queue(parked_token, number, groups, group, rank)
  local ticket
  if redis.call('ZREM', held, parked_token) == 1 then
    -- A woken message that may not run after all, because the lock was paused, comes first again.
    local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
    ticket = math.min(number - rank * RANK, first and first - 1 or math.huge)
  end
  redis.call('ZADD', queue, ticket or ticket_of(groups, group, number, rank), parked_token)
  redis.call('ZREM', due, parked_token)
end

local LATEST = 'latest'

-- Let the message of this call take the place of the one that waits: that one shall not run.
local function supersede_waiting(parked, groups, parked_token)
  local earlier = redis.call('HGET', groups, LATEST)
  if earlier and earlier ~= parked_token and redis.call('ZREM', queue, earlier) == 1 then
    local numbered = (redis.call('HGET', parked, earlier) or ''):match('^%S+ (.*)$') or '0 '
    redis.call('HDEL', records, earlier)
    redis.call('HSET', parked, earlier, '!' .. job .. ' ' .. numbered)
    redis.call('ZADD', due, now(), earlier)
    woke_message = true
  end
  redis.call('HSET', groups, LATEST, parked_token)
  redis.call('PEXPIRE', groups, GROUPS_MS)
end

-- Park the message and return the reply; nil if the call has none, or if too many wait. A message that is
-- parked already stays where it is; of two attempts the later one counts.
local function park()
  if not options.park then return end
  local parked, groups, parked_token, parked_attempt, tail, message, most, group, keeps, rank, waited = unpack(options.park)
  local is_queued = redis.call('ZSCORE', queue, parked_token)
  if not is_queued and redis.call('ZCARD', queue) >= tonumber(most) then return end
  local stored, number = redis.call('HGET', parked, parked_token), next_number()
  -- A copy of a message whose place another one took; attempt 0 is a new call to which its caller gave that id.
  if stored and stored:sub(1, 1) == '!' and parked_attempt ~= '0' then return {'ended', string.format('%.0f', SUPERSEDED)} end
  -- Two calls to which the publisher gave one id: the records differ, those of a repeated call do not.
  if is_queued and parked_attempt == '0' and record_of(parked_token):match('^%d+ %d+ (.*)$') ~= tail then return end
  local stored_attempt, stored_message = (stored or ''):match('^(%d+) %d+ (.*)$')
  if stored_attempt and tonumber(stored_attempt) > tonumber(parked_attempt) and parked_attempt ~= '0' then
    parked_attempt, message = stored_attempt, stored_message
  end
  redis.call('HSET', parked, parked_token, string.format('%s %.0f %s', parked_attempt, number, message))
  redis.call('HSET', records, parked_token, string.format('0 %.0f ', now() + PARKED_MS) .. tail)
  redis.call('ZADD', index, 'GT', now() + PARKED_MS, name_of(held))
  -- A run that waited before has been in line since then.
  local came = tonumber(waited) > 0 and tonumber(waited) or number
  if not is_queued then put_in_queue(parked_token, came, groups, group, rank) end
  if keeps == 'latest' and not is_queued then supersede_waiting(parked, groups, parked_token) end
  redis.call('ZADD', due, 'NX', now() + LOOK_MS, 'n' .. name_of(held))
  -- The one that was first may wait for several locks, or have a lower limit: then a slot can be free. So it
  -- can if this message was in the queue with a lower limit.
  if is_queued or tonumber(rank) > 0 then hand_over(held, queue) end
  return {'parked', (redis.call('ZRANK', queue, parked_token) or 0) + 1}
end
