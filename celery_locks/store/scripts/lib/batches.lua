-- Shared by the scripts of buffers. Each user of a buffer has a lock, <name>, and beside it
--   waiting    l:<name>    list  the messages that wait, oldest first
--   in_flight  f:<name>    list  the batch in flight: the token of its holder, then the messages
--   users      u:<buffer>  zset  user -> number of messages, waiting and in flight
-- Only the holder of the lock may have the batch. When its token no longer holds the lock, the batch
-- is put back.

local function count_messages(user)
  local count = redis.call('LLEN', waiting) + math.max(0, redis.call('LLEN', in_flight) - 1)
  if count > 0 then redis.call('ZADD', users, count, user)
  else redis.call('ZREM', users, user) end
end

-- Put the batch back in order, before the messages that arrived later.
local function put_back()
  for _ = 2, redis.call('LLEN', in_flight) do redis.call('LMOVE', in_flight, waiting, 'RIGHT', 'LEFT') end
  redis.call('DEL', in_flight)
end
