-- What operators set for a lock, and what wins over the limit of every caller: markers beside its holders.
--
-- A marker is a member of h:<name> with the score +inf, so markers come after every holder. They are
-- not holders: nobody renews them, and they take no slot.
--   "~pause <until ms, or 0> <since ms> 0 <about>"    nobody may acquire the lock
--   "~glob <until ms, or 0> <since ms> 0 <about>"     the same, because of a pattern (patterns.lua)
--   "~limit <until ms, or 0> <since ms> <n> <about>"  n may hold the lock
--   "~guard <until ms> <since ms> 0 <about>"          the same, of no operator: the server lost its data (guard.lua)
-- about is a JSON object for people: glob, by, why.
--
-- A marker makes h:<name> exist, so that calls leave their hot path and read it. One whose time is over
-- is ignored; a script that removes it also hands the lock over.

-- A further marker, of no operator: somebody in the queue waits for several locks (several.lua). The lock
-- may be free meanwhile, and callers must not pass it. It goes when the queue is empty.
local QUEUE_MARKER = '~queue'

local function is_marker(member) return member:sub(1, 1) == '~' end

-- A pause does not apply to reservations: nothing runs by them.
local function is_reservation(token) return token:sub(1, 1) == 'q' end

local function is_parked(token) return token:sub(1, 1) == 'k' end

local function read_markers(held)
  local markers = redis.call('ZRANGEBYSCORE', held, '+inf', '+inf')
  for i = #markers, 1, -1 do
    if markers[i] == QUEUE_MARKER then table.remove(markers, i) end
  end
  return markers
end

local function count_holders(held)
  return redis.call('ZCARD', held) - #redis.call('ZRANGEBYSCORE', held, '+inf', '+inf')
end

-- Take the markers out of holders, [member, score]..., where they are the last.
local function split_markers(holders)
  local markers = {}
  while holders[1] and is_marker(holders[#holders - 1]) do
    table.remove(holders)
    local marker = table.remove(holders)
    if marker ~= QUEUE_MARKER then markers[#markers + 1] = marker end
  end
  return markers
end

-- Also for the value of a pattern, which is a marker without its first word.
local function ends_at(marker) return tonumber(marker:match('%d+')) end
local function is_over(marker) return ends_at(marker) > 0 and ends_at(marker) <= now() end

-- Those whose time is not over; for scripts that only read.
local function live_markers(markers)
  local live = {}
  for _, marker in ipairs(markers) do
    if not is_over(marker) then live[#live + 1] = marker end
  end
  return live
end

-- Returns the operators' limit or nil, the marker of a pause or nil, and the number of markers left;
-- removes those whose time is over.
local function read_overrides(held, markers)
  local limit, pause, left = nil, nil, #markers
  for _, marker in ipairs(markers) do
    if is_over(marker) then
      redis.call('ZREM', held, marker)
      left = left - 1
    elseif marker:find('^~limit') then
      limit = tonumber(marker:match('^~limit %d+ %d+ (%d+)'))
    else
      pause = pause or marker
    end
  end
  return limit, pause, left
end

local function add_marker(held, marker)
  redis.call('ZADD', index, 'GT', ends_at(marker) > 0 and ends_at(marker) or '+inf', name_of(held))
  redis.call('ZADD', held, '+inf', marker)
end

-- The name stays in the index as long as its last holder, waiter or marker. Without this, a name that
-- was paused without an end would stay for ever.
local function restore_index(held, queue)
  local latest, markers = 0, read_markers(held)
  for _, marker in ipairs(markers) do
    latest = math.max(latest, ends_at(marker) > 0 and ends_at(marker) or math.huge)
  end
  local last = redis.call('ZREVRANGE', held, #markers, #markers, 'WITHSCORES')
  latest = math.max(latest, tonumber(last[2] or 0))
  -- Parked messages may be very many. They wait for years, so the first one tells enough.
  local from, waiters = 0, nil
  repeat
    waiters = redis.call('ZRANGE', queue, from, from + 99)
    for _, waiter in ipairs(waiters) do
      local alive_until = (redis.call('HGET', records, waiter) or ''):match('^0 (%d+)')
      latest = math.max(latest, tonumber(alive_until or 0))
      if is_parked(waiter) then waiters = {} end
    end
    from = from + 100
  until #waiters < 100
  local score = latest == math.huge and '+inf' or string.format('%.0f', latest)
  if latest > 0 then redis.call('ZADD', index, score, name_of(held)) end
end
