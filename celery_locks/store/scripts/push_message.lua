-- push_message: add a message, after putting back the batch of a worker that is gone. May be repeated.
-- ARGV 1 name  2 buffer  3 user  4 request id (saved_replies.lua)  5 message
-- returns {number of messages that wait}

--include common
--include saved_replies
--include batches

local saved = saved_reply(ARGV[4])
if saved then return saved end
local name, waiting = ARGV[1], root .. 'l:' .. ARGV[1]
local batch_token = redis.call('LINDEX', root .. 'f:' .. name, 0)
if batch_token and not is_held(name, batch_token) then put_back(name) end
redis.call('RPUSH', waiting, ARGV[5])
count_messages(ARGV[2], ARGV[3], name)
return save_reply(ARGV[4], {redis.call('LLEN', waiting)})
