-- force_release: the operator's verb; takes the lock from one holder, or from all of them.
-- ARGV 1 name  2 token, or '' for every holder
-- returns {now, [token, expiry, record]...}: those it was taken from; their next renewal says lost

local name = ARGV[1]
local held = root .. 'h:' .. name
local reply = {now}
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
for i = 1, #holders, 2 do
  if ARGV[2] == '' or ARGV[2] == holders[i] then
    redis.call('ZREM', held, holders[i])
    if tonumber(holders[i + 1]) > now then
      reply[#reply + 1] = holders[i]
      reply[#reply + 1] = holders[i + 1]
      reply[#reply + 1] = redis.call('HGET', records, holders[i]) or ''
    end
    redis.call('HDEL', records, holders[i])
  end
end
pass_on(name)
return reply
