-- claim: leave a mark if there is none; the token in it tells whose it is. May be repeated.
-- KEYS 1 root  ARGV 1 mark (marks.lua)  2 value  3 ms
-- returns the mark that is there now

local key = KEYS[1] .. ARGV[1]
local current = redis.call('GET', key)
if current then return current end
redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
return ARGV[2]
