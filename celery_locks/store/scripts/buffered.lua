-- buffered: which users of a buffer have messages in this shard, those with most first.
-- KEYS 1 root  ARGV 1 buffer
-- returns user, how many, ... for 1,000 of them

return redis.call('ZREVRANGE', KEYS[1] .. 'u:' .. ARGV[1], 0, 999, 'WITHSCORES')
