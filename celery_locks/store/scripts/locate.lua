-- locate: what is known of some tokens, for those who know the token and not the name.
-- ARGV tokens
-- returns one record each, or nil: not acquired yet, or gone

return redis.call('HMGET', records, unpack(ARGV))
