-- claim: leave a mark if there is none; the token in it tells whose it is. May be repeated.
-- KEYS 1 the mark (marks.lua)  ARGV 1 value  2 ms
-- returns the mark that is there now

local current = redis.call('GET', KEYS[1])
if current then return current end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
