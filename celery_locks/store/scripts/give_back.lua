-- give_back: a user's item goes on sale again. May be repeated.
-- KEYS 1 root  ARGV 1 name  2 user
-- returns the item, or nil: he had none

local got = KEYS[1] .. 'g:' .. ARGV[1]
local item = redis.call('HGET', got, ARGV[2])
if not item then return false end
redis.call('SADD', KEYS[1] .. 's:' .. ARGV[1], item)
redis.call('HDEL', KEYS[1] .. 'i:' .. ARGV[1], item)
redis.call('HDEL', got, ARGV[2])
return item
