-- lapsed: the first members of a zset of times that are over, by this server's clock.
-- KEYS 1 the zset  ARGV 1 for how many ms  2 how many at most
-- returns [member, time ms]...

--include clock

return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now() - ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[2])
