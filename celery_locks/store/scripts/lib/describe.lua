-- Shared by info and list.
-- describe(name) = {name, number of holders, [token, expiry, record]..., [token, ticket, record]...}
-- with live entries only: holders by expiry, then waiters in queue order (of the first 100).
-- describe_lapsed(name) = the same with the holders that lapsed and are not forgotten yet, no waiters.

local function add_entry(reply, token, score, record)
  reply[#reply + 1] = token
  reply[#reply + 1] = score
  reply[#reply + 1] = record
end

local function describe_holders(name, first, last)
  local held = redis.call('ZRANGEBYSCORE', root .. 'h:' .. name, first, last, 'WITHSCORES')
  local reply = {name, #held / 2}
  for i = 1, #held, 2 do
    add_entry(reply, held[i], held[i + 1], redis.call('HGET', records, held[i]) or '')
  end
  return reply
end

local function describe_lapsed(name) return describe_holders(name, '-inf', now()) end

local function describe(name)
  local reply = describe_holders(name, '(' .. now(), '+inf')
  local queue = redis.call('ZRANGE', root .. 'q:' .. name, 0, 99, 'WITHSCORES')
  for i = 1, #queue, 2 do
    local record = redis.call('HGET', records, queue[i]) or ''
    local alive_until = record:match('^0 (%d+) ')
    if alive_until and tonumber(alive_until) > now() then
      add_entry(reply, queue[i], queue[i + 1], record)
    end
  end
  return reply
end
