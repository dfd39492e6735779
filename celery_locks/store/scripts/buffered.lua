-- buffered: the users of a buffer that have messages in this shard, those with the most first.
-- KEYS 1 root  ARGV 1 buffer
-- returns user, number of messages, ... for at most 1,000 users

return redis.call('ZREVRANGE', KEYS[1] .. 'u:' .. ARGV[1], 0, 999, 'WITHSCORES')
