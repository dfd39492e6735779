-- durations: the durations of the last holds of tasks (past.lua).
-- KEYS 1 root  ARGV tasks, or none for every task
-- returns task, its last holds in ms ('' if there are none), ...

local key = KEYS[1] .. 'usual'
if #ARGV == 0 then return redis.call('HGETALL', key) end
local reply = {}
for i, holds in ipairs(redis.call('HMGET', key, unpack(ARGV))) do
  reply[2 * i - 1] = ARGV[i]
  reply[2 * i] = holds or ''
end
return reply
