-- What happens when a slot comes free: note the hold that ended and grant the slot to the next waiter.

-- The claim window: a waiter that is granted the lock must renew it within this time, else the next
-- waiter is tried. CLAIM in commands/locks.py is the same number.
local CLAIM_MS = 1000

--include past

-- Remove lapsed entries, [token, score]..., from the zset `key`, which belongs to a lock. A waiter's
-- score is not a time, but its record has fence 0, so it is not noted.
local function drop(key, lapsed)
  for i = 1, #lapsed, 2 do
    redis.call('ZREM', key, lapsed[i])
    note_past('lapsed', key, lapsed[i], lapsed[i + 1], LAPSED)
    redis.call('HDEL', records, lapsed[i])
  end
end

-- Grant free slots to the first live waiters, for the claim window, and publish each its fence.
-- If nobody listens on a waiter's channel, its process is gone and the next waiter is tried.
-- Returns the number of slots in use, and true if the next slot is for the waiter `self`, which is
-- not granted here.
local function hand_over(held, queue, self)
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  if head then drop(held, redis.call('ZRANGEBYSCORE', held, '-inf', now(), 'WITHSCORES')) end
  local in_use = redis.call('ZCARD', held)
  while head do
    local record = redis.call('HGET', records, head) or ''
    local alive_until, tail, limit, channel = record:match('^0 (%d+) (%d+ (%d+) %S+ %d+ (%S+) .*)$')
    if limit and in_use >= tonumber(limit) then break end
    if head == self then return in_use, true end
    redis.call('ZREM', queue, head)
    local listeners = alive_until and tonumber(alive_until) > now() and 1 or 0
    local number = listeners == 1 and next_number()
    if listeners == 1 and channel ~= '-' then
      listeners = redis.pcall('PUBLISH', channel, string.format('%s %.0f', head, number))
    end
    if listeners ~= 0 then
      grant(held, head, now() + CLAIM_MS, tail, number)
      in_use = in_use + 1
      if in_use >= tonumber(limit) then break end
    elseif alive_until then
      redis.call('HDEL', records, head)
    end
    head = redis.call('ZRANGE', queue, 0, 0)[1]
  end
  return in_use
end

-- Hand a free slot over, or delete the name if it has neither holders nor waiters.
local function pass_on(held, queue)
  local used = redis.call('EXISTS', held, queue)
  if used == 0 or hand_over(held, queue) == 0 then redis.call('ZREM', index, name_of(held)) end
end
