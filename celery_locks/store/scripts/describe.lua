-- Shared by info and list.
-- describe(name) = {name, number of holders, [token, expiry, record]..., [token, ticket, record]...}
-- with the living only, holders first by expiry, waiters in line.

local function describe_holders(name, first, last)
  local held = redis.call('ZRANGEBYSCORE', root .. 'h:' .. name, first, last, 'WITHSCORES')
  local out = {name, #held / 2}
  for i = 1, #held, 2 do
    out[#out + 1] = held[i]
    out[#out + 1] = held[i + 1]
    out[#out + 1] = redis.call('HGET', records, held[i]) or ''
  end
  return out
end

local function describe_lapsed(name) return describe_holders(name, '-inf', now()) end

local function describe(name)
  local out = describe_holders(name, '(' .. now(), '+inf')
  local queue = redis.call('ZRANGE', root .. 'q:' .. name, 0, 99, 'WITHSCORES')
  for i = 1, #queue, 2 do
    local record = redis.call('HGET', records, queue[i]) or ''
    local alive = record:match('^0 (%d+) ')
    if alive and tonumber(alive) > now() then
      out[#out + 1] = queue[i]
      out[#out + 1] = queue[i + 1]
      out[#out + 1] = record
    end
  end
  return out
end
