-- rates: describe rates. Writes nothing.
-- KEYS r:<rate> d:<rate> of each
-- ARGV 1 how many of the callers that are delayed to return  2 return this caller only, or ''
-- returns {now in µs, {[field, value]..., of r:<rate>}, number of delayed, {[caller, promised µs]...}, ...}:
--         three entries for each rate. The number is that of the callers before the caller, if it is given.
-- Only that caller may be one whose time is past, which is not delayed any more (lib/rates.lua).

--include clock

now()

-- Those that come back to a paused rate have a negative time and are first.
local function first_callers(delayed, most)
  local callers = redis.call('ZRANGEBYSCORE', delayed, '-inf', string.format('(-%.0f', micros),
    'WITHSCORES', 'LIMIT', 0, most)
  local promised = redis.call('ZRANGEBYSCORE', delayed, string.format('(%.0f', micros), '+inf',
    'WITHSCORES', 'LIMIT', 0, most - #callers / 2)
  for _, value in ipairs(promised) do callers[#callers + 1] = value end
  return callers
end

local reply = {micros}
for i = 1, #KEYS, 2 do
  local delayed = KEYS[i + 1]
  reply[#reply + 1] = redis.call('HGETALL', KEYS[i])
  local past = redis.call('ZCOUNT', delayed, -micros, micros)
  if ARGV[2] == '' then
    reply[#reply + 1] = redis.call('ZCARD', delayed) - past
    reply[#reply + 1] = first_callers(delayed, tonumber(ARGV[1]))
  else
    local at = redis.call('ZSCORE', delayed, ARGV[2])
    local ahead = at and redis.call('ZRANK', delayed, ARGV[2]) or 0
    if at and math.abs(at) > micros then ahead = ahead - past end
    reply[#reply + 1] = ahead
    reply[#reply + 1] = at and {ARGV[2], at} or {}
  end
end
return reply
