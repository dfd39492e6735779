-- push_message: add a message, after putting back the batch of a worker that is gone. May be repeated.
-- KEYS h:<name>, those of batches.lua, and p:<request id> (saved_replies.lua)
-- ARGV 1 user  2 message
-- returns {number of messages that wait}

--keys held waiting in_flight users saved
--include saved_replies
--include batches
--include holds

local earlier = saved_reply(saved)
if earlier then return earlier end
local batch_token = redis.call('LINDEX', in_flight, 0)
if batch_token and not holds(batch_token) then put_back() end
redis.call('RPUSH', waiting, ARGV[2])
count_messages(ARGV[1])
return save_reply(saved, {redis.call('LLEN', waiting)})
