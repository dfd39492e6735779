-- Shared by info and list.
-- describe(name) = {name, number of holders, [token, expiry, record]..., [token, ticket, record]...}
-- with the living only, holders first by expiry, waiters in line.

local function describe(name)
  local held = redis.call('ZRANGEBYSCORE', root .. 'h:' .. name, '(' .. now(), '+inf', 'WITHSCORES')
  local out = {name, #held / 2}
  local function add(token, score, record)
    out[#out + 1] = token
    out[#out + 1] = score
    out[#out + 1] = record
  end
  for i = 1, #held, 2 do
    add(held[i], held[i + 1], redis.call('HGET', records, held[i]) or '')
  end
  local queue = redis.call('ZRANGE', root .. 'q:' .. name, 0, 99, 'WITHSCORES')
  for i = 1, #queue, 2 do
    local record = redis.call('HGET', records, queue[i]) or ''
    local alive = record:match('^0 (%d+) ')
    if alive and tonumber(alive) > now() then add(queue[i], queue[i + 1], record) end
  end
  return out
end
