-- end_batch: delete a completed batch, or put it back in order. Only if this token still has it.
-- KEYS those of batches.lua, and p:<request id> (saved_replies.lua)
-- ARGV 1 user  2 token  3 '1' if it is completed
-- returns {1}, or {0}: this token has no batch (any more)

--keys waiting in_flight users saved
--include saved_replies
--include batches

local earlier = saved_reply(saved)
if earlier then return earlier end
if redis.call('LINDEX', in_flight, 0) ~= ARGV[2] then return save_reply(saved, {0}) end
if ARGV[3] == '1' then redis.call('DEL', in_flight) else put_back() end
count_messages(ARGV[1])
return save_reply(saved, {1})
