-- push: one message more, after bringing back the batch of a worker that is gone. May be repeated.
-- ARGV 1 name  2 buffer  3 user  4 token of this push  5 message  6 ms the token is remembered
-- returns how many wait now

--include common
--include batches

local name, waiting = ARGV[1], root .. 'l:' .. ARGV[1]
local owner = redis.call('LINDEX', root .. 'f:' .. name, 0)
if owner and not is_held(name, owner) then put_back(name) end
if redis.call('SET', root .. 'p:' .. ARGV[4], 1, 'NX', 'PX', ARGV[6]) then
  redis.call('RPUSH', waiting, ARGV[5])
end
count_messages(ARGV[2], ARGV[3], name)
return redis.call('LLEN', waiting)
