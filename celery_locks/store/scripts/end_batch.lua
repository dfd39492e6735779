-- end_batch: delete a completed batch, or put it back in order. Only if this token still has it.
-- ARGV 1 name  2 buffer  3 user  4 token  5 '1' if it is completed  6 request id (saved_replies.lua)
-- returns {1}, or {0}: this token has no batch (any more)

--include common
--include saved_replies
--include batches

local saved = saved_reply(ARGV[6])
if saved then return saved end
local name = ARGV[1]
if redis.call('LINDEX', root .. 'f:' .. name, 0) ~= ARGV[4] then return save_reply(ARGV[6], {0}) end
if ARGV[5] == '1' then redis.call('DEL', root .. 'f:' .. name) else put_back(name) end
count_messages(ARGV[2], ARGV[3], name)
return save_reply(ARGV[6], {1})
