-- leave_message: take the reservation from a queued message that is due, so that the next one can have it. The
-- message may still run, but not after a later one has started (reject.lua). May be repeated.
-- KEYS held is h:<name>, ended e:<job> of the message, newest n:<name> of its run's lock
-- ARGV 1 its token  2 ms for which it is remembered
-- returns 1, or 0 if it had no reservation

--keys records held ended newest
local token = ARGV[1]
local record = redis.call('HGET', records, token)
if redis.call('ZREM', held, token) == 0 then return 0 end
redis.call('HDEL', records, token)
redis.call('SET', ended, '<' .. (record or ''):match('^%d*'), 'PX', ARGV[2])
redis.call('SET', newest, 0, 'PX', ARGV[2], 'NX') -- from now on starts are noted there
return 1
