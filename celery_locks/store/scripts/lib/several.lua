-- Part of acquire: several locks in one step, all or none.
--
-- Nobody waits while it holds a part of them: a caller that cannot have all of them joins the queue of
-- each with the same ticket, and holds none. In each queue nobody passes it. hand_over does not grant it
-- a slot but wakes it, and it asks again for all. Tickets have one order in all queues, so the waiter
-- with the lowest ticket is first in each of its queues and gets its locks as soon as their holders end:
-- such waiters cannot block each other for ever.
--
-- A lock may be free while such a waiter is in its queue. The marker QUEUE_MARKER (overrides.lua) keeps
-- callers out of the hot path then.

local wanted = {{held = held, queue = queue, token = token, tail = record_tail, limit = limit}}
for i = 1, #options.also, 3 do
  local also_held, also_queue, tail = unpack(options.also, i, i + 2)
  wanted[#wanted + 1] = {
    held = also_held,
    queue = also_queue,
    token = token .. '/' .. #wanted,
    tail = tail,
    limit = tonumber(tail:match('^%d+ (%d+)')),
  }
end

local function own_scores(key)
  local scores = {}
  for _, lock in ipairs(wanted) do
    scores[#scores + 1] = redis.call('ZSCORE', lock[key], lock.token) or nil
  end
  return scores
end

-- Hand the lock over to those who come first, and see whether this caller may have it.
local function inspect(lock)
  local matching, over = match_patterns(name_of(lock.held))
  if over[1] then drop_patterns(over) end
  apply_patterns(lock.held, lock.queue, read_markers(lock.held), matching, options.wait)
  local operator_limit, pause = read_overrides(lock.held, read_markers(lock.held))
  local guard = guard_marker(lock.held, options.wait)
  lock.pause = pause or matching[1] or guard
  drop(lock.held, redis.call('ZRANGEBYSCORE', lock.held, '-inf', now(), 'WITHSCORES'))
  local is_behind = not lock.pause and select(2, hand_over(lock.held, lock.queue, lock.token))
  lock.holders = redis.call('ZRANGEBYSCORE', lock.held, '-inf', '(+inf', 'WITHSCORES')
  lock.earlier, lock.copy = same_job(lock.holders)
  local shared, others = is_shared(lock.held), others_than(lock.holders, lock.earlier)
  local takes_over = lock.earlier and (shared == (lock.limit == 0) or not others[1])
  local is_free = takes_over or not is_behind and fits(lock.limit, #others / 2, shared, operator_limit)
  lock.is_free = is_free and not lock.pause and not lock.copy
end

local function leave()
  for _, lock in ipairs(wanted) do
    redis.call('ZREM', lock.held, lock.token)
    redis.call('ZREM', lock.queue, lock.token)
    redis.call('HDEL', records, lock.token)
  end
  for _, lock in ipairs(wanted) do pass_on(lock.held, lock.queue) end
end

-- Join every queue with one ticket; a repeated call keeps it, unless one of the queues has lost it.
local function enqueue_all(blocked)
  local alive_until, tickets = now() + options.wait[1], own_scores('queue')
  local ticket = tickets[1]
  for i = 1, #wanted do
    if tickets[i] ~= ticket then ticket = nil end
  end
  ticket = ticket and tonumber(ticket) or next_number()
  for _, lock in ipairs(wanted) do
    redis.call('HSET', records, lock.token, string.format('0 %.0f ', alive_until) .. lock.tail)
    redis.call('ZADD', index, 'GT', alive_until, name_of(lock.held))
    redis.call('ZADD', lock.queue, ticket, lock.token)
    redis.call('ZADD', lock.held, '+inf', QUEUE_MARKER)
  end
  for i = next_key, #KEYS do
    redis.call('SET', KEYS[i], blocked.token .. ' ' .. name_of(blocked.held), 'PX', options.wait[1])
  end
  return ticket
end

local function busy_at(number)
  local lock, ticket = wanted[number], 0
  if lock.copy then
    leave()
    lock.holders = lock.copy
  elseif options.wait then
    ticket = enqueue_all(lock)
  end
  local position = (redis.call('ZRANK', lock.queue, lock.token) or redis.call('ZCARD', lock.queue)) + 1
  local lapses = lock.holders[2] and lock.holders[2] - now() or NOBODY_LAPSES_MS
  local reply = {'busy', lapses, position, now(), ticket, 0, lock.pause or ''}
  for i = 1, math.min(#lock.holders, 16), 2 do
    reply[#reply + 1] = lock.holders[i]
    reply[#reply + 1] = lock.holders[i + 1]
    reply[#reply + 1] = record_of(lock.holders[i])
  end
  return {'busy_at', number - 1, reply}
end

-- The reply of a grant: the µs until the start, with rates, and then the fences.
local function several_granted()
  return {'several', start_at and math.max(0, start_at - micros) or 0}
end

-- The rates are decided when all locks are free. Returns the reply if a rate is not.
local function limited_all()
  local reply = options.rates and rate_limit(options.rates, rate_member)
  if reply then leave() end
  return reply
end

local function grant_all()
  local reply = several_granted()
  for _, lock in ipairs(wanted) do
    if lock.earlier then
      note_past('held', lock.held, lock.earlier, now(), 'its next attempt took it over')
      redis.call('ZREM', lock.held, lock.earlier)
      redis.call('HDEL', records, lock.earlier)
    end
    redis.call('ZREM', lock.queue, lock.token)
    reply[#reply + 1] = grant(lock.held, lock.token, now() + ttl, lock.tail)
  end
  on_grant()
  for _, lock in ipairs(wanted) do hand_over(lock.held, lock.queue) end
  return reply
end

-- The same token acquires again: its reply was lost.
local function confirm_all()
  local reply = several_granted()
  for _, lock in ipairs(wanted) do
    redis.call('ZADD', index, 'GT', now() + ttl, name_of(lock.held))
    redis.call('ZADD', lock.held, now() + ttl, lock.token)
    reply[#reply + 1] = tonumber(redis.call('HGET', records, lock.token):match('^%d+'))
  end
  on_grant()
  return reply
end

local function acquire_all()
  now() -- the rates need it
  local held_parts = #own_scores('held')
  if held_parts == #wanted then return limited_all() or confirm_all() end
  if held_parts > 0 then leave() end -- an operator took one of them
  for _, lock in ipairs(wanted) do inspect(lock) end
  for number, lock in ipairs(wanted) do
    if not lock.is_free then return busy_at(number) end
  end
  return limited_all() or grant_all()
end
