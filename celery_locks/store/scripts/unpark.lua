-- unpark: take a parked message out of the queue of its lock. May be repeated.
-- KEYS held and queue of the lock
-- ARGV 1 token  2 '1' to publish it, without the lock: a worker discards it, as its task is revoked; '0' to
--      delete it
-- returns the message, '' if it was not parked

--keys records index fence past usual due parked held queue
--include clock
--include names
--include common
--include handover

local token = ARGV[1]
if redis.call('ZREM', queue, token) == 0 then return '' end
local message = (redis.call('HGET', parked, token) or ''):match('^%d+ %d+ (.*)$') or ''
redis.call('HDEL', records, token)
if ARGV[2] == '1' then
  redis.call('ZADD', due, now(), token)
else
  redis.call('HDEL', parked, token)
end
pass_on(held, queue) -- the next one may need fewer slots, or nobody may be left
return message
