-- take: an item for a user who has none, with the record of who got what. May be repeated.
-- KEYS 1 root  ARGV 1 name  2 user
--   s:<name> set  what is left   g:<name> hash  user -> item   i:<name> hash  item -> user
-- returns {item, 1 now or 0 before}; or the number of items sold: there is none left

local got = KEYS[1] .. 'g:' .. ARGV[1]
local item = redis.call('HGET', got, ARGV[2])
if item then return {item, 0} end
item = redis.call('SPOP', KEYS[1] .. 's:' .. ARGV[1])
if not item then return redis.call('HLEN', got) end
redis.call('HSET', got, ARGV[2], item)
redis.call('HSET', KEYS[1] .. 'i:' .. ARGV[1], item, ARGV[2])
return {item, 1}
