-- What happens when a slot comes free: note the hold that ended and grant the slot to the next waiter.
-- Model: HandOver and PassOn in Lock.tla.

-- The claim window: a waiter that is granted the lock must renew it within this time, else the next
-- waiter is tried. CLAIM in commands/locks.py is the same number.
local CLAIM_MS = 1000

--include past
--include overrides

local woke_message = false -- set by hand_over

-- Wake a parked message (park.lua): its slot is reserved for it, and whoever polls publishes it. Without a
-- record nothing is reserved: the run of the message acquires the lock, or parks it again.
local function wake_message(held, token, tail)
  if tail then grant(held, token, now() + tail:match('^%d+'), tail) end
  redis.call('ZADD', due, now(), token)
  woke_message = true
end

-- Remove lapsed entries, [token, score]..., from the zset `key`, which belongs to a lock. A waiter's
-- score is not a time, but its record has fence 0, so it is not noted.
local function drop(key, lapsed)
  for i = 1, #lapsed, 2 do
    redis.call('ZREM', key, lapsed[i])
    note_past('lapsed', key, lapsed[i], lapsed[i + 1], LAPSED)
    redis.call('HDEL', records, lapsed[i])
  end
end

-- Whether the holders share the lock. They all do or none does, so the first one tells.
local function is_shared(held)
  local first = redis.call('ZRANGE', held, 0, 0)[1]
  local record = first and redis.call('HGET', records, first) or ''
  return record:find('^%d+ %d+ %d+ 0 ') ~= nil
end

-- Whether one more may hold the lock beside `in_use` others. `limit`: its own, or 0 if it shares the
-- lock; `shared`: whether the others do.
local function fits(limit, in_use, shared, operator_limit)
  if in_use > 0 and (limit == 0) ~= shared then return false end
  return in_use < (operator_limit or limit > 0 and limit or math.huge)
end

-- Wake a waiter for several locks, which asks again itself. Returns false if its process is gone.
local function wake(token, channel)
  return channel == '-' or redis.pcall('PUBLISH', channel, token:match('^[^/]+') .. ' 1') ~= 0
end

-- Grant free slots to the first live waiters, for the claim window, and publish each its fence. A parked
-- message gets its slot until it runs. Each has its own limit, unless an operator set one; nobody passes
-- the first.
-- If nobody listens on a waiter's channel, its process is gone and the next waiter is tried. A channel
-- that begins with '+' is that of a waiter for several locks: it is woken, and nobody passes it.
-- Returns the number of slots in use; and true if a waiter is first that has no slot yet, unless it is
-- `self`, which is not granted one here.
local function hand_over(held, queue, self)
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  if not head then
    redis.call('ZREM', held, QUEUE_MARKER)
    return redis.call('ZCARD', held)
  end
  drop(held, redis.call('ZRANGEBYSCORE', held, '-inf', now(), 'WITHSCORES'))
  local operator_limit, pause = read_overrides(held, read_markers(held))
  local in_use, shared = count_holders(held), is_shared(held)
  while head do
    local record = redis.call('HGET', records, head) or ''
    local alive_until, tail, limit, channel = record:match('^0 (%d+) (%d+ (%d+) %S+ %d+ (%S+) .*)$')
    local is_alive = head == self or alive_until and tonumber(alive_until) > now()
    local is_paused = pause and not is_reservation(head)
    limit = tonumber(limit or 1)
    if is_alive and (is_paused or not fits(limit, in_use, shared, operator_limit)) then
      return in_use, head ~= self
    end
    if head == self then return in_use, false end
    if is_alive and channel:sub(1, 1) == '+' and wake(head, channel:sub(2)) then return in_use, true end
    is_alive = is_alive and channel:sub(1, 1) ~= '+'
    redis.call('ZREM', queue, head)
    if is_parked(head) then
      wake_message(held, head, is_alive and tail)
    else
      local number = is_alive and next_number()
      if is_alive and channel ~= '-' then
        is_alive = redis.pcall('PUBLISH', channel, string.format('%s %.0f', head, number)) ~= 0
      end
      if is_alive then grant(held, head, now() + CLAIM_MS, tail, number) end
    end
    if is_alive then
      in_use, shared = in_use + 1, limit == 0
    elseif alive_until then
      redis.call('HDEL', records, head)
    end
    head = redis.call('ZRANGE', queue, 0, 0)[1]
  end
  redis.call('ZREM', held, QUEUE_MARKER)
  return in_use
end

-- Hand a free slot over, or delete the name if it has neither holders nor waiters nor markers.
local function pass_on(held, queue)
  if redis.call('EXISTS', held, queue) > 0 and hand_over(held, queue) > 0 then return end
  if redis.call('EXISTS', held) == 0 then redis.call('ZREM', index, name_of(held)) end
end
