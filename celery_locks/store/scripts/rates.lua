-- rates: describe rates. Writes nothing.
-- KEYS r:<rate> d:<rate> of each
-- ARGV 1 how many of the callers with a promise to return  2 return this caller only, or ''
-- returns {now in µs, {[field, value]..., of r:<rate>}, number of promises, {[caller, promised µs]...}, ...}:
--         three entries for each rate. The number is that of the promises before the caller, if it is given

--include clock

now()
local reply = {micros}
for i = 1, #KEYS, 2 do
  reply[#reply + 1] = redis.call('HGETALL', KEYS[i])
  if ARGV[2] == '' then
    reply[#reply + 1] = redis.call('ZCARD', KEYS[i + 1])
    reply[#reply + 1] = redis.call('ZRANGE', KEYS[i + 1], 0, ARGV[1] - 1, 'WITHSCORES')
  else
    local rank = redis.call('ZRANK', KEYS[i + 1], ARGV[2])
    reply[#reply + 1] = rank or 0
    reply[#reply + 1] = rank and {ARGV[2], redis.call('ZSCORE', KEYS[i + 1], ARGV[2])} or {}
  end
end
return reply
