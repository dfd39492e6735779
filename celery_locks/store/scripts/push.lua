-- push: one message more, after bringing back the batch of a worker that is gone. May be repeated.
-- ARGV 1 name  2 buffer  3 user  4 token of this question (again.lua)  5 message
-- returns {how many wait now}

--include common
--include again
--include batches

local before = answered(ARGV[4])
if before then return before end
local name, waiting = ARGV[1], root .. 'l:' .. ARGV[1]
local owner = redis.call('LINDEX', root .. 'f:' .. name, 0)
if owner and not is_held(name, owner) then put_back(name) end
redis.call('RPUSH', waiting, ARGV[5])
count_messages(ARGV[2], ARGV[3], name)
return answer(ARGV[4], {redis.call('LLEN', waiting)})
