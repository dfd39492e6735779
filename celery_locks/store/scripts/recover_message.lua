-- recover_message: take a kept message (keep_message.lua) that the broker has lost, to publish it again, and extend
-- its reservation. Of several workers that have found it lost, one gets it. A worker that dies before it has
-- published it leaves it to the next search.
-- KEYS held of the reservation
-- ARGV 1 token  2 ms, as scan_kept.lua returned it
-- returns the message, '' if it has started, or another worker has published it

--keys records index kept held
--include clock
--include names

local published, message = (redis.call('HGET', kept, ARGV[1]) or ''):match('^(%d+) (.*)$')
local ttl = (redis.call('HGET', records, ARGV[1]) or ''):match('^%d+ %d+ (%d+)')
if published ~= ARGV[2] or not ttl or not redis.call('ZSCORE', held, ARGV[1]) then return '' end
redis.call('HSET', kept, ARGV[1], string.format('%.0f ', now()) .. message)
redis.call('ZADD', index, 'GT', now() + ttl, name_of(held))
redis.call('ZADD', held, now() + ttl, ARGV[1])
return message
