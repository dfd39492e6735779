-- take: an item for a user who has none, with the record of who got what. May be repeated.
-- ARGV 1 name  2 user  3 token of this question (again.lua)
--   s:<name> set  what is left   g:<name> hash  user -> item   i:<name> hash  item -> user
-- returns {item, 1 now or 0 before}; or {'', the number of items sold}: there is none left

--include common
--include again

local before = answered(ARGV[3])
if before then return before end
local got = root .. 'g:' .. ARGV[1]
local item = redis.call('HGET', got, ARGV[2])
if item then return answer(ARGV[3], {item, 0}) end
item = redis.call('SPOP', root .. 's:' .. ARGV[1])
if not item then return answer(ARGV[3], {'', redis.call('HLEN', got)}) end
redis.call('HSET', got, ARGV[2], item)
redis.call('HSET', root .. 'i:' .. ARGV[1], item, ARGV[2])
return answer(ARGV[3], {item, 1})
