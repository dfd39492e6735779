-- end_batch: the batch is done and goes, or goes back in order. Only if it is still ours.
-- ARGV 1 name  2 buffer  3 user  4 token  5 '1' if it is done  6 token of this question (again.lua)
-- returns {1}, or {0}: there is no batch of this token (any more)

--include common
--include again
--include batches

local before = answered(ARGV[6])
if before then return before end
local name = ARGV[1]
if redis.call('LINDEX', root .. 'f:' .. name, 0) ~= ARGV[4] then return answer(ARGV[6], {0}) end
if ARGV[5] == '1' then redis.call('DEL', root .. 'f:' .. name) else put_back(name) end
count_messages(ARGV[2], ARGV[3], name)
return answer(ARGV[6], {1})
