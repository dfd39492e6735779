-- durations: the durations of the last holds of tasks (past.lua).
-- ARGV tasks, or none for every task
-- returns task, its last holds in ms ('' if there are none), ...

--keys usual

if #ARGV == 0 then return redis.call('HGETALL', usual) end
local reply = {}
for i, holds in ipairs(redis.call('HMGET', usual, unpack(ARGV))) do
  reply[2 * i - 1] = ARGV[i]
  reply[2 * i] = holds or ''
end
return reply
