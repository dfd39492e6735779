-- Shared by info and list.
-- describe(name) = {name, number of holders, [token, expiry, record]..., [token, ticket, record]...}
-- with live entries only: holders by expiry, then waiters in queue order (of the first 100).

local function describe(name)
  local held = redis.call('ZRANGEBYSCORE', root .. 'h:' .. name, '(' .. now(), '+inf', 'WITHSCORES')
  local reply = {name, #held / 2}
  local function add(token, score, record)
    reply[#reply + 1] = token
    reply[#reply + 1] = score
    reply[#reply + 1] = record
  end
  for i = 1, #held, 2 do
    add(held[i], held[i + 1], redis.call('HGET', records, held[i]) or '')
  end
  local queue = redis.call('ZRANGE', root .. 'q:' .. name, 0, 99, 'WITHSCORES')
  for i = 1, #queue, 2 do
    local record = redis.call('HGET', records, queue[i]) or ''
    local alive_until = record:match('^0 (%d+) ')
    if alive_until and tonumber(alive_until) > now() then add(queue[i], queue[i + 1], record) end
  end
  return reply
end
