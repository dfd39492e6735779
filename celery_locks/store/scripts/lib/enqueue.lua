-- Part of acquire: the queue of a busy lock.
-- Model: Enqueue in Lock.tla.

-- Join the queue at the end; a repeated call keeps its ticket. Returns position and ticket.
local function enqueue()
  local alive_ms, ticket = tonumber(options.wait[1]), redis.call('ZSCORE', queue, token)
  redis.call('HSET', records, token, '0 ' .. (now() + alive_ms) .. ' ' .. record_tail)
  redis.call('ZADD', index, 'GT', now() + alive_ms, name_of(held))
  for i = next_key, #KEYS do redis.call('SET', KEYS[i], token .. ' ' .. name_of(held), 'PX', alive_ms) end
  if ticket then return redis.call('ZRANK', queue, token) + 1, tonumber(ticket) end
  ticket = next_number()
  redis.call('ZADD', queue, ticket, token)
  return redis.call('ZCARD', queue), ticket
end

-- Without holders, somebody waits for this lock and others (several.lua): look again after this time.
local NOBODY_LAPSES_MS = 1000

-- `held_limit`: the limit of the holders, if it is another than the caller's; `pause`: the marker of it.
local function busy(holders, joins_queue, held_limit, pause)
  local position, ticket
  if joins_queue then
    position, ticket = enqueue()
  else
    position, ticket = redis.call('ZCARD', queue) + 1, 0
  end
  local lapses = holders[2] and holders[2] - now() or NOBODY_LAPSES_MS
  local reply = {'busy', lapses, position, now(), ticket, held_limit or 0, pause or ''}
  for i = 1, math.min(#holders, 16), 2 do
    reply[#reply + 1] = holders[i]
    reply[#reply + 1] = holders[i + 1]
    reply[#reply + 1] = record_of(holders[i])
  end
  return reply
end
