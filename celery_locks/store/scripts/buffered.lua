-- buffered: the users of a buffer that have messages in this shard, those with the most first.
-- KEYS 1 u:<buffer>
-- returns user, number of messages, ... for at most 1,000 users

return redis.call('ZREVRANGE', KEYS[1], 0, 999, 'WITHSCORES')
