-- push_back: let nothing start at a rate for some time. May be repeated.
-- KEYS after those below: r:<rate> rates   (lib/rates.lua)
-- ARGV 1 the rate  2 µs
-- returns 1

--include clock

local rate, listed, us = KEYS[1], KEYS[2], tonumber(ARGV[2])
now()
local until_us = math.max(micros + us, tonumber(redis.call('HGET', rate, 'n') or 0))
redis.call('HSET', rate, 'n', string.format('%.0f', until_us))
redis.call('ZADD', listed, 'GT', math.ceil(until_us / 1000), ARGV[1])
local ms = math.ceil((until_us - micros) / 1000) + 1
for _, key in ipairs({rate, listed}) do
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end
return 1
